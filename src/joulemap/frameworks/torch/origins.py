"""Which module a kernel of inductor's comes from: the nodes of its graph remember the modules around them.

A forward node has the modules that it was called in, a backward node those of what it differentiates. Nodes
that only look at data in another way, make a constant, or add up the gradients of what several have used, say
nothing about where the work of a kernel belongs, unless it has no others.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

_VARIABLE = re.compile(r"[LG]\['[^']*'\](\[[^\]]*\])*")
_WRAPPED = "L['fn']"
"""The variable in which torch itself holds a module whose ``forward`` it does not look into by its own."""
_NO_STEPS = r"lr_scheduler\.py|swa_utils\.py"
"""Of ``torch.optim``, but no optimizers; averaged models are called from there."""
_FAR = 4
"""How many nodes without a stack may follow each other."""


@dataclass(frozen=True)
class Origin:
    """A module as compiled code knows it: a variable and attributes, ``("L['self']", "encoder", "0")``.

    ``outermost`` is the beginning of it that stands for the outermost module that the code calls, and
    ``kind`` that module's class. All are empty for what the compiled function does itself.
    """

    parts: tuple[str, ...] = ()
    outermost: tuple[str, ...] = ()
    kind: str = ""

    def below_module(self) -> str:
        """The path below the module that runs the compiled code: its own variable is that module."""
        if len(self.outermost) == 1 and self.outermost[0] != _WRAPPED:
            return ".".join((self.kind, *self.parts[1:]))  # somebody else's module: it goes by its class
        return ".".join(self.parts[1:])

    def below_outermost(self) -> str | None:
        """The path below the outermost module that the code calls; None for what is in none or several."""
        return ".".join(self.parts[len(self.outermost) :]) if self.outermost else None


@dataclass(frozen=True)
class MadeCall:
    """A call in generated code: the kernel, the event that a profiler shows it as, and its origin."""

    kernel: str
    event: str
    origin: Origin | None


def origin_of(nodes: Iterable[Any]) -> Origin | None:
    """The innermost module that all work of these nodes is in; None where nothing is known of any."""
    every = list(nodes)
    return common([_origin(node) for node in every if _works(node)] or [_origin(node) for node in every])


def common(origins: Sequence[Origin | None]) -> Origin | None:
    """The innermost module that holds all of these, of which some may be unknown."""
    known = list(dict.fromkeys(one for one in origins if one is not None))
    if len(known) < 2:
        return known[0] if known else None
    called = {(one.outermost, one.kind) for one in known}
    outermost, kind = called.pop() if len(called) == 1 else ((), "")
    return Origin(common_parts([one.parts for one in known]), outermost, kind)


def common_parts(paths: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """What all paths begin with."""
    levels = takewhile(lambda level: len(set(level)) == 1, zip(*paths, strict=False))
    return tuple(level[0] for level in levels)


def origin_of_stack(stack: Sequence[tuple[str, Any]]) -> Origin:
    """From the modules around a node, outermost first: how each is reached, and its class."""
    if not stack:
        return Origin()
    (first, kind), (last, _) = stack[0], stack[-1]
    return Origin(_parts(last), _parts(first), kind if isinstance(kind, str) else kind.__name__)


def stack_of(node: Any) -> list[tuple[str, Any]]:
    """The modules around a node, or around what it differentiates; none for the compiled function's own."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    return list(stack.values())


def is_update(nodes: Iterable[Any]) -> bool:
    """Whether all that a compiled function does is a step of an optimizer: there is code of ``torch.optim``
    around each of its operations, and no module, as there is in a closure."""
    from torch import optim

    files = re.compile(rf'File "{re.escape(str(Path(optim.__file__).parent))}[/\\](?!{_NO_STEPS})')
    work = [node for node in nodes if node.op.startswith("call_") and "stack_trace" in node.meta]
    return bool(work) and all(files.search(_trace(node)) and not stack_of(node) for node in work)


def _trace(node: Any) -> str:
    return node.meta["stack_trace"] or ""


def _origin(node: Any, far: int = _FAR) -> Origin | None:
    """A node that a pass of inductor's has put in has no stack: it belongs to what its inputs belong to."""
    stack = stack_of(node)
    if stack or ("stack_trace" in node.meta and not _adds_gradients(node)):
        return origin_of_stack(stack)
    before = [one for one in node.all_input_nodes if one.op == "call_function"] if far else []
    return common([_origin(one, far - 1) for one in before])


def _works(node: Any) -> bool:
    from torch._ops import OpOverload

    is_view = node.target.is_view if isinstance(node.target, OpOverload) else node.target is operator.getitem
    return not (is_view or _adds_gradients(node)) and bool(node.all_input_nodes)


def _adds_gradients(node: Any) -> bool:
    return bool(node.meta.get("is_gradient_acc"))


def _parts(text: str) -> tuple[str, ...]:
    """``L['self'].encoder.0`` in its parts."""
    variable = _VARIABLE.match(text)
    if variable is None:
        return (text,)
    return (variable[0], *filter(None, text[variable.end() :].split(".")))
