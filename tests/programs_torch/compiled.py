"""torch.compile: a model that trains, a function with a break in its graph, and how often it compiled."""

import torch
from torch import nn
from torch._dynamo.utils import counters
from toys import points, show

torch.manual_seed(9)
inputs, targets = (torch.from_numpy(part) for part in points(64))
model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 2))
learning = torch.optim.SGD(model.parameters(), 0.1)
compiled = torch.compile(model)
for places, sides in zip(inputs.split(16), targets.long().split(16), strict=True):
    loss = nn.functional.cross_entropy(compiled(places), sides)
    loss.backward()
    learning.step()
    learning.zero_grad()
    show("step", loss.item())


@torch.compile(backend="aot_eager")
def broken(numbers):
    """Two graphs, and a print between them."""
    doubled = numbers * 2
    print("between the graphs")
    return doubled.sin().sum() if numbers.numel() > 100 else model(doubled).sum()


for count in (4, 4, 7, 64):
    show("broken", broken(inputs[:count]).item())
explained = torch._dynamo.explain(lambda numbers: model(numbers).relu())(inputs)
print("graphs", explained.graph_count, "breaks", explained.graph_break_count)
for kind in ("frames", "stats", "graph_break", "recompiles"):
    print(kind, sorted(counters[kind].items()))
