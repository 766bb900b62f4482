"""Recurrent: an embedding, a bidirectional LSTM and a GRU on packed sequences predict the next symbol."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from toys import sequences, show


class Reader(nn.Module):
    """Reads symbols both ways, and sums them up."""

    def __init__(self):
        super().__init__()
        self.symbols = nn.Embedding(10, 16)
        self.both_ways = nn.LSTM(16, 12, num_layers=2, bidirectional=True, batch_first=True, dropout=0.1)
        self.summary = nn.GRU(24, 16, batch_first=True)
        self.next_symbol = nn.Linear(16, 10)

    def forward(self, tokens, lengths):
        packed = pack_padded_sequence(self.symbols(tokens), lengths, batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(self.both_ways(packed)[0], batch_first=True)
        return self.next_symbol(self.summary(states)[1][-1])


torch.manual_seed(2)
model = Reader()
learning = torch.optim.RMSprop(model.parameters(), 0.005)
tokens, targets = (torch.from_numpy(part).long() for part in sequences(128))
lengths = torch.randint(6, 13, (128,))
lengths[::32] = 12
for epoch in range(2):
    for chosen in torch.randperm(128).view(4, 32):
        loss = nn.functional.cross_entropy(model(tokens[chosen], lengths[chosen]), targets[chosen])
        learning.zero_grad(set_to_none=False)
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.1)
        learning.step()
    show(f"epoch {epoch}", loss.item())
show("weights", *(weight.detach() for weight in model.parameters()))
