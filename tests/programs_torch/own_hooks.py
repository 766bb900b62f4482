"""Hooks of the program's own, of every kind: what they see, in which order, and what they change."""

import torch
from torch import nn
from torch.nn.modules import module as nn_module
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from toys import points, show

torch.manual_seed(19)
inputs, targets = (torch.from_numpy(part) for part in points(32))
model = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))
names = {module: name or "model" for name, module in model.named_modules()}
heard = []


def says(words):
    """A hook that keeps what it is called for, and changes nothing."""
    return lambda *_: heard.append(words)


def add_one(module, given, made):
    """A hook that changes what a module makes."""
    return made + 1


removable = [
    nn_module.register_module_forward_pre_hook(lambda one, *_: heard.append(f"before {names[one]}")),
    nn_module.register_module_forward_hook(lambda one, *_: heard.append(f"after {names[one]}")),
    model[0].register_forward_pre_hook(
        lambda _, given, named: ((given[0] * 2,), named), with_kwargs=True, prepend=True
    ),
    model[0].register_forward_hook(add_one, always_call=True),
    model[2].register_full_backward_pre_hook(says("backward of 2 begins")),
    model[2].register_full_backward_hook(says("backward of 2 ends")),
    model[0].weight.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01)),
    model[0].weight.register_post_accumulate_grad_hook(says("accumulated")),
    register_optimizer_step_pre_hook(says("before the step")),
    register_optimizer_step_post_hook(says("after the step")),
]
learning = torch.optim.Adam(model.parameters(), 0.01)
learning.register_step_pre_hook(says("before my step"))
for step in range(4):
    loss = nn.functional.cross_entropy(model(inputs), targets.long())
    learning.zero_grad()
    loss.backward()
    learning.step()
    show(f"step {step}", loss.item())
    print(heard)
    heard.clear()
    if step == 1:
        for handle in removable:
            handle.remove()
print(len(nn_module._global_forward_hooks) - len(nn_module._global_forward_pre_hooks))
print(model[0]._forward_hooks, model[0]._forward_pre_hooks, model[0]._backward_hooks)
saved = []
with torch.autograd.graph.saved_tensors_hooks(lambda one: saved.append(one.shape) or one, lambda one: one):
    model(inputs).sum().backward()
print(saved)
