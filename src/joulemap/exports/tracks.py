"""Where slices are drawn: on one track they nest or follow each other, as every trace viewer wants it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from joulemap.traces import EventTrace, Int64


@dataclass(frozen=True, slots=True, eq=False)
class Tracks:
    """The track of each event, and of each track its name and the code of its device."""

    of_event: NDArray[np.int32]
    names: list[str]
    device: list[int]


def tracks_of(events: EventTrace) -> Tracks:
    """A track for each lane of each device, and more of them where slices overlap without nesting: kernels
    of one stream that run side by side, or events of which no lane is known."""
    lane = np.zeros(len(events), np.int32) if events.lane is None else events.lane.codes
    words = ("",) if events.lane is None else events.lane.words
    order = np.lexsort((-events.end_ns, events.start_ns, lane, events.device.codes))
    place = events.device.codes.astype(np.int64) * len(words) + lane
    borders = np.flatnonzero(np.diff(place[order], prepend=-1))
    found = Tracks(np.zeros(len(events), np.int32), [], [])
    for begin, end in pairwise([*borders.tolist(), len(order)]):
        rows = order[begin:end]
        beside = _side_by_side(events.start_ns[rows], events.end_ns[rows])
        found.of_event[rows] = len(found.names) + beside
        where, thread = divmod(int(place[rows[0]]), len(words))
        count = int(beside.max()) + 1
        found.names.extend(_name(words[thread], number) for number in range(count))
        found.device.extend([where] * count)
    return found


def _name(lane: str, number: int) -> str:
    return " ".join(part for part in (lane or "events", f"({number + 1})" if number else "") if part)


def _side_by_side(start_ns: Int64, end_ns: Int64) -> NDArray[np.int32]:
    """The first track on which each event (by start, longest first) nests in what is open, or follows it."""
    if (start_ns[1:] >= end_ns[:-1]).all():
        return np.zeros(len(start_ns), np.int32)
    tracks: list[list[int]] = []
    chosen = np.zeros(len(start_ns), np.int32)
    for row, (start, end) in enumerate(zip(start_ns.tolist(), end_ns.tolist(), strict=True)):
        chosen[row] = next(
            (number for number, open_until in enumerate(tracks) if _takes(open_until, start, end)),
            len(tracks),
        )
        if chosen[row] == len(tracks):
            tracks.append([])
        tracks[chosen[row]].append(end)
    return chosen


def _takes(open_until: list[int], start: int, end: int) -> bool:
    """Whether a track can have this event next; what has ended by then is closed."""
    while open_until and open_until[-1] <= start:
        open_until.pop()
    return not open_until or end <= open_until[-1]
