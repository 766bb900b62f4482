"""TorchScript, torch.export and FX: scripted, traced, saved, loaded, exported and rewritten models."""

import warnings

import torch
from torch import nn
from toys import points, show

warnings.filterwarnings("ignore", category=DeprecationWarning)


class Gate(nn.Module):
    """Control flow that depends on what comes in."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.first(inputs))
        if hidden.sum() > 1000:
            hidden = hidden / 2
        return self.second(hidden)


torch.manual_seed(17)
inputs = torch.from_numpy(points(32)[0])
model = Gate()
scripted = torch.jit.script(model)
traced = torch.jit.trace(nn.Sequential(model.first, nn.ReLU(), model.second), inputs)
learning = torch.optim.SGD(scripted.parameters(), 0.1)
for _ in range(4):
    loss = scripted(inputs).square().mean()
    learning.zero_grad()
    loss.backward()
    learning.step()
    show("scripted", loss.item())
torch.jit.save(torch.jit.freeze(scripted.eval()), "frozen.pt")
with torch.no_grad():
    for _ in range(3):
        show("loaded", torch.jit.load("frozen.pt")(inputs))
        show("traced", traced(inputs))
print(scripted.code)
print(traced.graph.findNode("aten::relu") is not None, isinstance(scripted, nn.Module))

plain = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 1))
exported = torch.export.export(plain, (inputs,))
show("exported", exported.module()(inputs).detach())
print([node.name for node in exported.graph.nodes])
rewritten = torch.fx.symbolic_trace(model.first)
show("rewritten", rewritten(inputs).detach())
print(rewritten.code)
