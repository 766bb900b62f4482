"""Where the monitor sits: on processors that others leave free.

A thread that is to be on time (``SCHED_FIFO``) wakes on the processor that it slept on, and takes it from
whoever is there, although another one has nothing to do. A program of one thread would pay for all of the
monitor that way, for as long as the two happen to meet.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

FREE = 0.5
"""A processor that was idle for this share of the time is free enough."""

_THREADS = Path("/proc/self/task")
_IDLE = slice(3, 5)  # idle, and idle while the disk works
_ALL = slice(0, 8)  # guests are counted as user time already

Ticks = Mapping[int, tuple[int, int]]
"""Of each processor, those that it was idle for, and all."""


class Seat:
    """Looks at ``/proc`` when asked, and moves every thread of this process."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._stat = proc / "stat"
        self._allowed = self._taken = os.sched_getaffinity(0)
        self._ticks = _ticks(self._stat)

    def move(self) -> None:
        """To the processors that were free since it was last asked; where none was, any will do."""
        before, self._ticks = self._ticks, _ticks(self._stat)
        free = {cpu for cpu in self._allowed if _idle_share(before, self._ticks, cpu) >= FREE}
        if (free or self._allowed) != self._taken:
            self._take(free or self._allowed)

    def _take(self, cpus: set[int]) -> None:
        """Threads that are started later begin where the one is that starts them."""
        self._taken = cpus
        for thread in _THREADS.iterdir():
            with suppress(OSError):  # it has ended, or these processors are no longer ours
                os.sched_setaffinity(int(thread.name), cpus)


def _idle_share(before: Ticks, now: Ticks, cpu: int) -> float:
    """None of the time where nothing is known of a processor."""
    (idle_before, all_before), (idle, total) = before.get(cpu, (0, 0)), now.get(cpu, (0, 0))
    return (idle - idle_before) / (total - all_before) if total > all_before else 0.0


def _ticks(stat: Path) -> Ticks:
    found: dict[int, tuple[int, int]] = {}
    with suppress(OSError, ValueError):
        for line in stat.read_bytes().splitlines()[1:]:
            name, *words = line.split()
            if not name.startswith(b"cpu"):
                break
            ticks = [int(word) for word in words]
            found[int(name[3:])] = sum(ticks[_IDLE]), sum(ticks[_ALL])
    return found
