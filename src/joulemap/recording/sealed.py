"""The sealed form of a table, once it is written: one Parquet file, ``X.parquet``.

It has the same checksums as the open form, one part for each row group and one for the footer;
``recording.json`` keeps them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from joulemap.errors import DamagedRecording, RecordingError
from joulemap.recording import stream
from joulemap.recording.files import ARROWS, PARQUET, beside, is_locked, replace, writing
from joulemap.recording.parts import Contents, Part, kept_in_words, mismatch_in_words


def row_slices(rows: int) -> Iterator[slice]:
    """The rows of a table, group by group."""
    for row in range(0, rows, stream.ROWS_PER_GROUP):
        yield slice(row, row + stream.ROWS_PER_GROUP)


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
        found = stream.OpenTable.find(stem)
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


def read_sealed(path: Path, parts: Sequence[Part], prefix: bool) -> Contents:
    """The intact row groups. Without parts (lost with recording.json) Parquet's page checksums must do."""
    content = path.read_bytes()
    if not parts:
        return Contents(pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True).read())
    view, end = memoryview(content)[: parts[-1].end], parts[-1].end
    good = [part.matches(view[part.start : part.end]) for part in parts]
    if all(good) and len(content) == end:
        return Contents(pq.ParquetFile(pa.BufferReader(content)).read())
    kept = _readable_groups(good, prefix)
    bad = [part for part, ok in zip(parts, good, strict=True) if not ok]
    lost = [part for number, part in enumerate(parts) if number not in kept]
    damage = f"{path} is damaged: {mismatch_in_words(len(content), parts, bad)}. {kept_in_words(parts, lost)}"
    table = pq.ParquetFile(pa.BufferReader(pa.py_buffer(view))).read_row_groups(kept) if good[-1] else None
    return Contents(table, damage)


def _readable_groups(good: Sequence[bool], prefix: bool) -> list[int]:
    """Which row groups can be read: none without the footer, which is the last part."""
    *groups, footer = good
    if prefix and False in groups:
        groups = groups[: groups.index(False)]
    return [number for number, ok in enumerate(groups) if ok and footer]
