"""The parts of a table's files: what is promised of their bytes, and what could be read of them."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

import pyarrow as pa

_PART = re.compile(r"(\d{1,18}) (\d{1,18}) (\d{1,18}) ([0-9a-f]{8})", re.ASCII)
_PART_CUT_OFF = re.compile(r"\d*|\d+ \d*|\d+ \d+ \d*|\d+ \d+ \d+ [0-9a-f]{0,8}", re.ASCII)


class Part(NamedTuple):
    """The promise that bytes ``[start, end)`` of a file are whole and hold ``rows`` rows."""

    start: int
    end: int
    rows: int
    crc32: str

    @classmethod
    def of(cls, data: bytes | memoryview, start: int, rows: int) -> Part:
        """Sum up data that begins at ``start``; the checksum covers the three numbers too."""
        end = start + len(data)
        crc = zlib.crc32(b"%d %d %d" % (start, end, rows), zlib.crc32(data))
        return cls(start, end, rows, f"{crc:08x}")

    @classmethod
    def parse(cls, text: str) -> Part:
        """Read what ``str`` wrote; ValueError for anything else."""
        match = _PART.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not the checksum of a part")
        return cls(int(match[1]), int(match[2]), int(match[3]), match[4])

    def __str__(self) -> str:
        return f"{self.start} {self.end} {self.rows} {self.crc32}"

    def matches(self, data: bytes | memoryview) -> bool:
        """Whether these are the bytes that were written."""
        return self == Part.of(data, self.start, self.rows)

    def read(self, file: BinaryIO, size: int) -> bytes | None:
        """Its bytes in a file of ``size`` bytes, or None when they are not what was written."""
        if not self.start <= self.end <= size:
            return None
        file.seek(self.start)
        data = file.read(self.end - self.start)
        return data if self.matches(data) else None


@dataclass(frozen=True, slots=True)
class Contents:
    """What could be read of a table. Both texts name the file and are empty when all is well."""

    table: pa.Table | None = None
    damage: str = ""
    """What is missing or altered: never to be passed over in silence."""
    cut_off: str = ""
    """What a writer that was killed had not finished: normal."""


def parse_lines(content: bytes) -> tuple[list[Part], int, bool]:
    """The parts that the lines promise, how many lines are broken, and whether the last is cut off."""
    *lines, tail = content.decode(errors="replace").split("\n")
    parts = [Part.parse(line) for line in lines if _PART.fullmatch(line)]
    broken = len(lines) - len(parts) + (_PART_CUT_OFF.fullmatch(tail) is None)
    return parts, broken, bool(tail)


def mismatch_in_words(size: int, parts: Sequence[Part], bad: Sequence[Part]) -> str:
    """How a file of ``size`` bytes differs from what its parts promise."""
    if not bad or size < parts[-1].end:
        return f"it has {size:,} bytes and should have {parts[-1].end:,}"
    return f"bytes {bad[0].start:,} to {bad[0].end:,} do not match their checksum"


def kept_in_words(parts: Sequence[Part], lost: Sequence[Part]) -> str:
    """How many rows are left without the lost parts."""
    rows = sum(part.rows for part in parts)
    return f"{rows - sum(part.rows for part in lost):,} of its {rows:,} rows can still be read."
