"""Raises inside forward and inside backward, catches that, goes on, and then dies of an error in forward."""

import sys
import traceback

import torch
from torch import nn
from toys import points, show


class Touchy(nn.Module):
    """A layer that does not like some inputs."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, inputs):
        if inputs.shape[0] == 3:
            raise ValueError("three is too few")
        return self.inner(inputs)


def refuse(gradient):
    """A hook that refuses its gradient."""
    raise RuntimeError("this gradient is refused")


def where(error):
    """Which functions of this program the error came through."""
    frames = traceback.extract_tb(error.__traceback__)
    return [(frame.name, frame.lineno) for frame in frames if frame.filename == __file__]


torch.manual_seed(11)
inputs, targets = (torch.from_numpy(part) for part in points(64))
model = nn.Sequential(Touchy(), nn.ReLU(), nn.Linear(8, 2))
learning = torch.optim.SGD(model.parameters(), 0.1)
for step, count in enumerate((16, 3, 16, 5, 16)):
    try:
        outputs = model(inputs[:count])
        if count == 5:
            outputs.register_hook(refuse)
        nn.functional.cross_entropy(outputs, targets[:count].long()).backward()
        learning.step()
    except (ValueError, RuntimeError) as error:
        print("caught", error, where(error), error.__cause__, error.__context__)
    learning.zero_grad()
    show(f"step {step}", model[2].weight.detach())
try:
    model(inputs[:, :5])
except RuntimeError as error:
    print("caught", error)
print("in flight", sys.exc_info())
sys.stdout.flush()
model(inputs[:3])
