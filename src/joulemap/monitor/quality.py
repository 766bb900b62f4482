"""How well the monitor kept its own deadlines, and what it cost."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from joulemap.traces import Int64
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
class Score:
    """Counts readings from ``start_ns`` on, by how late they were, in fixed memory."""

    start_ns: int
    cpu_now_s: Callable[[], float] = time.process_time
    late_ns: list[int] = field(default_factory=list)
    failed: int = 0
    missed: int = 0
    cpu_start_s: float = field(init=False)
    _bins: Int64 = field(default_factory=lambda: np.zeros(_BINS, np.int64))

    def __post_init__(self) -> None:
        self.cpu_start_s = self.cpu_now_s()

    def add(self, other: Score) -> None:
        """Add what another one counted."""
        self.failed += other.failed
        self.missed += other.missed
        self._bins += other.bins()

    def bins(self) -> Int64:
        """Readings by their lateness."""
        bins = np.clip(np.asarray(self.late_ns, np.int64) // _BIN_NS, 0, _BINS - 1)
        self._bins += np.bincount(bins, minlength=_BINS)
        self.late_ns = []
        return self._bins

    def quality(self, now_ns: int) -> Quality:
        """In figures, so far."""
        below = np.cumsum(self.bins())
        p50, p99 = (float(np.searchsorted(below, q * below[-1]) * _BIN_NS / NS_PER_S) for q in (0.5, 0.99))
        cpu_s, span_s = self.cpu_now_s() - self.cpu_start_s, (now_ns - self.start_ns) / NS_PER_S
        return Quality(int(below[-1]), self.failed, self.missed, p50, p99, cpu_s, span_s)
