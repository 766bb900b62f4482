"""An operation, built again from its signature: the same dispatcher call, with operands made up."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Any

from joulemap.frameworks.torch.caches import SAME
from joulemap.frameworks.torch.inputs import LIST, TYPES, reach
from joulemap.frameworks.torch.rotation import counted, tensors_in

_OWN = "aten::"
_AMONG_OTHERS = ("c10d", "_c10d_functional", "symm_mem", "_dtensor")
"""Namespaces of communication: alone, such an operation fails, waits for ever, or does nothing at all."""
_KEEPS_ITS_VALUES = ("mul_", "div_", "_foreach_mul_", "_foreach_div_")
"""In place, over and over, these would run into zero or infinity, which draw less: they are given ones for
their factors, be these numbers or tensors."""
_POSITIVE = ("exp_avg_sqs", "max_exp_avg_sqs", "state_sums", "state_steps")
"""Arguments of fused optimizers that are never negative: their roots are taken."""
_ROOTS = ("sqrt", "rsqrt", "log")
_TABLES = ("float", "double", "c10::Half", "c10::BFloat16")
_ALONG_ANY = ("nll_loss", "gather", "scatter", "index_add", "index_select", "take_along_dim", "cross_entropy")
_POOLED = "max_pool2d_with_indices_backward"
_CHOSEN = "_log_softmax_backward_data"
_IN_BAGS = ("embedding_bag", "_embedding_bag", "_embedding_bag_forward_only")
_WITH_END = 7
"""The argument of these that says whether the end of the last bag is given, too."""
_FACTOR = 1e-3
"""A learning rate, where torch did not say which: before 2.13 it does not record lists of scalars."""


class NotRebuilt(Exception):
    """An operation cannot be called from what is known of it."""


@dataclass(frozen=True, slots=True)
class Call:
    """An operation as it was called; see ``joulemap.calibration.operation``. The type of a list of tensors is
    the list of their types. ``cold`` has a letter for each tensor, where it is known: 1 where it is not in a
    cache, and = where it is the argument before, or in its list the one at the same place."""

    key: str
    op: str
    shapes: Sequence[Any]
    strides: Sequence[Any]
    types: Sequence[Any]
    scalars: Sequence[Any]
    cold: str = ""

    @classmethod
    def of(cls, key: str) -> Call:
        op, shapes, strides, types, scalars, *cold = json.loads(key)
        columns = (json.loads(one) if one else [] for one in (shapes, strides, types, scalars))
        return cls(key, op, *columns, *cold)

    @property
    def name(self) -> str:
        """Without aten's namespace: what is known of its ``mul_`` is not known of another one."""
        return self.op.removeprefix(_OWN)

    def at(self, column: Sequence[Any], place: int, otherwise: Any) -> Any:
        """What a column has for an argument; columns may be short."""
        return column[place] if place < len(column) else otherwise


def rebuilt(call: Call, device: Any) -> partial[Any]:
    """The call with operands of its own, made anew."""
    arguments = _with_same([_argument(call, place, device) for place in range(len(call.types))], call.cold)
    if call.name == _POOLED:
        arguments[-1] = _where_pooled(arguments)
    if call.name == _CHOSEN:
        _choose_one(*arguments[:3:2])
    if call.name in _IN_BAGS:
        with_end = len(arguments) > _WITH_END and bool(arguments[_WITH_END])
        _fill_bags(arguments[1], arguments[2], with_end)
    if call.name in _KEEPS_ITS_VALUES:
        arguments = [*arguments[:1], *map(_one, arguments[1:])]
    problems = []
    for overload in _overloads(call.op):
        positional, named = _as_declared(overload, arguments, _factor(call))
        try:
            overload(*positional, **named)
        except (RuntimeError, TypeError, IndexError) as error:
            problems.append(in_a_line(error))
            continue
        return partial(overload, *positional, **named)
    raise NotRebuilt(problems[0] if problems else f"torch has no {call.op} with {len(arguments)} arguments")


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


def _factor(call: Call) -> float:
    return 1.0 if call.name in _KEEPS_ITS_VALUES else _FACTOR


def _where_pooled(arguments: Sequence[Any]) -> Any:
    """Where the largest values were, one in each window: any others would be written to elsewhere."""
    import torch

    return torch.ops.aten.max_pool2d_with_indices(*arguments[1:-1])[1]


def with_choice(call: Call, made: partial[Any]) -> None:
    """Where a call holds what the program did, and that has next to no gradient: pieces of it may well have
    missed the one that was chosen, without which the result would be nothing."""
    if call.name == _CHOSEN and 2 * int(made.args[0].count_nonzero()) < made.args[0].numel():
        _choose_one(*made.args[:3:2])


def _choose_one(gradient: Any, dimension: int) -> None:
    """Of a loss that asks for one of many: all others have no gradient, which draws less. One that was
    expanded has the same for all."""
    if gradient.dim() and 0 not in gradient.stride():
        gradient.zero_().narrow(dimension, 0, 1).fill_(-1.0)


def _fill_bags(indices: Any, offsets: Any, with_end: bool) -> None:
    """Where each bag of indices begins: the first with the first of them, and all with as many."""
    import torch

    many = max(offsets.numel() - with_end, 1)
    offsets.copy_(torch.arange(offsets.numel(), device=offsets.device) * indices.numel() // many)


def in_a_line(error: Exception) -> str:
    """An error as a reason: what it is, and the first line of what it says, if it says anything. Ours say it
    in words."""
    first = next(iter(str(error).splitlines()), "")[:200]
    kind = "" if isinstance(error, NotRebuilt) else type(error).__name__
    return ": ".join(filter(None, (kind, first)))


def with_ones(call: Call, made: partial[Any]) -> None:
    """Where a call multiplies in place and its tensors hold what the program's did: factors hold ones again,
    and what is multiplied by itself does."""
    if call.name in _KEEPS_ITS_VALUES:
        for value in (*made.args[1:], *made.keywords.values()):
            _one(value)


def _one(value: Any) -> Any:
    """Ones instead of a factor or several; a tensor holds them in all of its memory."""
    import torch

    if isinstance(value, torch.Tensor):
        value.detach().as_strided((reach(value.shape, value.stride()),), (1,)).fill_(1)
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return type(value)(1)
    return [_one(each) for each in value] if isinstance(value, list) else value


def _overloads(op: str) -> list[Any]:
    """What an operation's name may stand for: the profiler does not say which. The plain ones first, those
    that write into a given output last."""
    import torch

    space, _, name = op.rpartition("::")
    if space.startswith(_AMONG_OTHERS):
        raise NotRebuilt(f"{op} is what several processes do together")
    try:
        packet = getattr(getattr(torch.ops, space or "aten"), name)
        names = sorted(packet.overloads(), key=lambda one: "out" in one)
    except (AttributeError, RuntimeError) as error:
        whose = "" if f"{space}::" in ("::", _OWN) else " here: it is the program's own"
        raise NotRebuilt(f"torch has no operation {op}{whose}") from error
    return [getattr(packet, one) for one in names]


def _as_declared(overload: Any, arguments: Sequence[Any], factor: float) -> tuple[list[Any], dict[str, Any]]:
    """Arguments by position, and those that are by name only. What was not given has its default, and numbers
    of a list that torch did not record are ``factor``."""
    positional, named = [], {}
    for declared, given in zip(overload._schema.arguments, arguments, strict=False):
        unknown = given is None and str(declared.type) == "List[number]"
        value: Any = [factor] * len(arguments[0]) if unknown else given
        if declared.name in _POSITIVE and value is not None:
            value = [one.abs() for one in value]
        if declared.kwarg_only:
            named[declared.name] = value
        else:
            positional.append(value)
    return positional, {name: value for name, value in named.items() if value is not None}


def _argument(call: Call, place: int, device: Any) -> Any:
    kind = call.types[place]
    shape, stride = call.at(call.shapes, place, []), call.at(call.strides, place, [])
    if isinstance(kind, list):
        return [
            _tensor(call, *one, device) for one in zip(shape, stride or [[]] * len(shape), kind, strict=True)
        ]
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
    """How far indices may go: to the end of the shortest table or, where they may go along any dimension, of
    the shortest dimension. One too far would break a GPU's context."""
    if call.name == "embedding_dense_backward":
        return int(call.scalars[2])
    tables = [
        shape if call.name.startswith(_ALONG_ANY) else shape[:1]
        for shape, kind in zip(call.shapes, call.types, strict=False)
        if kind in _TABLES and shape and isinstance(shape[0], int)
    ]
    return max(min((size for table in tables for size in table), default=2), 1)


def _tensor(call: Call, shape: Sequence[int], stride: Sequence[int], kind: str, device: Any) -> Any:
    """Values as a program has them: a normal distribution, and indices that point somewhere."""
    import torch

    if kind not in TYPES:
        raise NotRebuilt(f"it takes tensors of {kind!r}, which cannot be made up")
    dtype = getattr(torch, TYPES[kind])
    strided = len(stride) == len(shape) and 0 not in shape
    memory = torch.empty([reach(shape, stride)] if strided else shape, dtype=dtype, device=device)
    if dtype == torch.bool:
        memory.random_(0, 2)
    elif dtype.is_floating_point or dtype.is_complex:
        memory.copy_(torch.randn(memory.shape, dtype=torch.float32, device=device))
    else:
        memory.random_(0, _rows(call))
    if call.name.strip("_").rpartition("_")[2] in _ROOTS and dtype.is_floating_point:
        memory.abs_()
    return memory.as_strided(shape, stride) if strided else memory
