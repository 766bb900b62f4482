"""Calls of kernels in code that inductor has generated, read from the code and its comments.

A comment before a call names the operations that it comes from, as the compiled function had them. C++
kernels have none. In a backward pass they are nodes of a graph that nobody has kept, and tell nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from joulemap.frameworks.torch.origins import MadeCall, Origin, common

_BACKWARD = re.compile(r"# AOT ID: \['\w*backward'\]")
_COMMENT = re.compile(r"\s+# Topologically Sorted Source Nodes: \[(?P<nodes>[^\]]*)\]")
_CALL = re.compile(
    r"\s+(\w+ = )?((?P<own>cpp_\w+)|(?P<triton>\w+)\.run|extern_kernels\.(?P<extern>\w+)"
    r"|(torch\.ops\.(?P<space>\w+)|aten)\.(?P<operation>\w+)(\.\w+)?)\("
)
_PART = re.compile(r"def partition_(\d+)\(")
_CALLS_PART = re.compile(r"\s+(?:.* = )?self\.partitions\[(\d+)\]\(")


def calls_in(code: str, origins: Mapping[str, Origin]) -> list[MadeCall]:
    """The calls in order; ``origins`` are those of the compiled function's operations, by name.

    Equal code may have been made for another function, with other names of operations: then it tells nothing.
    """
    named = {node for line in code.splitlines() for node in _named(line) or ()}
    known = {} if is_backward(code) or named - origins.keys() else origins
    return list(_calls(code, known))


def is_backward(code: str) -> bool:
    """Whether generated code is that of a backward pass."""
    return _BACKWARD.match(code) is not None


def _named(line: str) -> list[str] | None:
    """The operations that a comment names; None where the line is no such comment."""
    comment = _COMMENT.match(line)
    return None if comment is None else list(filter(None, comment["nodes"].split(", ")))


def _in_order(lines: Sequence[str]) -> Iterator[str]:
    """Parts of a graph, which are functions of their own, where they are called."""
    parts: dict[str, list[str]] = {}
    rest: list[str] = []
    into = rest
    for line in lines:
        begin = _PART.match(line)
        if begin is not None:
            into = parts.setdefault(begin[1], [])
        elif line[:1].strip():
            into = rest
        into.append(line)
    for line in rest:
        called = _CALLS_PART.match(line)
        yield from [line] if called is None else parts.get(called[1], [line])


def _calls(code: str, origins: Mapping[str, Origin]) -> Iterator[MadeCall]:
    nodes: list[str] | None = None
    for line in _in_order(code.splitlines()):
        named = _named(line)
        nodes = nodes if named is None else named
        call = _CALL.match(line)
        if call is None or (nodes is None and not call["own"]):
            continue
        own = call["own"] or call["triton"]
        # an operation of a library is the last of its nodes: the others made what it takes in
        whose = (nodes or []) if own else (nodes or [])[-1:]
        event = own or f"{call['space'] or 'aten'}::{call['extern'] or call['operation']}"
        known = [origins.get(node) for node in whose]
        yield MadeCall(event.rpartition(":")[2], event, None if None in known else common(known))
        nodes = None
