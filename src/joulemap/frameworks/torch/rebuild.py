"""An operation, built again from its signature: the same dispatcher call, with operands made up.

The profiler tells an operation's name and not which of its overloads was called, but all that was given to
it: an overload that takes as many arguments of such types is the one. One that takes fewer would compute
something else, such as the largest value of all instead of each row's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from joulemap.frameworks.torch.call import OWN, Call, NotRebuilt, in_a_line
from joulemap.frameworks.torch.fitting import LENGTHS
from joulemap.frameworks.torch.inputs import LIST, TYPES
from joulemap.frameworks.torch.operands import KEEPS_ITS_VALUES, made_up
from joulemap.frameworks.torch.rotation import copied

_AMONG_OTHERS = ("c10d", "_c10d_functional", "symm_mem", "_dtensor")
"""Namespaces of communication: alone, such an operation fails, waits for ever, or does nothing at all."""
_POSITIVE = ("exp_avg_sqs", "max_exp_avg_sqs", "state_sums", "state_steps")
"""Arguments of fused optimizers that are never negative: their roots are taken."""
_SETTLES = (
    *("silu_", "gelu_", "mish_", "hardswish_", "elu_", "leaky_relu_", "sigmoid_", "tanh_", "softplus_"),
    *("exp_", "expm1_", "log_", "log1p_", "log2_", "sqrt_", "rsqrt_", "square_", "pow_", "reciprocal_"),
)
"""In place, over and over, these run into zero, one or infinity: they write beside what they are given."""
_LISTS = ("List[int]", "List[float]", "List[bool]")
"""These are None only where they were not recorded."""
_NODE = re.compile(
    r"(autograd::engine::|torch::autograd::).*|[A-Z]\w*Backward\d*"
    r"|AccumulateGrad|CopyBackwards|CopySlices|GraphRoot"
)
"""What autograd calls its nodes."""
_FACTOR = 1e-3
"""A learning rate, where torch did not say which: before 2.13 it does not record lists of scalars."""


def rebuilt(call: Call, device: Any) -> partial[Any]:
    """The call with operands of its own, made anew."""
    problems = []
    for overload in _overloads(call):
        try:
            made = _made(overload, call, device)
        except NotRebuilt as error:
            problems.append(str(error))
            continue
        return _beside(call, made)
    raise NotRebuilt(problems[0] if problems else f"torch has no {call.op} that takes what it was given")


def _made(overload: Any, call: Call, device: Any) -> partial[Any]:
    """The call of one overload, which has been tried. No memory for operands is another error."""
    _all_recorded(overload, call)
    positional, named = _as_declared(overload, made_up(_of(overload, call), device), _factor(call))
    try:
        overload(*positional, **named)
    except (RuntimeError, TypeError, IndexError) as error:
        raise NotRebuilt(in_a_line(error)) from error
    return partial(overload, *positional, **named)


def _factor(call: Call) -> float:
    return 1.0 if call.name in KEEPS_ITS_VALUES else _FACTOR


def _beside(call: Call, made: partial[Any]) -> partial[Any]:
    """The same, written into another tensor, where in place it would change what it works on for good."""
    import torch

    if call.name not in _SETTLES:
        return made
    packet, into = getattr(torch.ops.aten, call.name.rstrip("_")), copied(made.args[0])
    for overload in [getattr(packet, one) for one in packet.overloads()]:
        declared = overload._schema.arguments
        if declared[-1].is_out and len(declared) == len(call.types) + 1:
            beside = partial(overload, *made.args, **made.keywords, out=into)
            try:
                beside()
            except (RuntimeError, TypeError):
                continue
            return beside
    return made


def _overloads(call: Call) -> list[Any]:
    """What an operation's name may stand for, given so much. The plain ones first, those that write into a
    given output last."""
    import torch

    space, _, name = call.op.rpartition("::")
    if _NODE.fullmatch(call.op):
        raise NotRebuilt(f"{call.op} is a node of autograd, whose parts are replayed by themselves")
    if space.startswith(_AMONG_OTHERS):
        raise NotRebuilt(f"{call.op} is what several processes do together")
    try:
        packet = getattr(getattr(torch.ops, space or "aten"), name)
        names = sorted(packet.overloads(), key=lambda one: "out" in one)
    except (AttributeError, RuntimeError) as error:
        whose = "" if f"{space}::" in ("::", OWN) else " here: it is the program's own"
        raise NotRebuilt(f"torch has no operation {call.op}{whose}") from error
    able = [one for one in (getattr(packet, name) for name in names) if _fits(one, call)]
    fewest = min((len(one._schema.arguments) for one in able), default=0)
    return [one for one in able if len(one._schema.arguments) == fewest]


def _fits(overload: Any, call: Call) -> bool:
    """Whether it can be what was called: it takes each argument, and needs no more."""
    declared, size = [str(one.type) for one in overload._schema.arguments], len(call.types)
    if len(declared) < size or not all(one.has_default_value() for one in overload._schema.arguments[size:]):
        return False
    given = [(kind, call.at(call.scalars, place, None)) for place, kind in enumerate(call.types)]
    return all(_takes(one, *what) for one, what in zip(declared, given, strict=False))


def _takes(declared: str, kind: Any, value: Any) -> bool:
    """Whether an argument of this type can have been given what the profiler calls so."""
    if kind in ("Scalar", "ScalarList"):
        numbers = value is None or isinstance(value, bool) or declared != "bool"
        return numbers and "Tensor" not in declared and "str" not in declared
    if isinstance(kind, list) or kind == LIST:
        return "List[" in declared and "Tensor" in declared
    return "Tensor" in declared and "List[" not in declared if kind in TYPES else True


def _of(overload: Any, call: Call) -> Call:
    """The call, with what an overload calls its arguments; not those that it writes its results into."""
    return replace(call, names=[one.name for one in overload._schema.arguments if not one.is_out])


def _all_recorded(overload: Any, call: Call) -> None:
    """Words, tensors in a list with gaps and long lists of numbers are not."""
    for place, declared in enumerate(overload._schema.arguments[: len(call.types)]):
        kind, name = str(declared.type), declared.name
        if call.at(call.scalars, place, None) is not None:
            continue
        if "str" in kind and not declared.has_default_value():
            raise NotRebuilt(f"its {name} is a word, which torch does not record")
        if kind == "List[Optional[Tensor]]" and call.types[place] == "":
            raise NotRebuilt(f"torch does not record its {name}, which are tensors in a list")
        if kind in _LISTS and name not in LENGTHS:
            why = "torch records lists of numbers only up to 30, and before 2.13 none"
            raise NotRebuilt(f"its {name} were not recorded: {why}")


def _as_declared(overload: Any, arguments: Sequence[Any], factor: float) -> tuple[list[Any], dict[str, Any]]:
    """Arguments by position, and those that are by name only. What was not given has its default, and numbers
    of a list that torch did not record are ``factor``."""
    positional, named = [], {}
    for declared, given in zip(overload._schema.arguments, arguments, strict=False):
        kind = str(declared.type)
        if "str" in kind and given is None:
            given = declared.default_value
        value: Any = [factor] * len(arguments[0]) if given is None and kind == "List[number]" else given
        if declared.name in _POSITIVE and value is not None:
            value = [one.abs() for one in value]
        if not declared.kwarg_only:
            positional.append(value)
        elif value is not None or not declared.has_default_value():
            named[declared.name] = value
    return positional, named
