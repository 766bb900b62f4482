"""Looks at itself: how it was started, what PyTorch's functions look like, what modules print."""

import inspect
import os
import sys
import threading

import torch
from torch import nn
from toys import points, show

print(__name__, __file__ == sys.argv[0], __spec__, __doc__.split(":")[0], sys.argv[1:])
print("first on the path is mine:", sys.path[0] == __file__.rpartition("/")[0])
print("main is me:", sys.modules["__main__"].points is points, sys.flags.utf8_mode)
print("threads to wait for", [one.name for one in threading.enumerate() if not one.daemon])
print("environment", sorted(name for name in os.environ if "JOULEMAP" in name or "CUPTI" in name))
torch.manual_seed(26)


class Model(nn.Module):
    """A model with a look at who calls it."""

    def __init__(self):
        super().__init__()
        self.four = nn.Linear(8, 4)
        self.callers = []

    def forward(self, inputs):
        self.callers.append(sys._getframe(1).f_code.co_name)
        return self.four(inputs)


model = Model()
learning = torch.optim.SGD(model.parameters(), 0.1)
LOOKED_AT = [
    *(nn.Module.__call__, nn.Module.forward, Model.forward, torch.utils.data.DataLoader.__iter__),
    *(torch.optim.SGD.step, torch.optim.SGD.zero_grad, learning.step, nn.utils.clip_grad_norm_),
    *(torch.Tensor.backward, torch.autograd.backward, nn.functional.cross_entropy, torch.compile),
]
for thing in LOOKED_AT:
    print(thing.__qualname__, inspect.signature(thing), (inspect.getdoc(thing) or "")[:40])
print(inspect.getsource(nn.Module.__call__), end="")
print(inspect.getsourcelines(nn.Linear.forward)[0][0], end="")
inputs, targets = (torch.from_numpy(part) for part in points(64))
for _ in range(3):
    loss = nn.functional.cross_entropy(model(inputs), targets.long())
    learning.zero_grad()
    loss.backward()
    learning.step()
show("loss", loss.item())
print(model, model.callers, sorted(vars(model)), sorted(vars(learning)))
print(torch.is_grad_enabled(), torch.autograd._profiler_enabled(), sys.getrefcount(model) < 5)
gradient = loss.grad_fn
while gradient.next_functions:
    print(gradient.name(), gradient.metadata, end=" ")
    gradient = gradient.next_functions[0][0]
print()
