"""Gradients accumulated over several batches, clipped by their norm; then LBFGS, which calls a closure."""

import torch
from torch import nn
from toys import points, show

torch.manual_seed(5)
inputs, targets = (torch.from_numpy(part) for part in points(256))
targets = targets.float()
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1), nn.Flatten(0))
error = nn.BCEWithLogitsLoss()
learning = torch.optim.SGD(model.parameters(), 0.5, momentum=0.9)
for epoch in range(2):
    for number, (places, sides) in enumerate(zip(inputs.split(16), targets.split(16), strict=True), 1):
        loss = error(model(places), sides) / 4
        loss.backward()
        if number % 4 == 0:
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.2)
            learning.step()
            learning.zero_grad()
    show(f"epoch {epoch}", loss.item(), norm.item())

exact = torch.optim.LBFGS(model.parameters(), 0.3, max_iter=5)
calls = []


def closure():
    """Loss and gradients, as often as the optimizer wants them."""
    exact.zero_grad()
    loss = error(model(inputs), targets)
    loss.backward()
    calls.append(loss.item())
    return loss


for _ in range(3):
    show("LBFGS", exact.step(closure).item())
show("calls", len(calls), calls)
