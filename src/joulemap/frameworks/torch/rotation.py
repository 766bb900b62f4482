"""Operands that take turns, so that none is still in a cache from the time before: in a program others have
run since. Their memory is bounded."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

MOST = 64
TIMES = 3
"""All copies together are so many times the cache's size."""
_UNITS = {"K": 1024, "M": 1024**2}
SHARE = 0.25
"""What they may take of the memory that is free."""


def copies(first: Callable[[], Any], device: Any) -> int:
    """How many operands an operation is to have, of which these are the first."""
    return wanted(size_of(first), cache_bytes(device), free_bytes(device))


def wanted(size: int, cache: int, free: int) -> int:
    """As many as overflow the cache, ``MOST`` at most, and no more than free memory allows; one at least."""
    size = max(size, 1)
    return max(min(-(-TIMES * cache // size), MOST, int(SHARE * free) // size), 1)


def size_of(operands: Any) -> int:
    """The bytes of all tensors in a call, or in what it was given."""
    import torch

    if isinstance(operands, torch.Tensor):
        return int(operands.numel() * operands.element_size())
    if isinstance(operands, partial):
        return size_of((*operands.args, *operands.keywords.values()))
    return sum(map(size_of, operands)) if isinstance(operands, (list, tuple)) else 0


def cache_bytes(device: Any, of_cpu: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    """The largest cache before the memory; none where the system does not say."""
    import torch

    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).L2_cache_size)
    sizes = [path.read_text().strip() for path in of_cpu.glob("index*/size")]
    return max((int(size[:-1]) * _UNITS[size[-1]] for size in sizes if size[-1:] in _UNITS), default=0)


def free_bytes(device: Any) -> int:
    """What the device has free, and in torch's own pool."""
    import torch

    if device.type == "cuda":
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info(device)[0])
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
