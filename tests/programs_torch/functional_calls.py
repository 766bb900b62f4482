"""torch.func: gradients for each example, Jacobians, an ensemble in one call, weights from outside."""

import copy

import torch
from torch import nn
from torch.func import functional_call, grad, hessian, jacrev, jvp, stack_module_state, vmap
from toys import points, show

torch.manual_seed(10)
inputs, targets = (torch.from_numpy(part).float() for part in points(32))
model = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 1))
weights = {name: weight.detach() for name, weight in model.named_parameters()}


def loss(weights, place, side):
    """How wrong the model with these weights is about one point."""
    score = functional_call(model, weights, (place[None],)).squeeze()
    return nn.functional.binary_cross_entropy_with_logits(score, side)


each = vmap(grad(loss), (None, 0, 0))(weights, inputs, targets)
show("for each", *each.values())
for _ in range(5):
    slopes = grad(lambda now: vmap(loss, (None, 0, 0))(now, inputs, targets).mean())(weights)
    weights = {name: weight - 0.5 * slopes[name] for name, weight in weights.items()}
show("learnt", *weights.values())
show("jacobian", jacrev(lambda place: functional_call(model, weights, place))(inputs[0]))
show("hessian", hessian(lambda place: functional_call(model, weights, place).sum())(inputs[0]))
values, slopes = jvp(model, (inputs,), (torch.ones_like(inputs),))
show("forward mode", values.detach(), slopes.detach())
many = [copy.deepcopy(model) for _ in range(3)]
for number, one in enumerate(many):
    nn.init.constant_(one[0].bias, number / 10)
stacked, buffers = stack_module_state(many)
shell = copy.deepcopy(model).to("meta")
together = vmap(lambda w, b, places: functional_call(shell, (w, b), (places,)), (0, 0, None))
show("ensemble", together(stacked, buffers, inputs).detach())
