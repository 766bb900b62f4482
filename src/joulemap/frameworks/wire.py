"""Protobuf's wire format, read without the protobuf library: message by message, or very many in step.

A profile holds a million small messages of one kind. ``columns`` decodes them side by side: the first
field of each, then the second of each, with array operations instead of a million objects.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from joulemap.traces import Int64

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
NO_SPAN = -1
_AT_ONCE = 1 << 16
_U64 = np.uint64
_LOW, _HIGH = _U64(0x0101010101010101), _U64(0x8080808080808080)
_HALVES = (
    (_U64(0x007F007F007F007F), _U64(1)),
    (_U64(0x00003FFF00003FFF), _U64(2)),
    (_U64(0x000000000FFFFFFF), _U64(4)),
)
"""How to close the gaps between groups of seven bits: the lower of each pair stays, the upper moves down."""
_LONGEST_VARINT = 10
_MORE = 0x80
_FIXED = {FIXED64: 8, FIXED32: 4}


class Torn(ValueError):
    """The bytes are no whole message."""


class Field(NamedTuple):
    """One field: its number, and its value, or for text and inner messages where they start and end."""

    number: int
    value: int
    end: int


def fields(data: bytes, start: int = 0, end: int | None = None) -> Iterator[Field]:
    """The fields of one message, in order. Numbers of fixed length come as their bits."""
    stop = len(data) if end is None else end
    while start < stop:
        tag, start = varint(data, start, stop)
        number, kind = tag >> 3, tag & 7
        if not number:
            raise Torn("a field has no number")
        if kind == VARINT:
            value, start = varint(data, start, stop)
            yield Field(number, value, start)
            continue
        if kind == LENGTH:
            length, start = varint(data, start, stop)
        elif kind in _FIXED:
            length = _FIXED[kind]
        else:
            raise Torn(f"a field is of kind {kind}")
        if start + length > stop:
            raise Torn("a field reaches beyond its message")
        value = start if kind == LENGTH else int.from_bytes(data[start : start + length], "little")
        start += length
        yield Field(number, value, start)


def varint(data: bytes, start: int, end: int) -> tuple[int, int]:
    """A number of variable length at ``start``, and where the next thing starts."""
    if start < end and data[start] < _MORE:  # nearly all are that small
        return data[start], start + 1
    value = 0
    for place, byte in enumerate(data[start : min(start + _LONGEST_VARINT, end)]):
        value |= (byte & 0x7F) << (7 * place)
        if byte < _MORE:
            return value, start + place + 1
    raise Torn("a number does not end")


def signed(value: int) -> int:
    """An ``int64`` of the wire, where negative ones are large."""
    return value - (1 << 64) if value >> 63 else value


def text(data: bytes, field: Field) -> str:
    """A string field."""
    return data[field.value : field.end].decode("utf-8", "replace")


def numbers(data: bytes, field: Field) -> list[int]:
    """A packed field of whole numbers."""
    found, start = [], field.value
    while start < field.end:
        value, start = varint(data, start, field.end)
        found.append(value)
    return found


@dataclass(frozen=True, eq=False)
class Columns:
    """The fields of many messages, as columns: whose it is, its number, and its value, or where that starts
    and ends; ``end`` is ``NO_SPAN`` for numbers."""

    message: Int64
    number: Int64
    value: Int64
    end: Int64

    def take(self, rows: NDArray[np.bool_] | Int64) -> Columns:
        """Some of the fields."""
        return Columns(self.message[rows], self.number[rows], self.value[rows], self.end[rows])

    def spans(self, number: int) -> Columns:
        """The fields of one number that are texts or messages."""
        return self.take((self.number == number) & (self.end != NO_SPAN))

    def of(self, number: int, count: int, missing: int = 0) -> Int64:
        """The number in one field for each of ``count`` messages; the last one where it is repeated."""
        column = np.full(count, missing, np.int64)
        rows = (self.number == number) & (self.end == NO_SPAN)
        column[self.message[rows]] = self.value[rows]
        return column


def columns(data: bytes, start: Int64, end: Int64) -> Columns:
    """Decode the messages ``data[start[i]:end[i]]``, which lie in order, all at once."""
    parts = [Columns(*np.zeros((4, 0), np.int64))]
    for first in range(0, len(start), _AT_ONCE):
        some = slice(first, first + _AT_ONCE)
        begin, stop = int(start[some][0]), int(end[some][-1])
        piece = _Piece(data[begin:stop], begin)
        parts += piece.rounds(first, start[some] - begin, end[some] - begin)
    return Columns(
        np.concatenate([part.message for part in parts]),
        np.concatenate([part.number for part in parts]),
        np.concatenate([part.value for part in parts]),
        np.concatenate([part.end for part in parts]),
    )


class _Piece:
    """Some of the bytes, and where in the whole they begin."""

    def __init__(self, data: bytes, begin: int) -> None:
        self._begin = begin
        padded = np.frombuffer(data + bytes(16), np.uint8)
        self._eights = np.lib.stride_tricks.as_strided(
            padded[:8].view("<u8"), (len(data) + 8,), (1,), writeable=False
        )
        """The eight bytes from each place on, as one number."""

    def rounds(self, message: int, start: Int64, end: Int64) -> Iterator[Columns]:
        """One field of every message that has any left, again and again; messages count from ``message``."""
        row = np.arange(message, message + len(start))
        while True:
            left = start < end
            if not left.all():
                row, start, end = row[left], start[left], end[left]
            if not len(row):
                return
            found, start = self._fields(row, start, end)
            yield found

    def _fields(self, row: Int64, start: Int64, end: Int64) -> tuple[Columns, Int64]:
        tag, start = self._varints(start, end)
        number, kind = tag >> 3, tag & 7
        value, after = np.empty(len(row), np.int64), np.empty(len(row), np.int64)
        for each in np.unique(kind).tolist():
            rows = np.flatnonzero(kind == each)
            value[rows], after[rows] = self._values(each, start[rows], end[rows])
        if not number.all():
            raise Torn("a field has no number")
        stop = np.where(kind == LENGTH, after + self._begin, NO_SPAN)
        return Columns(row, number, value, stop), after

    def _values(self, kind: int, start: Int64, end: Int64) -> tuple[Int64, Int64]:
        """The values of fields of one kind, and where they end."""
        if kind == VARINT:
            return self._varints(start, end)
        if kind == LENGTH:
            length, start = self._varints(start, end)
            if ((length < 0) | (length > end - start)).any():
                raise Torn("a field reaches beyond its message")
            return start + self._begin, start + length
        if kind not in _FIXED or (start + _FIXED[kind] > end).any():
            raise Torn(f"a field is of kind {kind}, or reaches beyond its message")
        bits = self._eights[start]
        return (bits if kind == FIXED64 else bits & _U64(0xFFFFFFFF)).view(np.int64), start + _FIXED[kind]

    def _varints(self, start: Int64, end: Int64) -> tuple[Int64, Int64]:
        """Numbers of variable length, seven bits a byte, as ``int64``; and where each one ends."""
        bits = self._eights[start]
        last = ~bits & _HIGH
        last &= ~last + _U64(1)  # the high bit of the last byte, or 0 where eight are not enough
        below = last - _U64(1)
        after = start + (((below & _LOW) * _LOW) >> _U64(56)).view(np.int64)
        bits &= below & ~_HIGH
        for half, shift in _HALVES:
            bits = (bits & half) | ((bits >> shift) & (half << (shift * _U64(7))))
        for row in np.flatnonzero(last == 0).tolist():
            bits[row], after[row] = self._long_varint(int(start[row]), int(end[row]))
        if (after > end).any():
            raise Torn("a number does not end")
        return bits.view(np.int64), after

    def _long_varint(self, start: int, end: int) -> tuple[int, int]:
        value, after = varint(
            self._eights[start : start + _LONGEST_VARINT].astype(np.uint8).tobytes(), 0, end - start
        )
        return value & 0xFFFFFFFFFFFFFFFF, start + after
