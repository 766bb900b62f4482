"""How fast a GPU runs: a kernel of one thread that counts clocks, timed now and then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from joulemap.frameworks.torch import gpus

CYCLES = 150_000
"""Less than a tenth of a millisecond: nothing to a step."""
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
        self._looks: list[tuple[Any, ...]] = []
        self._waits: list[tuple[Any, ...]] = []

    def look(self) -> None:
        """Have the GPU count, and go on."""
        if not gpus.in_use() or gpus.captures():
            return
        self._looks.append(_counted(CYCLES, 1))
        if self.wait_s:
            self._waits.append(_counted(round(self.wait_s * USUAL_MHZ * 1e6)))

    def take(self) -> Looked:
        """Of the steps since this was last asked, which the GPU has done by now. Clocks are those of the
        middle half of them: something may have come between. What it takes to count to one is the launch's,
        which the counting has in it, too."""
        looks, waits, self._looks, self._waits = self._looks, self._waits, [], []
        if not looks:
            return Looked()
        took_us = [1e3 * begin.elapsed_time(end) for begin, _, end in looks]
        waited_us = [1e3 * begin.elapsed_time(end) for begin, end in waits]
        counted_ms = sorted(begin.elapsed_time(mid) - mid.elapsed_time(end) for begin, mid, end in looks)
        middle = counted_ms[len(looks) // 4 : len(looks) - len(looks) // 4]
        clock_mhz = (CYCLES - 1) * len(middle) / (1e3 * sum(middle))
        return Looked(clock_mhz, sum(took_us + waited_us) / 1e6)


def _counted(*cycles: int) -> tuple[Any, ...]:
    """Events around so many cycles each."""
    import torch

    events = [torch.cuda.Event(enable_timing=True) for _ in range(len(cycles) + 1)]
    events[0].record()
    for count, event in zip(cycles, events[1:], strict=True):
        torch.cuda._sleep(count)
        event.record()
    return tuple(events)
