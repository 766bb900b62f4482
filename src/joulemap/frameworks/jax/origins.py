"""Where an operation comes from, by the Python functions that were running when it was traced.

A compiled program keeps the stack of every instruction. It tells an optimizer's update and a loss, which open
no scope; and of operations outside every scope it tells which of the program's functions made them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from joulemap.frameworks.xplane.stacks import Call

LOSS, METRICS = "loss", "(metrics)"
OPTIMIZER = "optimizer"

_LOSSES = re.compile(r"/optax/losses/|/keras/src/losses/")
_METRICS = re.compile(r"/keras/src/metrics/")
_OPTIMIZERS = re.compile(r"/optax/|/keras/src/optimizers/")
_UPDATE = re.compile(r"(?P<transformation>\w+)\.<locals>\.update(?:_fn)?$")
_PASSES_ON = frozenset({"chain", "with_extra_args_support", "named_chain", "partition", "masked"})
_LIBRARIES = re.compile(r"/(?:site|dist)-packages/|/lib/python3\.\d+/|^<")
_NAMELESS = re.compile(r"<(?:lambda|listcomp|genexpr|dictcomp|setcomp|module)>")
_MOST_FUNCTIONS = 8
_PMAPPED = "_fun"
"""What ``pmap`` compiles instead of the program's function."""


class Origin(NamedTuple):
    """The library's part of the program that made an operation, and which of its functions."""

    bucket: str
    function: str


def origin(calls: Sequence[Call]) -> Origin | None:
    """The optimizer, loss or metric that an operation is part of; None where it is the program's own."""
    losses = [call for call in calls if _LOSSES.search(call.file)]
    if losses:
        return Origin(LOSS, _own_name(losses[-1].function))
    if any(_METRICS.search(call.file) for call in calls):
        return Origin(METRICS, "")
    optimizers = [call for call in calls if _OPTIMIZERS.search(call.file)]
    return Origin(OPTIMIZER, _transformation(optimizers)) if optimizers else None


def functions(calls: Sequence[Call], compiled: str) -> list[str]:
    """The program's own functions around an operation, from the compiled one on, the outermost first."""
    own = [_own_name(call.function) for call in reversed(calls) if not _LIBRARIES.search(call.file)]
    named = [name for name in own if not _NAMELESS.fullmatch(name)]
    if compiled == _PMAPPED and named:
        inside = named
    else:
        inside = named[named.index(compiled) :] if compiled in named else [compiled]
    return list(dict.fromkeys(inside))[:_MOST_FUNCTIONS]


def _transformation(calls: Sequence[Call]) -> str:
    """``scale_by_adam``: the innermost transformation of gradients, or what the program called."""
    for call in calls:
        update = _UPDATE.search(call.function)
        if update and update["transformation"] not in _PASSES_ON:
            return update["transformation"]
    outermost = calls[-1].function
    return outermost.partition(".")[0]


def _own_name(function: str) -> str:
    """``loss`` of ``train.<locals>.step.<locals>.loss``; a lambda goes by what it is in."""
    parts = [part for part in function.split(".") if part != "<locals>" and not _NAMELESS.fullmatch(part)]
    if parts[-1:] == ["__call__"]:
        parts.pop()
    return parts[-1] if parts else "<lambda>"
