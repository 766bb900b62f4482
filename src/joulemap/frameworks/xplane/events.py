"""The events of a plane, as columns."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joulemap.frameworks import wire
from joulemap.frameworks.wire import Columns, Field, Torn
from joulemap.frameworks.xplane.plane import Plane
from joulemap.labels import Labels
from joulemap.traces import Int64

_ID, _NAME, _TIME_NS, _EVENT, _DISPLAY_NAME = 1, 2, 3, 4, 11
_DESCRIBED, _OFFSET_PS, _DURATION_PS, _STAT = 1, 2, 3, 4
_KEY = 1
_EVENT_TAG = _EVENT << 3 | wire.LENGTH
_PS_PER_NS = 1000
_EPOCH_SINCE_NS = 10**18
"""A line's time that is later than this (September 2001) counts from 1970, not from the profile's start."""


@dataclass(frozen=True, slots=True)
class Line:
    """A thread or a stream."""

    number: int
    name: str


@dataclass(frozen=True, eq=False)
class Stats:
    """The stats of events, a row each: whose, under which key, the field that holds the value, and the
    value itself, or where it starts and ends in the file."""

    event: Int64
    key: Int64
    kind: Int64
    value: Int64
    end: Int64


@dataclass(frozen=True, eq=False)
class Events:
    """The events of one plane, line by line, times in epoch ns; ``described`` counts the plane's table."""

    plane: Plane
    lines: tuple[Line, ...]
    line: NDArray[np.int32]
    described: NDArray[np.int32]
    start_ns: Int64
    end_ns: Int64
    stats: Stats

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def name(self) -> Labels:
        return Labels(self.described, tuple(one.name for one in self.plane.described))

    def numbers(self, key: str, missing: int = 0) -> Int64:
        """A stat that is a whole number, for every event; ``missing`` where it has none."""
        column = np.full(len(self), missing, np.int64)
        rows = self._rows(key)
        column[self.stats.event[rows]] = self.stats.value[rows]
        return column

    def texts(self, key: str) -> Labels:
        """A stat that is a text, for every event: its own, else that of its description, else empty."""
        words = {"": 0}
        described = [str(one.stats.get(key, "")) for one in self.plane.described]
        common = np.array([words.setdefault(word, len(words)) for word in described] or [0], np.int32)
        codes = common[self.described]
        rows = self._rows(key)
        for event, *value in np.column_stack(
            (self.stats.event, self.stats.kind, self.stats.value, self.stats.end)
        )[rows].tolist():
            codes[event] = words.setdefault(self.plane.text(*value), len(words))
        return Labels(codes, tuple(words))

    def has(self, key: str) -> NDArray[np.bool_]:
        """Which events have a stat of their own under a key."""
        having = np.zeros(len(self), bool)
        having[self.stats.event[self._rows(key)]] = True
        return having

    def _rows(self, key: str) -> Int64:
        number = self.plane.stat_keys.get(key)
        return np.flatnonzero(self.stats.key == number) if number is not None else np.zeros(0, np.int64)


def read_events(plane: Plane, origin_ns: int, progress: Callable[[int], None] | None = None) -> Events:
    """All events of a plane. ``origin_ns`` is the profile's start, which lines count their time from.

    ``progress`` is told how many bytes have been read.
    """
    parts = []
    for field in plane.lines:
        parts.append(_read_line(plane.data, field, origin_ns))
        if progress is not None:
            progress(field.end - field.value)
    return _joined(plane, parts)


@dataclass(frozen=True, eq=False)
class _LineEvents:
    line: Line
    number: Int64
    start_ns: Int64
    end_ns: Int64
    stats: Stats


def _read_line(data: bytes, field: Field, origin_ns: int) -> _LineEvents:
    others, start, end = _spans(data, field.value, field.end)
    number, name, display, time_ns = 0, "", "", 0
    for other in others:
        if other.number == _ID:
            number = other.value
        elif other.number == _NAME:
            name = wire.text(data, other)
        elif other.number == _DISPLAY_NAME:
            display = wire.text(data, other)
        elif other.number == _TIME_NS:
            time_ns = wire.signed(other.value)
    if time_ns < _EPOCH_SINCE_NS:
        time_ns += origin_ns
    found = wire.columns(data, start, end)
    offset_ps, length_ps = found.of(_OFFSET_PS, len(start)), found.of(_DURATION_PS, len(start))
    return _LineEvents(
        Line(number, display or name),
        found.of(_DESCRIBED, len(start)),
        time_ns + offset_ps // _PS_PER_NS,
        time_ns + (offset_ps + np.maximum(length_ps, 0)) // _PS_PER_NS,
        _stats(data, found.spans(_STAT)),
    )


def _spans(data: bytes, start: int, end: int) -> tuple[list[Field], Int64, Int64]:
    """The line's own fields, and where each of its events starts and ends.

    Where a message starts is known only when the one before has been read: the one loop over all events.
    """
    others: list[Field] = []
    starts, ends = array("q"), array("q")
    while start < end:
        if data[start] != _EVENT_TAG:
            other = next(wire.fields(data, start, end))
            others.append(other)
            start = other.end
            continue
        length, start = wire.varint(data, start + 1, end)
        starts.append(start)
        start += length
        ends.append(start)
    if start != end:
        raise Torn("an event reaches beyond its line")
    return others, np.frombuffer(starts, np.int64), np.frombuffer(ends, np.int64)


def _stats(data: bytes, found: Columns) -> Stats:
    order = np.argsort(found.value, kind="stable")
    found = found.take(order)
    inner = wire.columns(data, found.value, found.end)
    keys = inner.of(_KEY, len(order))
    value = inner.take(inner.number != _KEY)
    return Stats(found.message[value.message], keys[value.message], value.number, value.value, value.end)


def _joined(plane: Plane, parts: list[_LineEvents]) -> Events:
    counts = [len(part.number) for part in parts]
    before = np.cumsum([0, *counts])
    stats = [
        (part.stats.event + first, part.stats.key, part.stats.kind, part.stats.value, part.stats.end)
        for part, first in zip(parts, before.tolist(), strict=False)
    ]
    return Events(
        plane,
        tuple(part.line for part in parts),
        np.repeat(np.arange(len(parts), dtype=np.int32), counts),
        _places(plane, _column([part.number for part in parts])),
        _column([part.start_ns for part in parts]),
        _column([part.end_ns for part in parts]),
        Stats(*(_column([columns[place] for columns in stats]) for place in range(5))),
    )


def _places(plane: Plane, number: Int64) -> NDArray[np.int32]:
    """Where in the plane's table each number is; the last place, which has no name, where it is not there."""
    numbers = np.array([one.number for one in plane.described], np.int64)
    order = np.argsort(numbers[:-1], kind="stable")
    found = order[np.minimum(np.searchsorted(numbers[order], number), len(order) - 1)] if len(order) else 0
    return np.where(numbers[found] == number, found, len(order)).astype(np.int32)


def _column(parts: list[Int64]) -> Int64:
    return np.concatenate([np.zeros(0, np.int64), *parts])
