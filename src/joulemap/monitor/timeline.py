"""The time of a recording: epoch nanoseconds that never jump.

The system clock can be stepped while a program runs, and a trace with a torn axis is worthless. So the two
clocks are paired once, at the start, and from then on time goes by the monotonic clock alone. The system
clock is only watched: how far it has gone away is kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from joulemap.traces import ClockAnchor

SYSTEM_CLOCK = "system clock"
_TRIES = 5


@dataclass(frozen=True)
class Timeline:
    """Epoch time by the monotonic clock, as it was set when the timeline started."""

    start_ns: int
    offset_ns: int
    monotonic_ns: Callable[[], int]
    system_ns: Callable[[], int]

    @classmethod
    def start(
        cls,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        system_ns: Callable[[], int] = time.time_ns,
    ) -> Timeline:
        """Pair the clocks, now."""
        offset_ns = _offset_ns(monotonic_ns, system_ns)
        return cls(offset_ns + monotonic_ns(), offset_ns, monotonic_ns, system_ns)

    def now_ns(self) -> int:
        """Now, in nanoseconds since 1970 as the system clock saw it at the start."""
        return self.offset_ns + self.monotonic_ns()

    def system_ahead_ns(self) -> int:
        """How far the system clock is ahead of this timeline by now: drift, and steps."""
        return _offset_ns(self.monotonic_ns, self.system_ns) - self.offset_ns

    def anchor(self) -> ClockAnchor:
        """The system clock, paired with this timeline at the start and now."""
        now_ns = self.now_ns()
        system_ns = now_ns + self.system_ahead_ns()
        return ClockAnchor(SYSTEM_CLOCK, self.start_ns, self.start_ns, system_ns, now_ns)


def _offset_ns(monotonic_ns: Callable[[], int], system_ns: Callable[[], int]) -> int:
    """System clock less monotonic clock, from the try that was interrupted least."""
    tries = []
    for _ in range(_TRIES):
        before, system, after = monotonic_ns(), system_ns(), monotonic_ns()
        tries.append((after - before, system - (before + after) // 2))
    return min(tries)[1]
