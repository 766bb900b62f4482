"""How fast a GPU runs: a kernel of one thread that counts clocks, timed once a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from joulemap.frameworks.torch import gpus

CYCLES = 150_000
"""Less than a tenth of a millisecond: long against what a launch takes, and nothing to a step."""
USUAL_MHZ = 1500.0


@dataclass(frozen=True, slots=True)
class Looked:
    """The mean clock of some steps, 0 where it was not looked at, and how long all looking took."""

    clock_mhz: float = 0.0
    seconds: float = 0.0


class Clock:
    """Is asked at the beginnings of steps, and says their mean clocks afterwards. It is right only where the
    GPU has more to do than the host can launch: otherwise launching is in the time. With ``wait_s`` the GPU
    goes on counting for about so long, and does nothing else."""

    def __init__(self) -> None:
        self.wait_s = 0.0
        self._pairs: list[tuple[Any, Any]] = []
        self._waits: list[tuple[Any, Any]] = []

    def look(self) -> None:
        """Have the GPU count, and go on."""
        if not gpus.in_use() or gpus.captures():
            return
        self._pairs.append(_counted(CYCLES))
        if self.wait_s:
            self._waits.append(_counted(round(self.wait_s * USUAL_MHZ * 1e6)))

    def take(self) -> Looked:
        """Of the steps since this was last asked, which the GPU has done by now. Clocks are those of the
        middle half of them: something may have come between."""
        pairs, waits, self._pairs, self._waits = self._pairs, self._waits, [], []
        if not pairs:
            return Looked()
        took_us = sorted(1e3 * before.elapsed_time(after) for before, after in pairs)
        waited_us = [1e3 * before.elapsed_time(after) for before, after in waits]
        middle = took_us[len(took_us) // 4 : len(took_us) - len(took_us) // 4]
        return Looked(CYCLES * len(middle) / sum(middle), sum(took_us + waited_us) / 1e6)


def _counted(cycles: int) -> tuple[Any, Any]:
    """Events before and after so many cycles."""
    import torch

    before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    before.record()
    torch.cuda._sleep(cycles)
    after.record()
    return before, after
