"""Pipes between a program and those beside it."""

from __future__ import annotations

import math
import select


def is_readable(handle: int, seconds: float) -> bool:
    """Whether a descriptor has something to read, or has ended, within so many seconds. Not by ``select``,
    which knows none above 1023: a program may have opened that many files."""
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(math.ceil(seconds * 1000)))
