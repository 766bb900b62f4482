"""Sparse gradients: embedding bags, a sparse embedding with SparseAdam, and sparse matrices."""

import torch
from torch import nn
from toys import sequences, show


class Bag(nn.Module):
    """Symbols in any order."""

    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(10, 8, mode="sum", sparse=True)
        self.one = nn.Embedding(10, 8, sparse=True)
        self.head = nn.Linear(8, 10)

    def forward(self, tokens):
        starts = torch.arange(0, tokens.numel(), tokens.shape[1])
        return self.head(self.bag(tokens.flatten(), starts) + self.one(tokens[:, -1]))


torch.manual_seed(25)
tokens, targets = (torch.from_numpy(part).long() for part in sequences(96))
model = Bag()
sparse = torch.optim.SparseAdam([model.bag.weight, model.one.weight], 0.01)
dense = torch.optim.Adam(model.head.parameters(), 0.01)
for batch, wanted in zip(tokens.split(16), targets.split(16), strict=True):
    loss = nn.functional.cross_entropy(model(batch), wanted)
    for learning in (sparse, dense):
        learning.zero_grad()
    loss.backward()
    print(model.bag.weight.grad.is_sparse, model.head.weight.grad.is_sparse)
    for learning in (sparse, dense):
        learning.step()
    show("loss", loss.item())
show("weights", *(weight.detach() for weight in model.parameters()))
matrix = torch.eye(10).to_sparse_coo()
with torch.no_grad():
    show("product", torch.sparse.mm(matrix, model.one.weight))
