"""What hooks cost a PyTorch program between sessions, in microseconds: a call of a module, and a step.

    python benchmarks/hooks.py

Loops over next to nothing, with hooks and without them in turns, each compared with those beside it. Only
steps are recorded: no session is opened, and nothing is metered. Of every turn it is the quickest tenth that
counts, since other programs on the machine can only make it slower.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from switch import Switch

MODULES, TIMES, TURNS = 200, 300, 10


def cost_us(action: Callable[[], object]) -> float:
    """How much longer an action takes with hooks, in the middle of all turns."""
    with tempfile.TemporaryDirectory() as made:
        switch = Switch("torch", Path(made), overhead=0.0)
        longer = []
        for _ in range(TURNS):
            plain = _took_us(action)
            with switch.on():
                hooked = _took_us(action)
            longer.append(hooked - (plain + _took_us(action)) / 2)
        return median(longer)


def _took_us(action: Callable[[], object]) -> float:
    took_ns = []
    for _ in range(TIMES):
        begin_ns = time.thread_time_ns()
        action()
        took_ns.append(time.thread_time_ns() - begin_ns)
    return sorted(took_ns)[TIMES // 10] / 1e3


def modules(count: int) -> Callable[[], object]:
    """A call of a module with so many others inside, none of which does anything."""
    import torch

    model = torch.nn.Sequential(*(torch.nn.Identity() for _ in range(count))).eval()
    given = torch.ones(1)
    return lambda: model(given)


def training() -> Callable[[], object]:
    """A step of training with one parameter."""
    import torch

    model = torch.nn.Linear(1, 1, bias=False)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    given = torch.ones(1, 1)

    def step() -> None:
        optimizer.zero_grad()
        model(given).sum().backward()
        optimizer.step()

    return step


def main() -> int:
    """Measure, and print."""
    few, many = cost_us(modules(1)), cost_us(modules(1 + MODULES))
    print(f"{'a call inside a call':24} {(many - few) / MODULES:8.3f} µs")
    print(f"{'a step of inference':24} {few:8.3f} µs")
    print(f"{'a step of training':24} {cost_us(training()):8.3f} µs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
