"""Fusions left whole: the events of one that was split over its layers, put together again.

The parts of a split event follow each other in the trace, on one lane, and meet where their shares say, to
the nanosecond. So they are found again without a mark on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joulemap.program import Fusion
from joulemap.traces import EventTrace, Int64


def left_whole(events: EventTrace, fusions: Sequence[Fusion]) -> EventTrace:
    """The same time, with one event for each fusion: it goes where its result was computed."""
    taken = np.zeros(len(events), bool)
    found: list[EventTrace] = []
    for fusion in sorted(fusions, key=lambda one: -len(one.parts)):
        first = _Parts(events, fusion).first_rows(taken)
        rows = first[:, None] + np.arange(len(fusion.parts))
        taken[rows] = True
        found.append(_whole(events, fusion, first))
    return EventTrace.joined([events.take(~taken), *found])


def ends(shares: Sequence[float]) -> NDArray[np.float64]:
    """Where each part of an event ends, as a share of it."""
    until = np.cumsum(shares)
    return np.asarray(until / until[-1], np.float64)


def _whole(events: EventTrace, fusion: Fusion, first: Int64) -> EventTrace:
    return EventTrace.from_columns(
        name=fusion.name,
        device=events.device[first],
        start_ns=events.start_ns[first],
        end_ns=events.end_ns[first + len(fusion.parts) - 1],
        lane=None if events.lane is None else events.lane[first],
        kind=events.kind[first],
        op=fusion.op,
        phase=fusion.phase,
        step=events.step[first],
    )


@dataclass(frozen=True)
class _Parts:
    """Where the parts of a fusion lie in a trace."""

    events: EventTrace
    fusion: Fusion

    def first_rows(self, taken: NDArray[np.bool_]) -> Int64:
        """The first row of each event that was split so."""
        parts, events = self.fusion.parts, self.events
        rows = np.arange(len(events) - len(parts) + 1)
        for number, part in enumerate(parts):
            row = rows + number
            named = events.name.codes[row] == events.name.code(part.name)
            rows = rows[named & (events.phase.codes[row] == events.phase.code(part.phase)) & ~taken[row]]
        return rows[self._together(rows) & self._meet(rows)]

    def _together(self, rows: Int64) -> NDArray[np.bool_]:
        """Whether the parts are of one lane and one kind."""
        last = rows + len(self.fusion.parts) - 1
        lane, kind = self.events.lane, self.events.kind.codes
        same = np.ones(len(rows), bool) if lane is None else lane.codes[rows] == lane.codes[last]
        return np.asarray(same & (kind[rows] == kind[last]))

    def _meet(self, rows: Int64) -> NDArray[np.bool_]:
        """Whether each part ends where its share of the whole does, and the next one begins there."""
        until = ends([part.share for part in self.fusion.parts])
        start_ns, last = self.events.start_ns[rows], rows + len(until) - 1
        long_ns = self.events.end_ns[last] - start_ns
        meet = np.ones(len(rows), bool)
        for number, share in enumerate(until[:-1]):
            border_ns = start_ns + np.round(share * long_ns).astype(np.int64)
            meet &= self.events.end_ns[rows + number] == border_ns
            meet &= self.events.start_ns[rows + number + 1] == border_ns
        return meet
