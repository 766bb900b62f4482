"""How well the monitor kept its own deadlines, and what it cost."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from joulemap.units import NS_PER_S

_BIN_NS, _BINS = 10_000, 10_000  # 10 µs each; the last one holds everything from 0.1 s on


@dataclass(frozen=True, slots=True)
class Quality:
    """``late_*_s``: how long after its deadline a reading began. ``missed``: deadlines that passed without
    a reading. ``cpu_s``: processor time of the monitor in ``span_s``."""

    reads: int
    failed: int
    missed: int
    late_p50_s: float
    late_p99_s: float
    cpu_s: float
    span_s: float

    @property
    def cpu_share(self) -> float:
        """Of one core."""
        return self.cpu_s / self.span_s if self.span_s > 0 else 0.0


@dataclass(slots=True)
class Tally:
    """What is counted at every reading: how late it began, what failed, and deadlines that passed."""

    late_ns: list[int] = field(default_factory=list)
    failed: int = 0
    missed: int = 0

    def late(self, late_ns: int, grid_ns: int) -> None:
        """A reading began so long after its deadline; ``grid_ns`` is the distance of deadlines, 0 where
        they have none."""
        self.late_ns.append(late_ns)
        if late_ns > grid_ns > 0:
            self.missed += late_ns // grid_ns


@dataclass(slots=True)
class Score:
    """Adds up tallies from ``start_ns`` on, in fixed memory. The processor time is that of all threads."""

    start_ns: int
    cpu_now_s: Callable[[], float] = time.process_time
    failed: int = 0
    missed: int = 0
    cpu_start_s: float = field(init=False)
    _bins: Counter[int] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.cpu_start_s = self.cpu_now_s()

    def add(self, tally: Tally) -> None:
        """Add what was counted."""
        self.failed += tally.failed
        self.missed += tally.missed
        self._bins.update(np.clip(np.asarray(tally.late_ns, np.int64) // _BIN_NS, 0, _BINS - 1).tolist())

    def quality(self, now_ns: int) -> Quality:
        """In figures, so far."""
        p50, p99 = self._late_s(0.5), self._late_s(0.99)
        cpu_s, span_s = self.cpu_now_s() - self.cpu_start_s, (now_ns - self.start_ns) / NS_PER_S
        return Quality(self._bins.total(), self.failed, self.missed, p50, p99, cpu_s, span_s)

    def _late_s(self, share: float) -> float:
        """How late this share of the readings was at most."""
        left = share * self._bins.total()
        for number in sorted(self._bins):
            left -= self._bins[number]
            if left <= 0:
                return number * _BIN_NS / NS_PER_S
        return 0.0
