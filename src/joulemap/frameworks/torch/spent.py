"""Processor time, read off as a replay begins and ends: this process's own, and that of everything."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

STAT = Path("/proc/stat")
_BUSY = (0, 1, 2, 5, 6)
"""User (which includes guests), nice, system, irq, softirq: not idle, waiting, or a hypervisor's others."""

_FIRST_LINE = 512


def spent(device: Any, stat: Path = STAT) -> list[list[float]]:
    """One reading, where ``device`` is a CPU: when (epoch ns), and the seconds of this process and of all by
    then. None where the system does not say, or the device is another one, which nobody shares."""
    if device.type != "cpu":
        return []
    try:
        with stat.open("rb", buffering=0) as file:  # hundreds of lines follow the first
            every = file.read(_FIRST_LINE).partition(b"\n")[0].split()[1:]
        all_s = sum(int(every[field]) for field in _BUSY) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return []
    return [[time.time_ns(), time.process_time(), all_s]]
