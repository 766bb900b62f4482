"""The dataflow of a session as pairs of qualified names, from what ``dataflow`` saw and what the trace holds.

Backward passes give exact edges between operations, and their reverse between the operations of the backward
pass. Between modules an edge goes from the last operation of one to the first of the other. Where nothing is
differentiated, what a module computes itself between calls of its parts is taken for a chain.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from joulemap.frameworks import kineto_names as names
from joulemap.frameworks.kineto import Host
from joulemap.frameworks.kineto_calls import NONE
from joulemap.frameworks.kineto_names import Role
from joulemap.frameworks.kineto_scopes import finished_by
from joulemap.frameworks.nesting import NO_PARENT
from joulemap.program import SEPARATOR, Edge
from joulemap.traces import Int64


@dataclass(frozen=True, eq=False)
class Flow:
    """What a session saw: the autograd graphs, and pairs of the paths of modules."""

    sequence: Int64
    nodes: Sequence[str]
    edges: NDArray[np.integer]
    passes: Sequence[Edge]
    taken_in: Sequence[Edge]
    handed_out: Sequence[Edge]


def edges(host: Host, flow: Flow) -> Iterator[tuple[str, Edge]]:
    """All of them with their phase, some more than once."""
    modules = _Modules(host)
    forward, backward = _of_gradients(host, flow)
    among = (*forward, *modules.between(flow.passes), *modules.through_their_own(flow))
    yield from (("forward", edge) for edge in among)
    yield from (("backward", edge) for edge in backward)
    yield from _of_updates(host)


def _of_gradients(host: Host, flow: Flow) -> tuple[list[Edge], list[Edge]]:
    """Between operations that were differentiated, and back."""
    rows = _rows_of_nodes(host, flow)
    origin = np.full(len(host.role), NONE, np.int64)
    origin[host.scopes.backward] = host.scopes.origin
    source, target = rows[flow.edges.T]
    known = (source != NONE) & (target != NONE)
    source, target = source[known], target[known]
    return _named(host, origin[source], origin[target]), _named(host, target, source)


def _rows_of_nodes(host: Host, flow: Flow) -> Int64:
    """The row in which each node of the graph was evaluated; ``NONE`` where there is none, or where two
    threads have nodes of the same number and name."""
    columns, backward = host.columns, host.scopes.backward
    backward = backward[host.role[backward] == Role.OP]
    found: dict[tuple[int, str], int] = {}
    for row, sequence, word in zip(
        backward.tolist(), columns.sequence[backward].tolist(), columns.name[backward], strict=True
    ):
        other = found.setdefault((sequence, word), row)
        if other != NONE and columns.forward_thread[other] != columns.forward_thread[row]:
            found[sequence, word] = NONE
    nodes = zip(flow.sequence.tolist(), flow.nodes, strict=True)
    return np.array([found.get(node, NONE) for node in nodes], np.int64)


def _of_updates(host: Host) -> Iterator[tuple[str, Edge]]:
    """From gradients to where they are added up, and from there to the optimizer, if there is only one."""
    operation = host.role == Role.OP
    adding = np.flatnonzero(operation & (host.leaf.codes == host.leaf.code(names.ACCUMULATE)))
    nodes = host.scopes.backward[operation[host.scopes.backward]]
    yield from (("backward", edge) for edge in _named(host, finished_by(host.calls, nodes, adding), adding))
    zeroing = host.paths.code(f"{names.OPTIMIZER}{SEPARATOR}{names.ZERO_GRAD}")
    optimizers = np.setdiff1d(host.path[host.role == Role.OPTIMIZER], zeroing)
    updates = np.flatnonzero(operation & np.isin(host.path, optimizers))[:1]
    if len(optimizers) == 1 and len(updates):
        yield from (("", edge) for edge in _named(host, adding, np.repeat(updates, len(adding))))


class _Modules:
    """The calls of modules in a trace: the first call of each, and the operations in it."""

    def __init__(self, host: Host) -> None:
        self._host = host
        operations = _operations(host)
        self._operations = operations[np.argsort(host.columns.start_ns[operations], kind="stable")]
        self._start_ns = host.columns.start_ns[self._operations]
        self._path: dict[str, int] = {}
        first = [self._path.setdefault(word, code) for code, word in enumerate(host.paths.words)]
        self._path_of_row = np.array(first)[host.path]

    @cached_property
    def _first_calls(self) -> Mapping[str, int]:
        host = self._host
        rows = np.flatnonzero(host.role == Role.MODULE)
        rows = rows[np.argsort(host.columns.start_ns[rows], kind="stable")]
        first: dict[str, int] = {}
        for row, path in zip(rows.tolist(), host.path[rows].tolist(), strict=True):
            first.setdefault(host.paths.words[path], row)
        return first

    def _inside(self, path: str) -> Int64:
        """The operations in a module's first call, in order."""
        row = self._first_calls.get(path)
        if row is None:
            return self._operations[:0]
        columns = self._host.columns
        begin, end = np.searchsorted(self._start_ns, (columns.start_ns[row], columns.end_ns[row]))
        rows = self._operations[begin:end]
        inside: Int64 = rows[columns.lane.codes[rows] == columns.lane.codes[row]]
        return inside

    def between(self, pairs: Sequence[Edge]) -> Iterator[Edge]:
        """From the last operation of one to the first of the other, where neither is inside the other."""
        for source, target in pairs:
            if not (_is_around(source, target) or _is_around(target, source)):
                last, first = self._inside(source)[-1:], self._inside(target)[:1]
                if len(last) and len(first):
                    yield from _named(self._host, last, first)

    def through_their_own(self, flow: Flow) -> Iterator[Edge]:
        """What modules compute themselves between their parts, where no graph says it."""
        own = {path: self._own(path) for path in dict.fromkeys(path for _, path in flow.taken_in)}
        own |= {path: self._own(path) for path in dict.fromkeys(path for path, _ in flow.handed_out)}
        for rows in own.values():
            yield from _named(self._host, rows[:-1], rows[1:])
        for part, path in flow.taken_in:
            yield from self._joined(self._inside(part)[-1:], own[path], after=True)
        for path, part in flow.handed_out:
            yield from self._joined(self._inside(part)[:1], own[path], after=False)

    def _own(self, path: str) -> Int64:
        """The operations that a module runs itself; none where they are differentiated."""
        rows = self._inside(path)
        own: Int64 = rows[self._path_of_row[rows] == self._path.get(path, NONE)]
        return own[:0] if np.isin(own, self._host.scopes.origin).any() else own

    def _joined(self, part: Int64, own: Int64, *, after: bool) -> Iterator[Edge]:
        """From a part to the next operation of its own, or from the last one to the part."""
        start_ns = self._host.columns.start_ns
        place = np.searchsorted(start_ns[own], start_ns[part])
        if after:
            yield from _named(self._host, part[place < len(own)], own[place[place < len(own)]])
        else:
            yield from _named(self._host, own[place[place > 0] - 1], part[place > 0])


def _operations(host: Host) -> Int64:
    """The operations that stand for all: those that launch kernels, where any does, else the outermost."""
    launching: Int64 = np.setdiff1d(host.operation[host.role == Role.RUNTIME], NONE)
    if len(launching):
        return launching
    inside = (host.forest.parent != NO_PARENT) & (host.role[host.forest.parent] == Role.OP)
    return np.flatnonzero((host.role == Role.OP) & ~inside)


def _is_around(path: str, other: str) -> bool:
    return other == path or other.startswith(path + SEPARATOR)


def _named(host: Host, source: Int64, target: Int64) -> list[Edge]:
    """Pairs of rows as pairs of names, each once."""
    known = (source != NONE) & (target != NONE)
    codes = np.stack((host.name.codes[source[known]], host.name.codes[target[known]]))
    words = host.name.words
    return [(words[a], words[b]) for a, b in np.unique(codes, axis=1).T.tolist()]
