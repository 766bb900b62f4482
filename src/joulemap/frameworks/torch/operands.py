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
from joulemap.frameworks.torch.inputs import LIST, TYPES, reach
from joulemap.frameworks.torch.rotation import counted, tensors_in

KEEPS_ITS_VALUES = ("mul_", "div_", "_foreach_mul_", "_foreach_div_")
"""In place, over and over, these would run into zero or infinity, which draw less: they are given ones for
their factors, be these numbers or tensors."""
_ROOTS = ("sqrt", "rsqrt", "log")
_CHANCES = ("bernoulli", "multinomial", "binary_cross_entropy", "binary_cross_entropy_backward")
_ORDERS = ("sort", "argsort", "topk", "kthvalue", "median", "unique", "unique2", "searchsorted", "bucketize")
"""What these do goes by the values of whole numbers."""
_DIVIDE = ("div", "floor_divide", "remainder", "fmod")
_TABLES = ("float", "double", "c10::Half", "c10::BFloat16")
_ALONG = {
    "index_select": (0, 1),
    "index_add": (0, 1),
    "index_copy": (0, 1),
    "index_fill": (0, 1),
    "gather": (0, 1),
    "scatter": (0, 1),
    "scatter_add": (0, 1),
    "scatter_reduce": (0, 1),
    "take_along_dim": (0, 2),
}
"""Where the table is that indices point into, and where the dimension along which they do."""
_OF_CLASSES = ("nll_loss", "cross_entropy")
_ALONG_ANY = (*_OF_CLASSES, "gather", "scatter", "index_", "take_along_dim")
_POOLED = "max_pool2d_with_indices_backward"
_CHOSEN = "_log_softmax_backward_data"
_DROPPED = "native_dropout_backward"
_IN_BAGS = ("embedding_bag", "_embedding_bag", "_embedding_bag_forward_only")
_WITH_END = 7
"""The argument of these that says whether the end of the last bag is given, too."""


def made_up(call: Call, device: Any) -> list[Any]:
    """An argument for each that was given, made anew."""
    arguments = _with_same([_argument(call, place, device) for place in range(len(call.types))], call.cold)
    if call.name == _POOLED:
        arguments[-1] = _where_pooled(arguments)
    if call.name == _CHOSEN:
        _choose_one(*arguments[:3:2])
    if call.name == _DROPPED:
        _let_through(*arguments[1:])
    if call.name in _IN_BAGS:
        with_end = len(arguments) > _WITH_END and bool(arguments[_WITH_END])
        _fill_bags(arguments[1], arguments[2], with_end)
    if call.name in KEEPS_ITS_VALUES:
        arguments = [*arguments[:1], *map(_one, arguments[1:])]
    return arguments


def with_choice(call: Call, made: partial[Any]) -> None:
    """Where a call holds what the program did, and that has next to no gradient: pieces of it may well have
    missed the one that was chosen, without which the result would be nothing."""
    if call.name == _CHOSEN and 2 * int(made.args[0].count_nonzero()) < made.args[0].numel():
        _choose_one(*made.args[:3:2])


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


def _where_pooled(arguments: Sequence[Any]) -> Any:
    """Where the largest values were, one in each window: any others would be written to elsewhere."""
    import torch

    return torch.ops.aten.max_pool2d_with_indices(*arguments[1:-1])[1]


def _choose_one(gradient: Any, dimension: int) -> None:
    """Of a loss that asks for one of many: all others have no gradient, which draws less. One that was
    expanded has the same for all."""
    if gradient.dim() and 0 not in gradient.stride():
        gradient.zero_().narrow(dimension, 0, 1).fill_(-1.0)


def _let_through(mask: Any, scale: float) -> None:
    """As many as the program's dropout did, which makes up for the others."""
    mask.bernoulli_(1 / scale if scale and scale > 1 else 1.0)


def _fill_bags(indices: Any, offsets: Any, with_end: bool) -> None:
    """Where each bag of indices begins: the first with the first of them, and all with as many."""
    import torch

    many = max(offsets.numel() - with_end, 1)
    offsets.copy_(torch.arange(offsets.numel(), device=offsets.device) * indices.numel() // many)


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
        return [_tensor(call, *one, device) for one in zip(shape, strides, kind, strict=True)]
    if kind in TYPES:
        return _tensor(call, shape, stride, kind, device)
    if kind in ("Scalar", "ScalarList", ""):
        return call.at(call.scalars, place, None)
    if kind == LIST:
        if shape:
            raise NotRebuilt("the types of the tensors in its lists were not recorded")
        return []
    raise NotRebuilt(f"it takes {kind!r}, which cannot be made up")


def _rows(call: Call) -> int:
    """How far indices may go: to the end of the table that they point into. Where that is not known, to the
    end of the shortest table or, where they may go along any dimension, of the shortest dimension. One too
    far would break a GPU's context."""
    name = call.name.rstrip("_")
    if name == "embedding_dense_backward":
        return int(call.scalars[2])
    if name.startswith(_OF_CLASSES):
        scores = call.shapes["backward" in name]
        return max(int(scores[min(1, len(scores) - 1)]) if scores else 1, 1)
    table, dimension = _ALONG.get(name, (0, 0))
    along = call.at(call.scalars, dimension, None)
    if name in _ALONG and isinstance(along, int) and call.shapes[table]:
        return max(int(call.shapes[table][along]), 1)
    tables = [
        shape if name.startswith(_ALONG_ANY) else shape[:1]
        for shape, kind in zip(call.shapes, call.types, strict=False)
        if kind in _TABLES and shape and isinstance(shape[0], int)
    ]
    return max(min((size for table in tables for size in table), default=2), 1)


def _tensor(call: Call, shape: Sequence[int], stride: Sequence[int] | None, kind: str, device: Any) -> Any:
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
    elif name in _ORDERS:
        memory.random_()
    elif name in _DIVIDE:
        memory.random_(1, 100)
    else:
        memory.random_(0, _rows(call))
    if dtype.is_floating_point and name in _CHANCES:
        memory.uniform_()
    elif dtype.is_floating_point and name.rpartition("_")[2] in _ROOTS:
        memory.abs_()
    return memory.view(tuple(shape)) if stride is None else memory.as_strided(shape, stride)
