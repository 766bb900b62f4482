"""The tables of a recording as files: open while they are written, sealed afterwards.

An *open* table is an Arrow stream, ``X.arrows``, to which parts are added, and ``X.sums``, to which a
line with each part's checksum is added once the part is written. A line is the promise that the part is
whole; what no line covers was cut off and does not count. Every part carries its own dictionaries, so
that losing one part loses no other.

A *sealed* table is one Parquet file, ``X.parquet``, with the same checksums, one part for each row group
and one for the footer; ``recording.json`` keeps them.

Nothing reaches a decoder before its checksum was found right.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from joulemap.errors import DamagedRecording, InputError, RecordingError

ROWS_PER_GROUP = 1 << 20
"""Rows that are encoded, checked and lost together, at most."""

ARROWS, SUMS, PARQUET, UNFINISHED = ".arrows", ".sums", ".parquet", ".tmp"

Order = Literal["any", "ascending", "contiguous"]
"""How the intervals of a part must follow those of the part before it."""

_PART = re.compile(r"(\d{1,18}) (\d{1,18}) (\d{1,18}) ([0-9a-f]{8})", re.ASCII)
_PART_CUT_OFF = re.compile(r"\d*|\d+ \d*|\d+ \d+ \d*|\d+ \d+ \d+ [0-9a-f]{0,8}", re.ASCII)
_END_OF_STREAM = 8  # bytes that close an Arrow stream; ours stay open
_FULL = {
    errno.ENOSPC: ("the disk is full", "Free some space, or write the recording to another disk."),
    errno.EDQUOT: ("your quota on this disk is used up", "Free some space, or write to another disk."),
    errno.EFBIG: ("it would exceed the largest file allowed here", "Raise the limit: ulimit -f unlimited."),
}


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


def beside(stem: Path, suffix: str) -> Path:
    """``power/gpu-0`` and ``.sums`` make ``power/gpu-0.sums``, whatever dots the name has."""
    return stem.with_name(stem.name + suffix)


# Writing files


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what the operating system refuses into an error that names the file and says what to do."""
    try:
        yield
    except OSError as error:
        usual = (error.strerror or str(error), "Check the path and its permissions.")
        reason, hint = _FULL.get(error.errno or 0, usual)
        raise RecordingError(
            f"{path} cannot be written: {reason}.", f"{hint} What was written before stays readable."
        ) from error


def replace(path: Path, write: Callable[[Path], None]) -> None:
    """Let ``write`` make a file under another name and put it in place: whole and durable, or not at all."""
    unfinished = beside(path, UNFINISHED)
    with writing(path):
        try:
            path.parent.mkdir(exist_ok=True)
            write(unfinished)
            _sync(unfinished)
            unfinished.replace(path)
            _sync(path.parent)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def lock(handle: int, kind: int = fcntl.LOCK_EX) -> bool:
    """Whether the file is ours alone now. A file system without locks says yes to everyone."""
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def is_locked(path: Path) -> bool:
    """Whether somebody is writing to this file or folder right now."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        return not lock(handle, fcntl.LOCK_SH)  # shared: those who only ask do not see each other
    finally:
        os.close(handle)


# The open form


class TableAppender:
    """An open table, written by the one process that made it, one thread at a time.

    What :meth:`append` has returned for is readable whatever happens to the process. An append that fails
    leaves nothing behind and can be tried again.
    """

    def __init__(self, stem: Path, schema: pa.Schema, order: Order = "any") -> None:
        self.stem = stem
        self._schema = schema
        self._order = order
        self._last_end_ns: int | None = None
        self._pid = os.getpid()
        self._end = self._sums_end = 0
        self._header = _encode(schema)
        # The sums come first: data without them is never a normal state.
        self._sums = _create(beside(stem, SUMS))
        self._data = -1
        try:
            self._data = _create(beside(stem, ARROWS))
            lock(self._data)
            self._write([(self._header, 0)])
        except BaseException:
            self.close()
            discard_open(stem)
            raise

    def append(self, table: pa.Table) -> None:
        """Add rows; they are safe from a crash of this process once this returns."""
        if os.getpid() != self._pid:
            raise RecordingError(
                f"{self.stem}: a forked child cannot write the table of its parent.",
                "Only the process that started a table adds to it.",
            )
        if not table.schema.equals(self._schema):
            raise InputError(
                f"{self.stem}: the columns of these rows ({', '.join(table.schema.names)}) are not those "
                f"of the rows before ({', '.join(self._schema.names)}).",
                "All parts of a table need the same columns; events all have lanes, or none have.",
            )
        self._check_order(table)
        batches = table.unify_dictionaries().combine_chunks().to_batches(max_chunksize=ROWS_PER_GROUP)
        self._write([(self._rows(batch), batch.num_rows) for batch in batches if batch.num_rows])
        if table.num_rows and self._order != "any":
            self._last_end_ns = table["end_ns"][-1].as_py()

    def _check_order(self, table: pa.Table) -> None:
        if self._last_end_ns is None or not table.num_rows:
            return
        off_ns = table["start_ns"][0].as_py() - self._last_end_ns
        if off_ns < 0 or (off_ns and self._order == "contiguous"):
            raise InputError(
                f"{self.stem}: the new part starts {abs(off_ns)} ns {'after' if off_ns > 0 else 'before'} "
                "the end of the last one.",
                "Parts follow each other in time; power and shares leave nothing out between them.",
            )

    def _rows(self, batch: pa.RecordBatch) -> memoryview:
        return memoryview(_encode(self._schema, batch))[len(self._header) :]

    def _write(self, parts: Sequence[tuple[bytes | memoryview, int]]) -> None:
        """All parts or none; first the data, then the promise that it is there."""
        end, lines = self._end, b""
        try:
            with writing(beside(self.stem, ARROWS)):
                for data, rows in parts:
                    _write_all(self._data, data)
                    lines += f"{Part.of(data, end, rows)}\n".encode()
                    end += len(data)
            with writing(beside(self.stem, SUMS)):
                _write_all(self._sums, lines)
            self._end, self._sums_end = end, self._sums_end + len(lines)
        except BaseException:
            with writing(self.stem):
                os.ftruncate(self._sums, self._sums_end)
                os.ftruncate(self._data, self._end)
            raise

    def close(self) -> None:
        """Make it durable and let go of it."""
        for handle in (self._data, self._sums):
            with suppress(OSError):  # closed before; or a disk that fails, which the checksums will tell
                os.fsync(handle)
            with suppress(OSError):
                os.close(handle)
        self._data = self._sums = -1


def _create(path: Path) -> int:
    with writing(path):
        path.parent.mkdir(exist_ok=True)
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o666)


def _encode(schema: pa.Schema, batch: pa.RecordBatch | None = None) -> bytes:
    """A whole stream but for its end: the schema, then the dictionaries and rows of a batch."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as stream:
        if batch is not None:
            stream.write_batch(batch)
    encoded: bytes = sink.getvalue()[:-_END_OF_STREAM].to_pybytes()
    return encoded


def _write_all(handle: int, data: bytes | memoryview) -> None:
    rest = memoryview(data)
    while len(rest):
        rest = rest[os.write(handle, rest) :]


def discard_open(stem: Path) -> None:
    """Remove the open form, the promises last: data without them would be damage."""
    for suffix in (ARROWS, SUMS):
        path = beside(stem, suffix)
        with writing(path):
            path.unlink(missing_ok=True)


@dataclass(slots=True)
class _OpenTable:
    """An open table as it is found on disk. ``lost`` fills up as it is read."""

    stem: Path
    parts: list[Part]
    broken_lines: int
    cut_off: bool
    lost: list[Part] = field(default_factory=list)

    @classmethod
    def find(cls, stem: Path) -> _OpenTable:
        *lines, tail = beside(stem, SUMS).read_bytes().decode(errors="replace").split("\n")
        parts = [Part.parse(line) for line in lines if _PART.fullmatch(line)]
        broken = len(lines) - len(parts) + (_PART_CUT_OFF.fullmatch(tail) is None)
        return cls(stem, parts, broken, bool(tail))

    def groups(self, prefix: bool = False) -> Iterator[pa.Table]:
        """The intact rows, in tables of a size that is easy to hold; with ``prefix`` up to the first loss.

        The first table is empty and has the schema; none at all comes when that is lost.
        """
        if not self.parts:
            return
        with beside(self.stem, ARROWS).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            schema, *rest = self.parts
            header = schema.read(file, size) if schema.start == 0 else None
            if header is None:
                self.lost.extend(self.parts)
                return
            yield _decode([header])
            for group in self._intact(file, size, rest, schema.end, prefix):
                yield _decode([header, *group])

    def _intact(
        self, file: BinaryIO, size: int, parts: Sequence[Part], end: int, prefix: bool
    ) -> Iterator[list[bytes]]:
        group, rows = list[bytes](), 0
        for part in parts:
            hole = part.start != end  # a line is missing, or stands twice
            stop = prefix and (hole or self.lost)
            data = part.read(file, size) if part.start >= end and not stop else None
            if data is None:
                self.lost.append(part)
                continue
            group.append(data)
            rows, end = rows + part.rows, part.end
            if rows >= ROWS_PER_GROUP:
                yield group
                group, rows = [], 0
        if group:
            yield group

    def damage(self) -> str:
        """What was found wrong, once all groups were read."""
        data, sums = beside(self.stem, ARROWS), beside(self.stem, SUMS)
        ends = [0, *(part.end for part in self.parts)]
        if self.broken_lines:
            what = f"{sums} is damaged: {self.broken_lines} of its lines cannot be read."
        elif self.lost:
            what = f"{data} is damaged: {_mismatch(data.stat().st_size, self.parts, self.lost)}."
        elif any(part.start != end for part, end in zip(self.parts, ends, strict=False)):
            what = f"{sums} is damaged: some of its lines are missing."
        else:
            return ""
        return f"{what} {_kept(self.parts, self.lost)}"

    def tail(self) -> str:
        """What a killed writer left unfinished."""
        data = beside(self.stem, ARROWS)
        if not self.parts:
            return f"{data} holds nothing yet."
        tail = data.stat().st_size - self.parts[-1].end
        if not tail and not self.cut_off:
            return ""
        return f"{data} was cut off: its last {tail:,} bytes are not complete."


def _decode(parts: Sequence[bytes]) -> pa.Table:
    """One table with one chunk, so that Parquet keeps its dictionaries as they are."""
    return pa.ipc.open_stream(b"".join(parts)).read_all().unify_dictionaries().combine_chunks()


def _read_open(stem: Path, prefix: bool) -> Contents:
    found = _OpenTable.find(stem)
    groups = list(found.groups(prefix))
    damage = found.damage()
    return Contents(pa.concat_tables(groups) if groups else None, damage, "" if damage else found.tail())


def _mismatch(size: int, parts: Sequence[Part], bad: Sequence[Part]) -> str:
    if not bad or size < parts[-1].end:
        return f"it has {size:,} bytes and should have {parts[-1].end:,}"
    return f"bytes {bad[0].start:,} to {bad[0].end:,} do not match their checksum"


def _kept(parts: Sequence[Part], lost: Sequence[Part]) -> str:
    rows = sum(part.rows for part in parts)
    return f"{rows - sum(part.rows for part in lost):,} of its {rows:,} rows can still be read."


# The sealed form


def write_sealed(stem: Path, schema: pa.Schema, groups: Iterable[pa.Table]) -> list[Part]:
    """Write ``X.parquet``, a row group from each table, and return what recording.json keeps of it."""
    ends: list[tuple[int, int]] = []

    def write(path: Path) -> None:
        with path.open("wb") as file:
            with pq.ParquetWriter(file, schema, **_parquet_options(schema)) as parquet:
                for group in groups:
                    parquet.write_table(group, row_group_size=max(group.num_rows, 1))
                    ends.append((file.tell(), group.num_rows))
            ends.append((file.tell(), 0))

    path = beside(stem, PARQUET)
    replace(path, write)
    with writing(path):
        return _sum_up(path, ends)


def _parquet_options(schema: pa.Schema) -> dict[str, object]:
    words = [column.name for column in schema if pa.types.is_dictionary(column.type)]
    numbers = [column.name for column in schema if column.type in (pa.int64(), pa.int32())]
    return {
        "compression": "zstd",
        "compression_level": 1,
        "use_dictionary": words,
        "column_encoding": dict.fromkeys(numbers, "DELTA_BINARY_PACKED"),
        "write_page_checksum": True,
    }


def _sum_up(path: Path, ends: Sequence[tuple[int, int]]) -> list[Part]:
    parts: list[Part] = []
    with path.open("rb") as file:
        for end, rows in ends:
            start = file.tell()
            parts.append(Part.of(file.read(end - start), start, rows))
    return parts


def sealed_schema(stem: Path) -> pa.Schema:
    """The columns and the metadata of a sealed table."""
    return pq.read_schema(beside(stem, PARQUET))


def seal(stem: Path) -> list[Part] | None:
    """Write the sealed form of an open table beside it; None when the table never came to have columns.

    A damaged table is not sealed: its open form can be salvaged part by part.
    """
    if is_locked(beside(stem, ARROWS)):
        raise RecordingError(
            f"{beside(stem, ARROWS)} is still being written by another process.",
            "Close that first. What it has written so far is readable.",
        )
    try:
        found = _OpenTable.find(stem)
        groups = found.groups()
        schema = next(groups, None)
        sealed = write_sealed(stem, schema.schema, groups) if schema is not None else None
        damage = found.damage()
    except OSError as error:
        damage = f"{error.filename or stem} cannot be read: {error.strerror or error}."
    if damage:
        beside(stem, PARQUET).unlink(missing_ok=True)
        raise DamagedRecording(damage)
    return sealed


def _read_sealed(path: Path, parts: Sequence[Part], prefix: bool) -> Contents:
    """The intact row groups. Without parts (lost with recording.json) Parquet's page checksums must do."""
    content = path.read_bytes()
    if not parts:
        return Contents(pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True).read())
    view, end = memoryview(content)[: parts[-1].end], parts[-1].end
    good = [part.matches(view[part.start : part.end]) for part in parts]
    if all(good) and len(content) == end:
        return Contents(pq.ParquetFile(pa.BufferReader(content)).read())
    kept = _row_groups(good, prefix)
    bad = [part for part, ok in zip(parts, good, strict=True) if not ok]
    lost = [part for number, part in enumerate(parts) if number not in kept]
    damage = f"{path} is damaged: {_mismatch(len(content), parts, bad)}. {_kept(parts, lost)}"
    table = pq.ParquetFile(pa.BufferReader(pa.py_buffer(view))).read_row_groups(kept) if good[-1] else None
    return Contents(table, damage)


def _row_groups(good: Sequence[bool], prefix: bool) -> list[int]:
    """Which row groups can be read: none without the footer, which is the last part."""
    *groups, footer = good
    if prefix and False in groups:
        groups = groups[: groups.index(False)]
    return [number for number, ok in enumerate(groups) if ok and footer]


# Either


def read(stem: Path, sealed: Sequence[Part] | None, prefix: bool = False) -> Contents:
    """Read a table, sealed with these parts or else open; with ``prefix`` only up to the first damage."""
    path = beside(stem, ARROWS if sealed is None else PARQUET)
    try:
        return _read_open(stem, prefix) if sealed is None else _read_sealed(path, sealed, prefix)
    except FileNotFoundError as error:
        return Contents(damage=f"{error.filename} is missing.")
    except OSError as error:
        return Contents(damage=f"{path} cannot be read: {error.strerror or error}.")
    except (pa.ArrowException, ValueError, TypeError, KeyError) as error:
        return Contents(damage=f"{path} is damaged: {error}.")
