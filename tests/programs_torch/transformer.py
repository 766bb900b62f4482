"""PyTorch's own transformer: encoder and decoder, masks, tied weights, and greedy decoding afterwards."""

import torch
from torch import nn
from toys import sequences, show


class Continuer(nn.Module):
    """Reads a sequence and says how it goes on."""

    def __init__(self):
        super().__init__()
        self.symbols = nn.Embedding(10, 16)
        self.places = nn.Parameter(torch.randn(12, 16) / 4)
        self.transformer = nn.Transformer(16, 4, 2, 2, 32, dropout=0.1, batch_first=True)
        self.head = nn.Linear(16, 10, bias=False)
        self.head.weight = self.symbols.weight

    def forward(self, read, said):
        mask = nn.Transformer.generate_square_subsequent_mask(said.shape[1])
        inner = self.transformer(self._embed(read), self._embed(said), tgt_mask=mask, tgt_is_causal=True)
        return self.head(inner)

    def _embed(self, tokens):
        return self.symbols(tokens) + self.places[: tokens.shape[1]]


torch.manual_seed(3)
torch.use_deterministic_algorithms(True)
model = Continuer()
learning = torch.optim.AdamW(model.parameters(), 3e-3)
warm = torch.optim.lr_scheduler.LambdaLR(learning, lambda step: min(1, (step + 1) / 5))
tokens = torch.from_numpy(sequences(96)[0]).long()
for batch in tokens.split(16):
    scores = model(batch[:, :6], batch[:, 5:-1])
    loss = nn.functional.cross_entropy(scores.flatten(0, 1), batch[:, 6:].flatten(), label_smoothing=0.1)
    loss.backward()
    learning.step()
    warm.step()
    learning.zero_grad()
    show("step", loss.item(), warm.get_last_lr()[0])
model.eval()
said = tokens[:4, 5:6]
with torch.no_grad():
    for _ in range(5):
        said = torch.cat([said, model(tokens[:4, :6], said)[:, -1:].argmax(-1)], 1)
show("said", said)
