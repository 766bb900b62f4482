"""Functions with a backward of their own: once and twice differentiable, with None, in place, checked."""

import torch
from torch import nn
from torch.autograd import Function, gradcheck
from toys import points, show


class Cube(Function):
    """x³, differentiable twice."""

    @staticmethod
    def forward(context, number):
        context.save_for_backward(number)
        return number**3

    @staticmethod
    def backward(context, slope):
        (number,) = context.saved_tensors
        return 3 * number.square() * slope


class Through(Function):
    """A sign that lets gradients through, and scales them."""

    @staticmethod
    def forward(number, scale):
        return number.sign()

    @staticmethod
    def setup_context(context, inputs, output):
        context.scale = inputs[1]

    @staticmethod
    def backward(context, slope):
        return slope * context.scale, None


class Binary(nn.Module):
    """A layer of ones and minus ones."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 16)
        self.head = nn.Linear(16, 1)

    def forward(self, inputs):
        return self.head(Through.apply(Cube.apply(self.linear(inputs)), 0.5)).squeeze(-1)


torch.manual_seed(24)
inputs, targets = (torch.from_numpy(part).float() for part in points(64))
model = Binary()
learning = torch.optim.Adagrad(model.parameters(), 0.05)
for _ in range(5):
    loss = nn.functional.binary_cross_entropy_with_logits(model(inputs), targets)
    learning.zero_grad()
    loss.backward()
    learning.step()
    show("loss", loss.item())
number = torch.tensor([1.5, -2.0], dtype=torch.float64, requires_grad=True)
(slope,) = torch.autograd.grad(Cube.apply(number).sum(), number, create_graph=True)
show("slopes", slope.detach(), *torch.autograd.grad(slope.sum(), number))
print("checked", gradcheck(Cube.apply, (number,)))
with torch.autograd.set_detect_anomaly(True, check_nan=True):
    show("anomaly mode", *torch.autograd.grad(model(inputs).sum(), list(model.parameters())[:1]))
