"""How fast a GPU runs: a kernel of one thread that counts clocks, timed once a step."""

from __future__ import annotations

from typing import Any

from joulemap.frameworks.torch import gpus

CYCLES = 150_000
"""Less than a tenth of a millisecond: long against what a launch takes, and nothing to a step."""


class Clock:
    """Is asked at the beginnings of steps, and says their mean clocks afterwards. It is right only where the
    GPU has more to do than the host can launch: otherwise launching is in the time."""

    def __init__(self) -> None:
        self._pairs: list[tuple[Any, Any]] = []

    def look(self) -> None:
        """Have the GPU count, and go on."""
        if not gpus.in_use() or gpus.captures():
            return
        import torch

        before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        before.record()
        torch.cuda._sleep(CYCLES)
        after.record()
        self._pairs.append((before, after))

    def take_mhz(self) -> float:
        """Of the steps since this was last asked, which the GPU has done by now; 0 where it was not looked
        at. The middle half of them: something may have come between."""
        pairs, self._pairs = self._pairs, []
        took_us = sorted(1e3 * before.elapsed_time(after) for before, after in pairs)
        middle = took_us[len(took_us) // 4 : len(took_us) - len(took_us) // 4]
        return CYCLES * len(middle) / sum(middle) if middle else 0.0
