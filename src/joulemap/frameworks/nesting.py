"""Which event encloses which, for all events of all threads at once.

On one thread calls nest, so their intervals form a forest. Here it is found from the times alone, with
sorts and searches over whole columns; a loop runs only over the levels of the forest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joulemap.traces import EventTrace, Int64

NO_PARENT = -1


@dataclass(frozen=True, eq=False)
class Forest:
    """``parent[i]`` is the row that directly encloses row i, or ``NO_PARENT``.

    ``levels[d]`` holds the rows with d enclosing rows. ``end_ns`` are the ends with crossings settled:
    where rounding made a child overrun its parent, or a call reach into the next one, it is cut.
    """

    parent: Int64
    levels: tuple[Int64, ...]
    end_ns: Int64

    @classmethod
    def of(cls, lane: NDArray[np.integer], start_ns: Int64, end_ns: Int64) -> Forest:
        """From intervals in lanes; an interval without length counts as one nanosecond."""
        rows = len(start_ns)
        depth, parent = np.zeros(rows, np.int64), np.full(rows, NO_PARENT, np.int64)
        end = np.maximum(end_ns, start_ns + 1)
        order = np.lexsort((-end, start_ns, lane))
        for members in np.split(order, np.flatnonzero(np.diff(lane[order])) + 1):
            if not len(members):
                continue
            depths, parents = _nest(start_ns[members], end[members])
            if _crossing(end[members], parents):
                end[members] = _settled(start_ns[members], end[members])
                depths, parents = _nest(start_ns[members], end[members])
            depth[members] = depths
            parent[members] = np.where(parents == NO_PARENT, NO_PARENT, members[parents])
        by_depth = np.argsort(depth, kind="stable")
        levels = np.split(by_depth, np.flatnonzero(np.diff(depth[by_depth])) + 1) if rows else []
        return cls(parent, tuple(levels), np.minimum(end, np.maximum(end_ns, start_ns)))

    @classmethod
    def of_events(cls, events: EventTrace, rows: Int64) -> Forest:
        """Of some events; those without lanes are in none together."""
        lane = np.arange(len(events)) if events.lane is None else events.lane.codes
        return cls.of(lane[rows], events.start_ns[rows], events.end_ns[rows])

    def inherit(self, own: Int64, none: int = -1) -> Int64:
        """For every row its own value, or else that of the nearest enclosing row that has one."""
        value: Int64 = np.array(own)
        for rows in self.levels[1:]:
            bare = rows[value[rows] == none]
            value[bare] = value[self.parent[bare]]
        return value

    def around(self, rows: Int64) -> NDArray[np.bool_]:
        """Which rows are one of these, or enclose one."""
        around = np.zeros(len(self.parent), bool)
        around[rows] = True
        for level in reversed(self.levels[1:]):
            around[self.parent[level[around[level]]]] = True
        return around

    def holds_its_like(self, what: Int64) -> NDArray[np.bool_]:
        """Which rows directly enclose one with the same value."""
        holds = np.zeros(len(what), bool)
        inner = np.flatnonzero(self.parent != NO_PARENT)
        around = self.parent[inner]
        holds[around[what[around] == what[inner]]] = True
        return holds


def _nest(start: Int64, end: Int64) -> tuple[Int64, Int64]:
    """Depth and parent of the intervals of one lane, in order of start and, where equal, longest first.

    An interval's depth is how many began before it and have not ended when it begins. Its parent is the
    last one before it that is one level up.
    """
    rows = len(start)
    place = np.arange(rows)
    depth = place - np.searchsorted(np.sort(end), start, side="right")
    key = depth * rows + place
    by_key = np.argsort(key, kind="stable")
    above = np.searchsorted(key[by_key], key - rows) - 1
    parent = np.where(depth > 0, by_key[np.maximum(above, 0)], NO_PARENT)
    return depth, parent


def _crossing(end: Int64, parent: Int64) -> bool:
    child = np.flatnonzero(parent != NO_PARENT)
    return bool((end[child] > end[parent[child]]).any())


def _settled(start: Int64, end: Int64) -> Int64:
    """Ends cut so that intervals nest: what lies mostly inside another ends with it, else the other ends.

    One after the other, since each cut changes what comes after. Only lanes that need it come here.
    """
    starts, ends = start.tolist(), end.tolist()
    open_rows: list[int] = []
    for row, (begin, finish) in enumerate(zip(starts, ends, strict=True)):
        while open_rows and ends[open_rows[-1]] < finish:
            last = open_rows[-1]
            if 2 * (ends[last] - begin) >= finish - begin:
                ends[row] = ends[last]
                break
            ends[last] = min(ends[last], begin)
            open_rows.pop()
        open_rows.append(row)
    return np.array(ends, np.int64)
