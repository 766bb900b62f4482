"""What JAX's name stacks say: ``jit(step)/transpose(jvp(layer_0))/attention/dot_general``.

A stack has the scopes that the program opened, wrapped in what JAX did to them. The wrappers tell the phase,
and are no part of a name.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from joulemap.frameworks.imported import UNNAMED
from joulemap.program import SEPARATOR

OPTIMIZER = "optimizer"
_WRAPPED = re.compile(r"(?P<by>\w+)\((?P<inner>.*)\)$")
_FUNCTIONS = frozenset({"jit", "pjit", "pmap", "xmap", "shard_map", "core_call", "named_call"})
_GLUE = frozenset(
    {"checkpoint", "remat", "remat2", "rematted_computation", "closed_call", "eval_jaxpr", "shard_map"}
    | {"custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr", "custom_lin", "pjit", "xla_pmap"}
)
_EINSUM = "->"
_LOOP_PARTS = frozenset({"body", "cond"})
_BRANCH = re.compile(r"branch_\d+_fun")
_RECOMPUTED = "rematted_computation"
_TRANSPOSED = "transpose("
_MERGED = re.compile(r"(?<!\w)\(([^():]+)(?::[^():]+)+\)")
"""What XLA made one of several operations: ``net/(down/dot_general:up/dot_general)``."""


class Place(NamedTuple):
    """A qualified name and a phase."""

    name: str
    phase: str


class Stack(NamedTuple):
    """The compiled function, the program's own scopes in it, the operation, and the phase."""

    function: str
    scopes: tuple[str, ...]
    operation: str
    phase: str


def is_name_stack(op_name: str) -> bool:
    """Whether an operation's name is one of JAX's."""
    return op_name.startswith(tuple(f"{function}(" for function in _FUNCTIONS))


def read_stack(op_name: str) -> Stack:
    """What a name stack says; of operations that XLA merged, the first stands for all."""
    parts = _parts(_MERGED.sub(r"\1", op_name))
    function = _WRAPPED.match(parts[0]) if parts else None
    *around, operation = parts or [op_name]
    scopes = _scopes(around)
    phase = _phase(op_name, parts, scopes)
    return Stack(function["inner"] if function else "", scopes, _bare(operation), phase)


def place(op_name: str) -> Place:
    """The qualified name of a stack alone, and its phase."""
    stack = read_stack(op_name)
    return Place(SEPARATOR.join([*(stack.scopes or [UNNAMED]), stack.operation]), stack.phase)


def _phase(op_name: str, parts: list[str], scopes: tuple[str, ...]) -> str:
    if _RECOMPUTED in parts:
        return "recompute"
    if _TRANSPOSED in op_name:
        return "backward"
    return OPTIMIZER if OPTIMIZER in scopes else "forward"


def _parts(op_name: str) -> list[str]:
    """Split at slashes that are in no parentheses."""
    parts, depth = [""], 0
    for letter in op_name:
        depth += (letter == "(") - (letter == ")")
        if letter == SEPARATOR and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part for part in parts if part]


def _scopes(parts: list[str]) -> tuple[str, ...]:
    """The program's own scopes. What is computed again for the backward pass repeats the stack from its
    beginning: ``transpose(jvp(net))/jvp(net)/checkpoint/layer`` is in ``net/layer``."""
    scopes: list[str] = []
    for part in parts:
        inner = _unwrapped(part)
        if inner != [part] and inner and inner == scopes[: len(inner)]:
            scopes = inner
        else:
            scopes += inner
    return tuple(_without_glue(scopes))


def _bare(operation: str) -> str:
    """``silu`` of ``jvp(jit(silu))``: a function of JAX's own that was compiled as one operation."""
    inner = operation
    while wrapped := _WRAPPED.match(inner):
        inner = wrapped["inner"]
    return inner.rpartition(SEPARATOR)[2] or operation


def _unwrapped(part: str) -> list[str]:
    """The scopes in one part of a stack; none in a function's."""
    while wrapped := _WRAPPED.match(part):
        if wrapped["by"] in _FUNCTIONS:
            return []
        part = wrapped["inner"]
    return [scope for scope in part.split(SEPARATOR) if scope]


def _without_glue(scopes: list[str]) -> list[str]:
    """Leave out what loops, branches, recomputing and ``einsum`` put between the program's scopes."""
    kept: list[str] = []
    following = [*scopes, ""][1:]
    inside = False
    for scope, after in zip(scopes, following, strict=True):
        loop = scope == "while" and after in _LOOP_PARTS
        branch = scope == "cond" and _BRANCH.fullmatch(after) is not None
        if not (inside or loop or branch or scope in _GLUE or _EINSUM in scope):
            kept.append(scope)
        inside = not inside and (loop or branch)
    return _without_lifted(kept)


def _without_lifted(scopes: list[str]) -> list[str]:
    """Leave out what linen puts around a module that it lifts: ``cell.scan_fn/cell`` is ``cell``."""
    following = [*scopes, ""][1:]
    return [
        scope for scope, after in zip(scopes, following, strict=True) if not scope.startswith(f"{after}.")
    ]
