"""Sharing a domain's energy out over the events of its device, exactly, in one pass over time.

With ``P(t)`` the domain's power and ``W(t)`` the sum of the weights of what is active at ``t``, an event
of weight ``w`` gets the integral of ``w P/W`` over the time it is active. So with ``F(t)`` the running
integral of ``P/W``, an event's charge is ``w (F(end) - F(start))``: two sorts and a running sum serve
all events at once. Nested events subtract from the event around them; runtime glue has an ``F`` of its
own that only grows where nothing else is active.

The timeline is worked off in windows that fit the cache. An event that reaches over a border is cut
there, and its charges add up: time and memory grow in proportion to the number of events.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joulemap.accounting.lanes import NO_PARENT, RUNTIME, Cuts, Pieces, arrange
from joulemap.accounting.sums import running, sums_by
from joulemap.accounting.supply import Curve
from joulemap.accounting.watching import tell
from joulemap.traces import Float64, Int64
from joulemap.units import NS_PER_S

WINDOW = 1 << 15
_LATEST = np.iinfo(np.int64).max


@dataclass(frozen=True, eq=False)
class Actors:
    """The events of one device, each longer than nothing, as columns.

    ``lane`` is None where every event is its own lane, ``group`` (the operation) where there are no
    workers, ``weight`` where all weigh the same.
    """

    start_ns: Int64
    end_ns: Int64
    lane: NDArray[np.int32] | None
    kind: NDArray[np.int32]
    group: Int64 | None = None
    weight: Float64 | None = None

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True, eq=False)
class Shared:
    """A curve, shared out: the charge of each event, the idle part up to each mark, and all of it."""

    charge: Float64
    idle_until_mark: Float64
    idle: float

    def idle_between_marks(self) -> Float64:
        """The idle part between each two marks, where marks are (start, end) pairs."""
        return self.idle_until_mark[1::2] - self.idle_until_mark[::2]


def share_out(
    actors: Actors, curves: Sequence[Curve], marks_ns: Int64, idle_weight: float | None = None
) -> tuple[list[Shared], Float64]:
    """Give each curve to the events that are active while it flows, or to idle where none is.

    Without ``idle_weight`` a curve's own density holds, and the active events divide it by weight. With
    it, the curves are amounts per weight (see ``supply``): every event takes
    its weight's worth, and idle ``idle_weight``'s. Also returns how long each event was the innermost of
    its lane, in seconds.
    """
    charges = [np.zeros(len(actors)) for _ in curves]
    idle_until = np.zeros((len(curves), len(marks_ns)))
    idle_so_far = np.zeros(len(curves))
    active_s = np.zeros(len(actors))
    for window, timeline in enumerate(_timelines(actors, curves, marks_ns), 1):
        pieces = timeline.pieces
        length_s = (pieces.end_ns - pieces.start_ns) / NS_PER_S
        active_s[pieces.row] += _less_children(length_s, length_s, pieces.parent)
        rates = timeline.rates(idle_weight)
        for number, curve in enumerate(curves):
            flow = curve.increments(timeline.t_ns)
            charges[number][pieces.row] += timeline.charges(flow, rates)
            idle = flow * rates.idle
            idle_until[number, timeline.marks] = idle_so_far[number] + timeline.at_marks(idle)
            idle_so_far[number] += idle.sum()
        tell(window * WINDOW / max(len(actors), 1))
    return [Shared(*each) for each in zip(charges, idle_until, idle_so_far.tolist(), strict=True)], active_s


def modelled(actors: Actors, edges_ns: Int64, idle_weight: float) -> Float64:
    """Weight times seconds between edges: the weights that are active, or ``idle_weight`` where none is."""
    until = np.zeros(len(edges_ns))
    so_far = 0.0
    for timeline in _timelines(actors, [], edges_ns):
        flow = timeline.density(idle_weight) * (np.diff(timeline.t_ns) / NS_PER_S)
        until[timeline.marks] = so_far + timeline.at_marks(flow)
        so_far += flow.sum()
    return np.diff(until)


@dataclass(frozen=True, eq=False)
class _Rates:
    """What a unit of flow means in each segment, for a unit of weight of each class, and for idle."""

    main: Float64
    runtime: Float64 | None
    idle: Float64


@dataclass(frozen=True, eq=False)
class _Timeline:
    """One window: its borders in time, and what is active between them.

    ``order`` sorts the points, which are laid out as starts, ends, cut starts, cut ends, marks and the
    window's own two borders.
    """

    pieces: Pieces
    glue: NDArray[np.bool_] | None
    weight: Float64 | None
    t_ns: Int64
    order: Int64
    marks: slice
    main_weight: Float64
    main_active: NDArray[np.bool_]
    glue_weight: Float64 | None
    glue_active: NDArray[np.bool_] | None

    def density(self, idle_weight: float) -> Float64:
        """The modelled density of each segment: the active weights, or idle's."""
        density = np.where(self.main_active, self.main_weight, idle_weight)
        if self.glue_active is not None and self.glue_weight is not None:
            density = np.where(self.glue_active, self.glue_weight, density)
        return density

    def rates(self, idle_weight: float | None) -> _Rates:
        idle = ~self.main_active
        if self.glue_active is not None:
            idle &= ~self.glue_active
        if idle_weight is None:
            main = np.divide(1.0, self.main_weight, out=np.zeros(len(idle)), where=self.main_active)
            if self.glue_active is None or self.glue_weight is None:
                return _Rates(main, None, idle.astype(np.float64))
            glue = np.divide(1.0, self.glue_weight, out=np.zeros(len(idle)), where=self.glue_active)
            return _Rates(main, glue, idle.astype(np.float64))
        glue_rate = None if self.glue_active is None else self.glue_active.astype(np.float64)
        return _Rates(self.main_active.astype(np.float64), glue_rate, idle.astype(np.float64) * idle_weight)

    def charges(self, flow: Float64, rates: _Rates) -> Float64:
        """What each piece gets of the flow."""
        count = len(self.pieces)
        main = self._unsorted(running(flow * rates.main))
        own = around = main[count : 2 * count] - main[:count]
        if rates.runtime is not None and self.glue is not None:
            glue = self._unsorted(running(flow * rates.runtime))
            in_glue = glue[count : 2 * count] - glue[:count]
            own = np.where(self.glue, in_glue, own)
            if self.pieces.parent is not None:
                around = np.where(self.glue[self.pieces.parent], in_glue, around)
        charge = _less_children(own, around, self.pieces.parent)
        if self.pieces.cuts is not None:
            cuts = len(self.pieces.cuts.piece)
            begin, end = main[2 * count : 2 * count + cuts], main[2 * count + cuts : 2 * (count + cuts)]
            charge = charge - sums_by(self.pieces.cuts.piece, end - begin, count)
        return charge if self.weight is None else charge * self.weight

    def at_marks(self, flow: Float64) -> Float64:
        """How much has flowed since the window began, at each of its marks."""
        count = self.marks.stop - self.marks.start
        if not count:
            return np.zeros(0)
        return self._unsorted(running(flow))[len(self.order) - 2 - count : len(self.order) - 2]

    def _unsorted(self, sorted_values: Float64) -> Float64:
        values = np.empty(len(self.order))
        values[self.order] = sorted_values
        return values


def _timelines(actors: Actors, curves: Sequence[Curve], marks_ns: Int64) -> Iterator[_Timeline]:
    """The windows of the whole time that events, curves or marks cover, one after the other."""
    known = [edges for edges in (*(curve.edges_ns for curve in curves), marks_ns) if len(edges)]
    events = [int(actors.start_ns.min()), int(actors.end_ns.max())] if len(actors) else []
    since = min([int(edges[0]) for edges in known] + events[:1], default=0)
    horizon = max([int(edges[-1]) for edges in known] + events[1:], default=0)
    for row, border in _windows(actors):
        until = horizon if border == _LATEST else max(border, since)
        yield _timeline(actors, row, since, until, marks_ns, last=border == _LATEST)
        since = until


def _windows(actors: Actors) -> Iterator[tuple[Int64, int]]:
    """Rows that are active before a border, earliest first, and that border; the last has none.

    A window takes in at least as many new events as it carries over, so that even events that never
    end cost no more than twice.
    """
    order = _start_order(actors.start_ns)
    starts = actors.start_ns if order is None else actors.start_ns[order]
    carried = np.zeros(0, np.int64)
    done = 0
    while True:
        upto = min(done + max(WINDOW, len(carried)), len(starts))
        if upto < len(starts):
            upto = int(np.searchsorted(starts, starts[upto - 1], side="right"))
        row = np.arange(done, upto) if order is None else order[done:upto]
        if actors.lane is not None:
            row = _longest_first(row, actors)
        row = np.concatenate((carried, row))
        done = upto
        if done == len(starts):
            yield row, _LATEST
            return
        border = int(starts[done])
        yield row, border
        carried = row[actors.end_ns[row] > border]


def _longest_first(row: Int64, actors: Actors) -> Int64:
    """Where events start together, the longest comes first: it is the one around the others."""
    start = actors.start_ns[row]
    same = start[1:] == start[:-1]
    if not same.any():
        return row
    together = np.flatnonzero(np.append(same, False) | np.append(False, same))
    events = row[together]
    ordered = row.copy()
    ordered[together] = events[np.lexsort((-actors.end_ns[events], start[together]))]
    return np.asarray(ordered)


def _start_order(start_ns: Int64) -> Int64 | None:
    """A stable argsort in linear time: buckets of time by radix, then each stretch of buckets. None for
    what is in order already, as most traces are."""
    count = len(start_ns)
    if (start_ns[1:] >= start_ns[:-1]).all():
        return None
    if count <= 4 * WINDOW:
        return np.argsort(start_ns, kind="stable")
    first = start_ns.min()
    width = (start_ns.max() - first) // (1 << 16) + 1
    bucket = ((start_ns - first) // width).astype(np.uint16)
    order = np.argsort(bucket, kind="stable")
    ends = np.cumsum(np.bincount(bucket, minlength=1 << 16))
    begin = 0
    while begin < count:
        end = int(ends[min(int(np.searchsorted(ends, begin + WINDOW)), len(ends) - 1)])
        stretch = order[begin:end]
        order[begin:end] = stretch[np.argsort(start_ns[stretch], kind="stable")]
        begin = end
    return order


def _timeline(
    actors: Actors, row: Int64, since: int, until: int, marks_ns: Int64, *, last: bool
) -> _Timeline:
    start = np.maximum(actors.start_ns[row], since)
    end = np.minimum(actors.end_ns[row], until)
    pieces = Pieces(row, start, end)
    if (end <= start).any():
        pieces = pieces.take(end > start)
    row = pieces.row
    lane = None if actors.lane is None else actors.lane[row]
    group = None if actors.group is None else actors.group[row]
    pieces = arrange(pieces, lane, actors.kind[row], group)
    marks = slice(
        int(np.searchsorted(marks_ns, since)),
        len(marks_ns) if last else int(np.searchsorted(marks_ns, until)),
    )
    return _activity(actors, pieces, marks, marks_ns[marks], since, until)


def _activity(
    actors: Actors, pieces: Pieces, marks: slice, marks_ns: Int64, since: int, until: int
) -> _Timeline:
    cuts = pieces.cuts or Cuts(*(np.zeros(0, np.int64),) * 3)
    points = np.concatenate(
        (pieces.start_ns, pieces.end_ns, cuts.start_ns, cuts.end_ns, marks_ns, [since, until])
    )
    order = np.argsort(points)
    glue = actors.kind[pieces.row] == RUNTIME
    any_glue = bool(glue.any())
    weight = None if actors.weight is None else _quanta(actors.weight[pieces.row])
    main_weight, main_active = _active(pieces, cuts, weight, ~glue if any_glue else None, order)
    glue_weight = glue_active = None
    if any_glue:
        glue_weight, glue_active = _active(pieces, None, weight, glue, order)
        glue_active &= ~main_active
    return _Timeline(
        pieces=pieces,
        glue=glue if any_glue else None,
        weight=None if weight is None else weight.weights(weight.count),
        t_ns=points[order],
        order=order,
        marks=marks,
        main_weight=main_weight,
        main_active=main_active,
        glue_weight=glue_weight,
        glue_active=glue_active,
    )


@dataclass(frozen=True, eq=False)
class _Quanta:
    """Weights as whole numbers of a small quantum. Sums of them are exact: a light event beside a heavy one
    that comes and goes keeps its share, and what is active is never zero by rounding."""

    count: Int64
    quantum: float

    def weights(self, count: Int64) -> Float64:
        """Whole numbers of the quantum as weights again."""
        return np.asarray(count * self.quantum, np.float64)


def _quanta(weight: Float64) -> _Quanta:
    """As fine as fits: all pieces of a window together must not overflow."""
    quantum = float(weight.max(initial=1.0)) * (len(weight) + 1) / 2.0**62
    return _Quanta(np.maximum(np.rint(weight / quantum), 1).astype(np.int64), quantum)


def _active(
    pieces: Pieces,
    cuts: Cuts | None,
    weight: _Quanta | None,
    of_class: NDArray[np.bool_] | None,
    order: Int64,
) -> tuple[Float64, NDArray[np.bool_]]:
    """The weight of a class that is active in each segment, and whether any is."""
    counts = np.ones(len(pieces), np.int64) if weight is None else weight.count
    total = np.cumsum(_changes(pieces, cuts, counts, of_class, len(order))[order])[:-1]
    return total.astype(np.float64) if weight is None else weight.weights(total), total > 0


def _changes(
    pieces: Pieces, cuts: Cuts | None, weight: Int64, of_class: NDArray[np.bool_] | None, length: int
) -> Int64:
    """By how much the active weight changes at each point: a piece starts, and what is around it stops."""
    count = len(pieces)
    counts = weight if of_class is None else np.where(of_class, weight, 0)
    rises = counts
    if pieces.parent is not None:
        rises = counts - np.where(pieces.parent == NO_PARENT, 0, counts[pieces.parent])
    changes = np.zeros(length, np.int64)
    changes[:count], changes[count : 2 * count] = rises, -rises
    if cuts is not None and len(cuts.piece):
        taken, end = weight[cuts.piece], 2 * count + len(cuts.piece)
        changes[2 * count : end], changes[end : end + len(cuts.piece)] = -taken, taken
    return changes


def _less_children(own: Float64, around: Float64, parent: Int64 | None) -> Float64:
    """Each piece's own amount without what falls to the pieces inside it (counted in its own terms)."""
    if parent is None:
        return own
    child = np.flatnonzero(parent != NO_PARENT)
    return own - sums_by(parent[child], around[child], len(own))
