"""Work on pool threads: which operation asked for it.

The profiler marks where a thread takes up a task of a pool and where it is done with it (``StartRegion``,
``StopRegion``), and where the task was handed over (``Record``). Producer and consumer carry the same number,
so that a task leads back to the operation that was running where it was handed over, through other tasks
where a task hands over more of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joulemap.frameworks.nesting import NO_PARENT, Forest
from joulemap.traces import Int64

NONE = -1


@dataclass(frozen=True, eq=False)
class Spans:
    """What happened on which line, from when to when."""

    line: NDArray[np.int32]
    start_ns: Int64
    end_ns: Int64

    def __len__(self) -> int:
        return len(self.start_ns)

    def joined(self, other: Spans) -> Spans:
        """These, then the others."""
        return Spans(
            np.concatenate((self.line, other.line)),
            np.concatenate((self.start_ns, other.start_ns)),
            np.concatenate((self.end_ns, other.end_ns)),
        )


@dataclass(frozen=True, eq=False)
class Tasks:
    """Tasks that ran on pool threads, and the number under which each was handed over."""

    spans: Spans
    number: Int64


def tasks(line: NDArray[np.int32], t_ns: Int64, begins: NDArray[np.bool_], number: Int64) -> Tasks:
    """Pair the marks of beginnings and ends, which may nest. What the profile's borders cut is left out."""
    order = np.lexsort((t_ns, line))
    line, t_ns, begins, number = line[order], t_ns[order], begins[order], number[order]
    depth = np.cumsum(np.where(begins, 1, -1)) + ~begins
    by_depth = np.lexsort((np.arange(len(line)), depth, line))
    first, second = by_depth[:-1], by_depth[1:]
    pairs = begins[first] & ~begins[second] & (line[first] == line[second]) & (depth[first] == depth[second])
    first, second = first[pairs], second[pairs]
    return Tasks(Spans(line[first], t_ns[first], t_ns[second]), number[first])


def innermost(spans: Spans, forest: Forest, line: NDArray[np.int32], t_ns: Int64) -> Int64:
    """The row of the innermost span around each moment on a line, or ``NONE``."""
    if not len(spans) or not len(t_ns):
        return np.full(len(t_ns), NONE, np.int64)
    origin = min(int(spans.start_ns.min()), int(t_ns.min()))
    width = max(int(spans.start_ns.max()), int(t_ns.max())) - origin + 1
    order = np.lexsort((-forest.end_ns, spans.start_ns, spans.line))
    key = spans.line[order].astype(np.int64) * width + (spans.start_ns[order] - origin)
    at = np.searchsorted(key, line.astype(np.int64) * width + (t_ns - origin), side="right") - 1
    found = np.where(at >= 0, order[np.maximum(at, 0)], NONE)
    found[(found != NONE) & (spans.line[found] != line)] = NONE
    while True:
        over = np.flatnonzero((found != NONE) & (forest.end_ns[found] < t_ns))
        if not len(over):
            return found
        found[over] = forest.parent[found[over]]


def owners(origin: Int64, is_task: NDArray[np.bool_]) -> Int64:
    """Follow tasks that were handed over inside tasks to the row at the beginning.

    ``origin[i]`` is the row that handed row i over, or ``NONE``; only tasks have one. The result is a row
    that is no task, or ``NONE``.
    """
    owner = np.array(origin)
    for _ in range(len(origin).bit_length() + 1):
        further = np.flatnonzero((owner != NONE) & is_task[owner])
        if not len(further):
            return owner
        owner[further] = owner[owner[further]]
    owner[(owner != NONE) & is_task[owner]] = NONE
    return owner


def handed_over(number: Int64, record_number: Int64, record_origin: Int64) -> Int64:
    """For tasks by number, the row in which each was handed over, or ``NONE``."""
    if not len(record_number):
        return np.full(len(number), NONE, np.int64)
    order = np.argsort(record_number, kind="stable")
    at = order[np.minimum(np.searchsorted(record_number[order], number), len(order) - 1)]
    return np.where(record_number[at] == number, record_origin[at], NONE)


def nearest(forest: Forest, wanted: NDArray[np.bool_]) -> Int64:
    """For every row the nearest row at or around it that is wanted, or ``NONE``."""
    return forest.inherit(np.where(wanted, np.arange(len(wanted)), NO_PARENT))
