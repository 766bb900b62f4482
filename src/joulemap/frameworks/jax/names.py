"""Qualified names and phases from JAX's name stacks, as ``jit(step)/transpose(jvp(layer_0))/dot_general``."""

from __future__ import annotations

import re
from typing import NamedTuple

from joulemap.frameworks.imported import UNNAMED
from joulemap.program import SEPARATOR

_WRAPPED = re.compile(r"(?P<by>\w+)\((?P<inner>.*)\)$")
_FUNCTIONS = frozenset({"jit", "pjit", "pmap", "xmap", "shard_map", "core_call", "named_call"})
_GLUE = frozenset({"checkpoint", "remat", "rematted_computation", "while", "body", "cond", "closed_call"})
_RECOMPUTED = "rematted_computation"
_TRANSPOSED = "transpose("
_OPTIMIZER = "optimizer"


class Place(NamedTuple):
    """A qualified name and a phase."""

    name: str
    phase: str


def is_name_stack(op_name: str) -> bool:
    """Whether an operation's name is one of JAX's."""
    return op_name.startswith(tuple(f"{function}(" for function in _FUNCTIONS))


def place(op_name: str) -> Place:
    """The layers are the scopes that the program opened; what JAX wraps around them tells the phase."""
    parts = _parts(op_name)
    *around, operation = parts or [op_name]
    layers = [scope for part in around for scope in _scopes(part)]
    return Place(SEPARATOR.join([*(layers or [UNNAMED]), operation]), _phase(op_name, parts, layers))


def _phase(op_name: str, parts: list[str], layers: list[str]) -> str:
    if _RECOMPUTED in parts:
        return "recompute"
    if _TRANSPOSED in op_name:
        return "backward"
    return "optimizer" if layers[:1] == [_OPTIMIZER] else "forward"


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


def _scopes(part: str) -> list[str]:
    """The program's own scopes in one part of a stack."""
    while wrapped := _WRAPPED.match(part):
        if wrapped["by"] in _FUNCTIONS:
            return []
        part = wrapped["inner"]
    return [scope for scope in part.split(SEPARATOR) if scope and scope not in _GLUE]
