"""A device that waits once a step, for a known time: what that costs says whether others pay for it."""

from __future__ import annotations

import time
from typing import Any

from joulemap.frameworks.torch import gpus

CYCLES_PER_S = 1.5e9
"""About a GPU's clock; how long it really waited is measured."""


class Waiter:
    """Adds one wait to each step while its number is the ``target``; ``waited_s`` says how long all of them
    took that were counted last."""

    def __init__(self, device: str, number: int) -> None:
        self._cuda, self._number = device == "cuda", number
        self.target, self.more = -1, 0
        self.wait_s = self.waited_s = 0.0
        self.refused: dict[int, str] = {}
        self._waits: list[Any] = []

    def install(self) -> None:
        """Nothing of the program is touched."""

    def remove(self) -> None:
        self._waits.clear()

    def step(self) -> None:
        """A step begins: the device waits before it, and a GPU's host goes on."""
        if self.target == self._number and not gpus.captures():
            self._waits.append(self._spun() if self._cuda else self._slept())

    def _slept(self) -> float:
        begin_s = time.perf_counter()
        time.sleep(self.wait_s)
        return time.perf_counter() - begin_s

    def _spun(self) -> Any:
        """A kernel of one thread that looks at the clock, between two events."""
        import torch

        before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        before.record()
        torch.cuda._sleep(round(self.wait_s * CYCLES_PER_S))
        after.record()
        return before, after

    def take_counts(self) -> tuple[dict[int, int], dict[int, int]]:
        """Waits that were added since this was last asked; the device has done them by now."""
        waits, self._waits = self._waits, []
        took = [one[0].elapsed_time(one[1]) / 1e3 if self._cuda else one for one in waits]
        self.waited_s = sum(took)
        return {}, {self._number: len(waits)} if waits else {}
