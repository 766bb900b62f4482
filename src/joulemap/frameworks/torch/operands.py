"""Operands for an operation, made up from its signature: values as a program has them, indices that point
somewhere, and nothing that runs into zero or infinity when it is computed over and over."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import zip_longest
from math import prod
from typing import Any

from joulemap.frameworks.torch.caches import SAME
from joulemap.frameworks.torch.call import Call, NotRebuilt
from joulemap.frameworks.torch.fitting import CHOSEN, choose_one, fitted
from joulemap.frameworks.torch.inputs import LIST, TYPES, reach
from joulemap.frameworks.torch.pointing import bounds
from joulemap.frameworks.torch.rotation import counted, tensors_in

KEEPS_ITS_VALUES = ("mul_", "div_", "_foreach_mul_", "_foreach_div_")
"""In place, over and over, these would run into zero or infinity, which draw less: they are given ones for
their factors, be these numbers or tensors."""
_ROOTS = ("sqrt", "rsqrt", "log", "log2", "log10", "poisson")
"""Of numbers below zero these are none, which takes longer and draws less; so are broken powers."""
_CHANCES = (
    *("bernoulli", "multinomial", "binary_cross_entropy", "binary_cross_entropy_backward"),
    *("fractional_max_pool2d", "fractional_max_pool3d"),
)
_ORDERS = ("sort", "argsort", "topk", "kthvalue", "median", "unique", "unique2", "searchsorted", "bucketize")
"""What these do goes by the values of whole numbers."""
_DIVIDE = ("div", "floor_divide", "remainder", "fmod")
_NUMBERS = 100
"""Whole numbers that are no indices stay below; every type has room for it."""


def made_up(call: Call, device: Any) -> list[Any]:
    """An argument for each that was given, made anew."""
    arguments = _with_same([_argument(call, place, device) for place in range(len(call.types))], call.cold)
    arguments = fitted(call, arguments)
    if call.name in KEEPS_ITS_VALUES:
        arguments = [*arguments[:1], *map(_one, arguments[1:])]
    return arguments


def with_choice(call: Call, made: partial[Any]) -> None:
    """Where a call holds what the program did, and that has next to no gradient: pieces of it may well have
    missed the one that was chosen, without which the result would be nothing."""
    if call.name == CHOSEN and 2 * int(made.args[0].count_nonzero()) < made.args[0].numel():
        choose_one(*made.args[:3:2])


def with_ones(call: Call, made: partial[Any]) -> None:
    """Where a call multiplies in place and its tensors hold what the program's did: factors hold ones again,
    and what is multiplied by itself does."""
    if call.name in KEEPS_ITS_VALUES:
        for value in (*made.args[1:], *made.keywords.values()):
            _one(value)


def _with_same(arguments: list[Any], cold: str) -> list[Any]:
    """With one tensor for two that are the same in the program: a square of gradients reads them once."""
    if SAME not in cold:
        return arguments
    letters, before = iter(cold), list[Any]()
    found = []
    for given in arguments:
        some = given if isinstance(given, list) else [given]
        own = [next(letters, "") if counted(tensors_in(one)) else "" for one in some]
        pairs = zip_longest(some, own, before[: len(some)])
        some = [earlier if letter == SAME and _alike(one, earlier) else one for one, letter, earlier in pairs]
        before = some if any(own) else before
        found.append(some if isinstance(given, list) else some[0])
    return found


def _alike(one: Any, other: Any) -> bool:
    """Whether two tensors may stand for each other; other calls of the same shapes may have other strides."""
    if other is None:
        return False
    return bool((one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype))


def _one(value: Any) -> Any:
    """Ones instead of a factor or several; a tensor holds them in all of its memory."""
    import torch

    if isinstance(value, torch.Tensor):
        value.detach().as_strided((reach(value.shape, value.stride()),), (1,)).fill_(1)
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return type(value)(1)
    return [_one(each) for each in value] if isinstance(value, list) else value


def _argument(call: Call, place: int, device: Any) -> Any:
    kind = call.types[place]
    shape = call.at(call.shapes, place, [])
    stride = call.at(call.strides, place, None) if any(call.strides) else None  # else none was recorded
    if isinstance(kind, list):
        strides = stride or [None] * len(shape)
        return [_tensor(call, place, *one, device) for one in zip(shape, strides, kind, strict=True)]
    if kind in TYPES:
        return _tensor(call, place, shape, stride, kind, device)
    if kind in ("Scalar", "ScalarList", ""):
        return call.at(call.scalars, place, None)
    if kind == LIST:
        if shape:
            raise NotRebuilt("the types of the tensors in its lists were not recorded")
        return []
    raise NotRebuilt(f"it takes {kind!r}, which cannot be made up")


def _tensor(
    call: Call, place: int, shape: Sequence[int], stride: Sequence[int] | None, kind: str, device: Any
) -> Any:
    """Values as a program has them: a normal distribution, and indices that point somewhere. ``stride`` is
    None where it was not recorded."""
    import torch

    if kind not in TYPES:
        raise NotRebuilt(f"it takes tensors of {kind!r}, which cannot be made up")
    if stride is not None and len(stride) != len(shape):
        raise NotRebuilt("it takes a tensor without strides: a sparse one, which cannot be made up")
    dtype, name = getattr(torch, TYPES[kind]), call.name.strip("_")
    size = prod(shape) if stride is None else reach(shape, stride)
    memory = torch.empty([size], dtype=dtype, device=device)
    if dtype == torch.bool:
        memory.random_(0, 2)
    elif dtype.is_floating_point or dtype.is_complex:
        memory.copy_(torch.randn(memory.shape, dtype=torch.float32, device=device))
    elif (inside := bounds(call, place, kind)) is not None:
        memory.random_(*inside)
    elif name in _ORDERS:
        memory.random_()
    else:
        memory.random_(int(name in _DIVIDE), _NUMBERS)
    if dtype.is_floating_point and name in _CHANCES:
        memory.uniform_()
    elif dtype.is_floating_point and _is_root(call, name.rpartition("_")[2]):
        memory.abs_()
    return memory.view(tuple(shape)) if stride is None else memory.as_strided(shape, stride)


def _is_root(call: Call, name: str) -> bool:
    broken = any(isinstance(one, float) and not one.is_integer() for one in call.scalars)
    return name in _ROOTS or (name == "pow" and broken)
