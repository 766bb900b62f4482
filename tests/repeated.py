"""What is trained while operations and modules are executed again."""

from __future__ import annotations

from typing import Any

import torch


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = torch.nn.LayerNorm(8), torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)

    def forward(self, x: Any) -> Any:
        return x + 0.5 * self.down(torch.nn.functional.gelu(self.up(self.norm(x)))) / 3


def trained(steps: int = 3, *, autocast: bool = False) -> list[Any]:
    """Parameters after some steps from a fixed seed, with random numbers drawn on the way."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(Block(), torch.nn.Dropout(0.1), Block())
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = model(torch.rand(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
    return [one.detach().clone() for one in model.parameters()]
