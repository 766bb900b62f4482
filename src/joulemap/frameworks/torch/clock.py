"""How fast a GPU runs: a kernel of one thread that counts clocks, timed now and then.

Clocks change within a long step: what draws much lowers them, and some ten milliseconds later they are up
again. So they are looked at throughout, and count for as long as it is to the next look.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from joulemap.frameworks.torch import gpus

CYCLES = 30_000
"""Fifteen microseconds: nothing to a step."""
LOOKS = 6
"""So often in a step, beside its beginning."""
ODD = 5
"""Percent of the looks on either side that something may have come between: they count as the others."""
USUAL_MHZ = 1500.0


@dataclass(frozen=True, slots=True)
class Looked:
    """The mean clock of some steps, 0 where it was not looked at, and how long all looking took."""

    clock_mhz: float = 0.0
    seconds: float = 0.0


class Clock:
    """Is told of the beginnings of steps and of operations in them, and says their mean clocks afterwards. It
    is right only where the GPU has more to do than the host can launch: otherwise launching is in the time.
    With ``wait_s`` the GPU goes on counting for about so long, and does nothing else."""

    def __init__(self) -> None:
        self.wait_s = 0.0
        self._looks: list[tuple[Any, ...]] = []
        self._waits: dict[int, tuple[Any, ...]] = {}
        self._heard, self._each = 0, 0

    def begin(self) -> None:
        """A step begins; the next one has about as many operations."""
        self._each, self._heard = self._heard // LOOKS, 0
        self.look()
        if self.wait_s and self._looks:
            self._waits[len(self._looks) - 1] = _counted(round(self.wait_s * USUAL_MHZ * 1e6))

    def hear(self) -> None:
        """An operation of the step is about to be executed."""
        self._heard += 1
        if self._each and not self._heard % self._each:
            self.look()

    def look(self) -> None:
        """Have the GPU count, and go on."""
        if gpus.in_use() and not gpus.captures():
            self._looks.append(_counted(CYCLES, 1))

    def take(self) -> Looked:
        """Of the steps since this was last asked, which the GPU has done by now. What it takes to count to
        one is the launch's, which the counting has in it, too."""
        looks, waits, self._looks, self._waits = self._looks, self._waits, [], {}
        if not looks:
            return Looked()
        begins, mids, ends = zip(*looks, strict=True)
        waited_ms = np.zeros(len(looks))
        for number, (begin, end) in waits.items():
            waited_ms[number] = begin.elapsed_time(end)
        took_ms = np.array([begin.elapsed_time(end) for begin, end in zip(begins, ends, strict=True)])
        launch_ms = np.array([mid.elapsed_time(end) for mid, end in zip(mids, ends, strict=True)])
        apart_ms = np.array([a.elapsed_time(b) for a, b in pairwise(begins)])
        lasts_ms = np.append(apart_ms, np.median(apart_ms) if len(looks) > 1 else 1.0) - waited_ms
        counted_ms = took_ms - 2 * launch_ms
        counted_ms = np.clip(counted_ms, *np.percentile(counted_ms, [ODD, 100 - ODD]))
        clock_mhz = np.average((CYCLES - 1) / (1e3 * counted_ms), weights=np.maximum(lasts_ms, 0.0))
        return Looked(float(clock_mhz), float((took_ms + waited_ms).sum()) / 1e3)


def _counted(*cycles: int) -> tuple[Any, ...]:
    """Events around so many cycles each."""
    import torch

    events = [torch.cuda.Event(enable_timing=True) for _ in range(len(cycles) + 1)]
    events[0].record()
    for count, event in zip(cycles, events[1:], strict=True):
        torch.cuda._sleep(count)
        event.record()
    return tuple(events)
