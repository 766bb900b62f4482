"""CSV and Parquet: the footprint by row, or what it was made of, with the unit in each column's name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from joulemap import __version__
from joulemap.exports.source import Source, chunks

TABLES = ("footprint", "events", "power", "steps")


def write_csv(source: Source, path: Path) -> None:
    """A header and rows; numbers in full precision."""
    schema, parts = _table(source)
    with pa.csv.CSVWriter(path, schema) as writer:
        for part in parts:
            writer.write(part)


def write_parquet(source: Source, path: Path) -> None:
    """Zstandard, names as dictionaries, and in the file's metadata who wrote it from which recording."""
    schema, parts = _table(source)
    about = {"joulemap": __version__, "recording": source.recording.path.name, "rule": source.asked.rule}
    with pq.ParquetWriter(path, schema.with_metadata(about), compression="zstd") as writer:
        for part in parts:
            writer.write_table(part.replace_schema_metadata(about))


def _table(source: Source) -> tuple[pa.Schema, Iterator[pa.Table]]:
    """The columns, and the rows in parts that are easy to hold."""
    make: dict[str, Callable[[Source], tuple[int, Callable[[slice], pa.Table]]]] = {
        "footprint": _footprint,
        "events": _events,
        "power": _power,
        "steps": _steps,
    }
    count, part = make[source.asked.table](source)
    places = chunks(count)
    return part(slice(0, 0)).schema, (part(rows) for rows in source.tracked(places, len(places)))


def _footprint(source: Source) -> tuple[int, Callable[[slice], pa.Table]]:
    records = source.footprint.to_records()
    columns = list(records[0]) if records else []
    schema = pa.schema([(name, _kind(records[0][name])) for name in columns])
    return len(records), lambda rows: pa.Table.from_pylist(records[rows], schema)


def _kind(value: object) -> pa.DataType:
    kinds = {bool: pa.bool_(), int: pa.int64(), float: pa.float64()}
    return kinds.get(type(value), pa.dictionary(pa.int32(), pa.string()))


def _events(source: Source) -> tuple[int, Callable[[slice], pa.Table]]:
    """Every execution with what it was charged, over all domains; by time alone too, where that is not the
    rule."""
    events, charged = source.recording.events(), source.charged()
    energies = {"energy_j": charged.energy_j}
    if charged.time_based_j is not None:
        energies["time_based_j"] = charged.time_based_j

    def part(rows: slice) -> pa.Table:
        some = events.take(rows)
        words = {name: getattr(some, name).to_arrow() for name in ("name", "op", "phase", "kind", "device")}
        times = {"start_ns": some.start_ns, "end_ns": some.end_ns, "step": some.step}
        return pa.table({**words, **times, **{name: joules[rows] for name, joules in energies.items()}})

    return len(events), part


def _power(source: Source) -> tuple[int, Callable[[slice], pa.Table]]:
    """Every interval of every domain."""
    parts = [
        pa.table(
            {
                "domain": pa.array([trace.domain.name] * len(trace), pa.string()),
                "device": pa.array([trace.domain.device] * len(trace), pa.string()),
                "provenance": pa.array([trace.domain.provenance] * len(trace), pa.string()),
                "start_ns": trace.edges_ns[:-1][: len(trace)],
                "end_ns": trace.edges_ns[1:],
                "energy_j": trace.energy_j,
                "power_w": trace.power_w,
                "gap": trace.gap,
            }
        )
        for trace in source.recording.power()
    ]
    table = pa.concat_tables(parts) if parts else pa.table({})
    return table.num_rows, lambda rows: table[rows]


def _steps(source: Source) -> tuple[int, Callable[[slice], pa.Table]]:
    """Every step with its energy in each domain, idle included."""
    steps = source.recording.steps()
    columns: dict[str, object] = {}
    if steps is not None:
        columns = {
            "step": np.arange(len(steps)),
            "label": steps.label.to_arrow(),
            "start_ns": steps.start_ns,
            "end_ns": steps.end_ns,
            "traced": steps.traced,
        }
        columns |= {f"{a.domain.name}_energy_j": a.step_j for a in source.footprint.accounts}
    table = pa.table(columns)
    return table.num_rows, lambda rows: table[rows]
