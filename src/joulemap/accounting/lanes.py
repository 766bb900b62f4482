"""What a lane is doing at each instant: the innermost event, and what its workers do for it.

A CPU thread does one thing at a time. Where its events nest, time belongs to the innermost one; where
they overlap without nesting (rounding, torn traces) it belongs to the one that started last. An operation
whose pool workers are active has its calling thread waiting, or working as one of them: while any worker
slice of it runs, the calling thread does not count.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joulemap.traces import KINDS, Int64

OP, WORKER, KERNEL, RUNTIME = range(len(KINDS))
NO_PARENT = -1


@dataclass(frozen=True, eq=False)
class Pieces:
    """Parts of events inside one window of time, in the order (start, longest first).

    ``row`` is the event's row in its trace. ``parent`` is the piece around it in its lane, or None where
    nothing nests. ``cuts`` are the spans in which a piece counts for nothing.
    """

    row: Int64
    start_ns: Int64
    end_ns: Int64
    parent: Int64 | None = None
    cuts: Cuts | None = None

    def __len__(self) -> int:
        return len(self.row)

    def take(self, keep: NDArray[np.bool_]) -> Pieces:
        return Pieces(self.row[keep], self.start_ns[keep], self.end_ns[keep])


@dataclass(frozen=True, eq=False)
class Cuts:
    """``[start_ns, end_ns)`` taken out of piece ``piece``."""

    piece: Int64
    start_ns: Int64
    end_ns: Int64


@dataclass(frozen=True, eq=False)
class _Walk:
    """The starts and ends of pieces, lane by lane, in order of time; ``depth`` counts from 0 outside."""

    piece: Int64
    opens: NDArray[np.bool_]
    depth: Int64


def arrange(
    pieces: Pieces, lane: NDArray[np.int32] | None, kind: NDArray[np.int32], group: Int64 | None
) -> Pieces:
    """Find parents and cuts. ``lane`` and ``kind`` are per piece; ``group`` is the operation a piece
    belongs to, or None where there are no workers."""
    walk = None
    if lane is not None:
        lane = _own_lanes(lane, kind)
        walk = _walk(pieces, lane)
        if walk.depth.max(initial=0) > 1:
            parent = _parents(walk, len(pieces))
            if _overlaps(pieces, parent):
                pieces, kept = _untangle(pieces, lane)
                lane, kind = lane[kept], kind[kept]
                group = None if group is None else group[kept]
                walk = _walk(pieces, lane)
                parent = _parents(walk, len(pieces))
            pieces = Pieces(pieces.row, pieces.start_ns, pieces.end_ns, parent)
    if group is None or not (kind == WORKER).any():
        return pieces
    cuts = _covered_by_workers(_self_segments(pieces, walk), kind, group)
    return Pieces(pieces.row, pieces.start_ns, pieces.end_ns, pieces.parent, cuts)


def _own_lanes(lane: NDArray[np.int32], kind: NDArray[np.int32]) -> NDArray[np.int32]:
    """Kernels of one stream never nest: where they overlap they run side by side, each in its own lane."""
    kernels = kind == KERNEL
    if not kernels.any():
        return lane
    fresh = lane.max() + 1 + np.cumsum(kernels, dtype=np.int32)
    return np.where(kernels, fresh, lane)


def _walk(pieces: Pieces, lane: NDArray[np.int32]) -> _Walk:
    """Sort starts and ends so that, at one instant, ends come first and the innermost ends first,
    then starts, the outermost first. The stable sort keeps that from the order of the input."""
    count = len(pieces)
    points = np.concatenate((pieces.end_ns[::-1], pieces.start_ns))
    order = np.argsort(points, kind="stable")
    opens = order >= count
    piece = np.where(opens, order - count, count - 1 - order)
    by_lane = stable_order(lane[piece])
    piece, opens = piece[by_lane], opens[by_lane]
    return _Walk(piece, opens, np.cumsum(np.where(opens, 1, -1)))


def stable_order(codes: NDArray[np.int32]) -> Int64:
    """A stable argsort of small non-negative codes: NumPy sorts 16-bit integers by radix, in linear time."""
    narrow = codes.astype(np.uint16) if codes.max(initial=0) < 1 << 16 else codes
    return np.argsort(narrow, kind="stable")


def _parents(walk: _Walk, count: int) -> Int64:
    """The piece around each piece: what opened just before the first child; for later children, the
    same as for the child before, which is their neighbour once the starts are sorted by depth."""
    at = np.flatnonzero(walk.opens)
    depth = (walk.depth[at] - 1).astype(np.int32)
    before = np.maximum(at - 1, 0)
    by_depth = stable_order(depth)
    first_child = (walk.opens[before] & (depth > 0))[by_depth]
    source = np.maximum.accumulate(np.where(first_child, np.arange(len(at)), 0))
    found = walk.piece[before][by_depth][source]
    parent = np.empty(count, np.int64)
    parent[walk.piece[at][by_depth]] = np.where(depth[by_depth] > 0, found, NO_PARENT)
    return parent


def _overlaps(pieces: Pieces, parent: Int64) -> bool:
    """Whether any piece outlives the piece around it: then the lane does not nest properly."""
    child = np.flatnonzero(parent != NO_PARENT)
    around = parent[child]
    return bool(
        (pieces.end_ns[around] < pieces.end_ns[child]).any()
        or (pieces.start_ns[around] > pieces.start_ns[child]).any()
    )


def _untangle(pieces: Pieces, lane: NDArray[np.int32]) -> tuple[Pieces, NDArray[np.bool_]]:
    """End a piece where a later one starts that outlives it: the later one owns that time anyway.

    Afterwards everything nests. Rare (a window of a torn trace), so a plain loop over its pieces.
    """
    start, end = pieces.start_ns.tolist(), pieces.end_ns.tolist()
    open_in: dict[int, list[int]] = {}
    for index, code in enumerate(lane.tolist()):
        stack = open_in.setdefault(code, [])
        while stack and end[stack[-1]] <= start[index]:
            stack.pop()
        while stack and end[stack[-1]] < end[index]:
            end[stack.pop()] = start[index]
        stack.append(index)
    clipped = np.array(end, np.int64)
    kept = clipped > pieces.start_ns
    return Pieces(pieces.row, pieces.start_ns, clipped).take(kept), kept


def _self_segments(pieces: Pieces, walk: _Walk | None) -> Cuts:
    """The spans in which each piece is the innermost of its lane."""
    if walk is None or pieces.parent is None:
        return Cuts(np.arange(len(pieces)), pieces.start_ns, pieces.end_ns)
    time = np.where(walk.opens, pieces.start_ns[walk.piece], pieces.end_ns[walk.piece])
    owner = np.where(walk.opens, walk.piece, pieces.parent[walk.piece])[:-1]
    real = (walk.depth[:-1] > 0) & (time[1:] > time[:-1])
    return Cuts(owner[real], time[:-1][real], time[1:][real])


def _covered_by_workers(segments: Cuts, kind: NDArray[np.int32], group: Int64) -> Cuts | None:
    """Where a calling thread's own time overlaps any worker slice of the same operation.

    Operations and times are numbered, so that one number, operation times ``size`` plus time, places a
    border among those of all operations.
    """
    kinds, operation = kind[segments.piece], group[segments.piece]
    working, calling = np.flatnonzero(kinds == WORKER), np.flatnonzero(kinds == OP)
    groups = np.unique(operation[working])
    if not len(groups):  # every slice has something nested over all of it
        return None
    times = np.sort(np.concatenate((segments.start_ns[working], segments.end_ns[working])))
    size = np.int64(len(times) + 1)
    number = np.full(int(operation.max()) + 1, -1)
    number[groups] = np.arange(len(groups))
    offset = number[operation[working]] * size
    union = _union(
        offset + np.searchsorted(times, segments.start_ns[working]),
        offset + np.searchsorted(times, segments.end_ns[working]),
    )
    calling = calling[_meets_any(segments, calling, working)]
    place = number[operation[calling]]
    assisted = place >= 0
    return _overlap(segments, calling[assisted], place[assisted] * size, times, union)


def _meets_any(segments: Cuts, calling: Int64, working: Int64) -> NDArray[np.bool_]:
    """Whether any worker at all is busy during a caller's segment: a quick look before the careful one."""
    opens, closes = _union(segments.start_ns[working], segments.end_ns[working])
    following = np.searchsorted(closes, segments.start_ns[calling], side="right")
    return np.asarray(np.append(opens, np.iinfo(np.int64).max)[following] < segments.end_ns[calling])


def _overlap(segments: Cuts, calling: Int64, offset: Int64, times: Int64, union: tuple[Int64, Int64]) -> Cuts:
    """The overlaps of callers' segments with the spans in which their workers are busy."""
    opens, closes = union
    start, end = segments.start_ns[calling], segments.end_ns[calling]
    begun = np.maximum(np.searchsorted(times, start, side="right") - 1, 0)
    first = np.searchsorted(closes, offset + begun, side="right")
    next_open = np.append(opens, np.iinfo(np.int64).max)[first] - offset
    meets = (next_open < len(times)) & (times[np.minimum(next_open, len(times) - 1)] < end)
    calling, offset, first, start, end = (column[meets] for column in (calling, offset, first, start, end))
    last = np.searchsorted(opens, offset + np.searchsorted(times, end), side="left")
    repeat = np.maximum(last - first, 0)
    which, span = np.repeat(np.arange(len(calling)), repeat), _ranges(first, repeat)
    begin = np.maximum(start[which], times[opens[span] - offset[which]])
    finish = np.minimum(end[which], times[closes[span] - offset[which]])
    real = finish > begin
    return Cuts(segments.piece[calling[which]][real], begin[real], finish[real])


def _union(opens: Int64, closes: Int64) -> tuple[Int64, Int64]:
    """Merge spans into disjoint ones. Spans of different groups lie in different ranges of numbers."""
    order = np.argsort(opens, kind="stable")
    opens, closes = opens[order], np.maximum.accumulate(closes[order])
    begins = np.concatenate(([True], opens[1:] > closes[:-1]))
    ends = np.concatenate((begins[1:], [True]))
    return opens[begins], closes[ends]


def _ranges(first: Int64, count: Int64) -> Int64:
    """``first[0], first[0]+1, …`` (``count[0]`` of them), then the same from ``first[1]``, and so on."""
    offset = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
    return np.asarray(np.repeat(first, count) + offset, np.int64)
