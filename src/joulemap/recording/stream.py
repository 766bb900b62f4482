"""The open form of a table, while it is written: an Arrow stream and the checksums of its parts.

Parts are added to the stream, ``X.arrows``, and once a part is written, a line with its checksum is added
to ``X.sums``. A line is the promise that the part is whole; what no line covers was cut off and does not
count. Every part carries its own dictionaries, so that losing one part loses no other.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Literal

import pyarrow as pa

from joulemap.errors import InputError, RecordingError
from joulemap.recording.files import ARROWS, SUMS, beside, create, lock, write_all, writing
from joulemap.recording.parts import Contents, Part, kept_in_words, mismatch_in_words, parse_lines

ROWS_PER_GROUP = 1 << 16
"""Rows that are encoded, checked and lost together, at most."""

Order = Literal["any", "ascending", "contiguous"]
"""How the intervals of a part must follow those of the part before it."""

_END_OF_STREAM = 8  # bytes that close an Arrow stream; ours stay open


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
        self._sums = create(beside(stem, SUMS))
        self._data = -1
        try:
            self._data = create(beside(stem, ARROWS))
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
                    write_all(self._data, data)
                    lines += f"{Part.of(data, end, rows)}\n".encode()
                    end += len(data)
            with writing(beside(self.stem, SUMS)):
                write_all(self._sums, lines)
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


def _encode(schema: pa.Schema, batch: pa.RecordBatch | None = None) -> bytes:
    """A whole stream but for its end: the schema, then the dictionaries and rows of a batch."""
    sink = pa.BufferOutputStream()
    # Parts are small: waking threads to compress them takes three times as long as doing it.
    options = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
    with pa.ipc.new_stream(sink, schema, options=options) as stream:
        if batch is not None:
            stream.write_batch(batch)
    encoded: bytes = sink.getvalue()[:-_END_OF_STREAM].to_pybytes()
    return encoded


def discard_open(stem: Path) -> None:
    """Remove the open form, the promises last: data without them would be damage."""
    for suffix in (ARROWS, SUMS):
        path = beside(stem, suffix)
        with writing(path):
            path.unlink(missing_ok=True)


@dataclass(slots=True)
class OpenTable:
    """An open table as it is found on disk. ``lost`` fills up as it is read."""

    stem: Path
    parts: list[Part]
    broken_lines: int
    cut_off: bool
    lost: list[Part] = field(default_factory=list)

    @classmethod
    def find(cls, stem: Path) -> OpenTable:
        """Read its sums; the data comes with :meth:`groups`."""
        return cls(stem, *parse_lines(beside(stem, SUMS).read_bytes()))

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
            what = f"{data} is damaged: {mismatch_in_words(data.stat().st_size, self.parts, self.lost)}."
        elif any(part.start != end for part, end in zip(self.parts, ends, strict=False)):
            what = f"{sums} is damaged: some of its lines are missing."
        else:
            return ""
        return f"{what} {kept_in_words(self.parts, self.lost)}"

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


def read_open(stem: Path, prefix: bool) -> Contents:
    """The intact parts; with ``prefix`` only those before the first loss."""
    found = OpenTable.find(stem)
    groups = list(found.groups(prefix))
    damage = found.damage()
    return Contents(pa.concat_tables(groups) if groups else None, damage, "" if damage else found.tail())
