"""The small tables of the ranks, joined where that can be done honestly."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from joulemap.merging.job import rank_of
from joulemap.merging.node import Node
from joulemap.recording import Recording
from joulemap.recording.names import FACTS, REGIONS, SESSIONS, SIGNATURES, VALUES

_COUNTED = ("count", pa.float64()), ("unit", pa.string())
_CALL = ("op", "shapes", "strides", "types", "code")
"""What says which call it was: kernels that were generated go by their code alone, of which older recordings
say nothing."""


def small_tables(nodes: Sequence[Node]) -> dict[str, pa.Table]:
    """Those that any rank has, by name."""
    found = {
        SIGNATURES: _signatures(_of(nodes, SIGNATURES)),
        VALUES: _first_of_each(_of(nodes, VALUES)),
        REGIONS: _regions(_of(nodes, REGIONS)),
        SESSIONS: _sessions(_of(nodes, SESSIONS)),
        FACTS: _facts(_of(nodes, FACTS)),
    }
    return {name: table for name, table in found.items() if table is not None}


def calls_notes(parts: Sequence[Recording]) -> list[str]:
    """Calls of an API are not joined: of several processes at a time, they would take each other's energy."""
    having = [str(part.path) for part in parts if part.calls() is not None]
    if not having:
        return []
    return [f"Calls of APIs are not put together; those of a rank are in its own recording: {having[0]}."]


_Tables = list[tuple[Node, pa.Table]]


def _of(nodes: Sequence[Node], name: str) -> _Tables:
    found = ((node, node.recording.table(name)) for node in nodes)
    return [(node, table) for node, table in found if table is not None]


def _joined(tables: Sequence[pa.Table]) -> pa.Table | None:
    """One after the other; a column that an older recording lacks is empty there."""
    return pa.concat_tables(tables, promote_options="default") if tables else None


def _signatures(tables: _Tables) -> pa.Table | None:
    """What operations were called with: the calls of all ranks with the same, added up."""
    whole = _joined([table for _, table in tables])
    if whole is None:
        return None
    names = [name for name in whole.column_names if name != "calls"]
    added = whole.group_by(names, use_threads=False).aggregate([("calls", "sum")])
    return added.rename_columns([*names, "calls"]).cast(whole.select([*names, "calls"]).schema)


def _first_of_each(tables: _Tables) -> pa.Table | None:
    """What tensors held: those of the first rank that has looked, call by call."""
    whole = _joined([table for _, table in tables])
    if whole is None:
        return None
    seen: set[tuple[str, ...]] = set()
    kept = []
    columns = [whole[name].fill_null("").to_pylist() for name in _CALL if name in whole.column_names]
    for row, call in enumerate(zip(*columns, strict=True)):
        if call not in seen:
            seen.add(call)
            kept.append(row)
    return whole.take(kept)


def _regions(tables: _Tables) -> pa.Table | None:
    """A region is a time of the whole job, and the ranks are in it together: each name's are those of the
    first rank that has it, or its energy would be counted as often as there are ranks. What they have counted
    is all ranks'."""
    parts: list[pa.Table] = []
    known: set[str] = set()
    for _, table in tables:
        new = pc.invert(pc.is_in(table["name"], pa.array(sorted(known), pa.string())))
        parts.append(table.filter(new))
        known.update(table["name"].to_pylist())
    return _counting_all(_joined(parts), [table for _, table in tables])


def _counting_all(kept: pa.Table | None, every: Sequence[pa.Table]) -> pa.Table | None:
    """The regions with what all ranks have counted in those of their name, in the unit of the first that has
    counted: by how much of it was here, or all at once where nothing was."""
    rows = [] if kept is None else kept.to_pylist()
    counted = [row for table in every for row in table.to_pylist() if row.get("unit")]
    units = {row["name"]: row["unit"] for row in reversed(counted)}
    here, all_ranks = (_counts(one, units) for one in (rows, counted))
    seen: set[str] = set()
    for row in rows:
        name = row["name"]
        if name in units:
            own = row["count"] if row.get("unit") == units[name] else 0.0
            whole = all_ranks[name] * (name not in seen)
            row["count"] = own * all_ranks[name] / here[name] if here[name] else whole
            row["unit"] = units[name]
            seen.add(name)
    if kept is None or not units:
        return kept
    counts, named = (pa.array([row.get(name) for row in rows], kind) for name, kind in _COUNTED)
    plain = kept.drop_columns([name for name, _ in _COUNTED if name in kept.column_names])
    return plain.append_column("count", counts).append_column("unit", named)


def _counts(rows: Sequence[dict[str, Any]], units: Mapping[str, str]) -> dict[str, float]:
    """By the name of a region, in its unit."""
    counts: defaultdict[str, float] = defaultdict(float)
    for row in rows:
        if row.get("unit") and units.get(row["name"]) == row["unit"]:
            counts[row["name"]] += row["count"]
    return counts


def _sessions(tables: _Tables) -> pa.Table | None:
    """When each rank traced."""
    ranks = [pa.array([rank_of(node.recording)] * table.num_rows, pa.int64()) for node, table in tables]
    return _joined(
        [table.append_column("rank", rank) for (_, table), rank in zip(tables, ranks, strict=True)]
    )


def _facts(tables: _Tables) -> pa.Table | None:
    """What explains the energy, of the job's devices."""
    parts = []
    for node, table in tables:
        names = pa.array([node.fact(name) for name in table["name"].to_pylist()], pa.string())
        parts.append(table.set_column(table.column_names.index("name"), "name", names))
    return _joined(parts)
