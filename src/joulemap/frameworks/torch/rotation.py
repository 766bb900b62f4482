"""Operands that take turns, so that none is still in a cache from the time before: in a program others have
run since. Their memory is bounded."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from joulemap.frameworks.torch.inputs import is_number, reach, type_word

MOST = 64
TIMES = 3
"""All copies together are so many times the cache's size."""
_UNITS = {"K": 1024, "M": 1024**2}
SHARE = 0.25
"""What they may take of the memory that is free."""


def copies(first: Callable[[], Any], device: Any, cold: str = "") -> int:
    """How many operands an operation is to have, of which these are the first; one is enough where a program
    has all of them in its cache."""
    if cold and "1" not in cold:
        return 1
    size = size_of(_of(tensors_in(first), cold, "1")) if cold else size_of(first)
    return wanted(size, cache_bytes(device), free_bytes(device))


def with_warm(copy: Any, first: Any, cold: str) -> Any:
    """A call with operands of its own, except for those that a program has in its cache: these are the first
    one's, so that they stay there."""
    if "0" not in cold:
        return copy
    pairs = zip(_of(tensors_in(copy), cold, "0"), _of(tensors_in(first), cold, "0"), strict=True)
    return with_tensors(copy, {id(mine): its for mine, its in pairs})


def with_tensors(call: Any, instead: Mapping[int, Any]) -> Any:
    """The same call, or the same values, with other tensors for some, by identity."""
    import torch

    if isinstance(call, torch.Tensor):
        return instead.get(id(call), call)
    if isinstance(call, partial):
        named = {name: with_tensors(value, instead) for name, value in call.keywords.items()}
        return partial(call.func, *with_tensors(call.args, instead), **named)
    if isinstance(call, (list, tuple)) and tensors_in(call):
        made = [with_tensors(one, instead) for one in call]
        return type(call)(*made) if hasattr(call, "_fields") else type(call)(made)
    return call


def tensors_in(call: Any) -> list[Any]:
    """All tensors of a call, or of values, in order."""
    import torch

    if isinstance(call, torch.Tensor):
        return [call]
    if isinstance(call, partial):
        return tensors_in((*call.args, *call.keywords.values()))
    return [one for part in call for one in tensors_in(part)] if isinstance(call, (list, tuple)) else []


def counted(tensors: Sequence[Any]) -> list[Any]:
    """Those that count as operands: not numbers that PyTorch has made a tensor of."""
    return [one for one in tensors if not is_number(one.shape, type_word(one.dtype))]


def copied(tensor: Any) -> Any:
    """A tensor like another, which lies in memory as that does."""
    if not tensor.numel():
        return tensor
    whole = tensor.detach().as_strided((reach(tensor.shape, tensor.stride()),), (1,))
    return whole.clone().as_strided(tensor.shape, tensor.stride())


def _of(tensors: Sequence[Any], cold: str, which: str) -> list[Any]:
    return [one for one, letter in zip(counted(tensors), cold, strict=False) if letter == which]


def wanted(size: int, cache: int, free: int) -> int:
    """As many as overflow the cache, ``MOST`` at most, and no more than free memory allows; one at least."""
    size = max(size, 1)
    return max(min(-(-TIMES * cache // size), MOST, int(SHARE * free) // size), 1)


def size_of(operands: Any) -> int:
    """The bytes of all tensors in a call, or in what it was given."""
    return sum(reach(one.shape, one.stride()) * int(one.element_size()) for one in tensors_in(operands))


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
