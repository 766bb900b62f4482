"""The small tables of the ranks, joined where that can be done honestly."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from joulemap.merging.job import rank_of
from joulemap.merging.node import Node
from joulemap.recording import Recording
from joulemap.recording.names import FACTS, REGIONS, SESSIONS, SIGNATURES, VALUES

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
    """The regions with what all ranks have counted in those of their name, by how much of it was here."""
    if kept is None or "unit" not in kept.column_names:
        return kept
    here, all_ranks = _counts([kept]), _counts(every)
    times = {what: all_ranks[what] / count for what, count in here.items() if count}
    counts = [
        row["count"] and row["count"] * times[row["name"], row["unit"]]  # of some there is none
        for row in kept.to_pylist()
    ]
    where = kept.column_names.index("count")
    return kept.set_column(where, "count", pa.array(counts, pa.float64()))


def _counts(tables: Sequence[pa.Table]) -> dict[tuple[str, str], float]:
    """By the name of a region and a unit."""
    counts: defaultdict[tuple[str, str], float] = defaultdict(float)
    for table in tables:
        for row in table.to_pylist() if "unit" in table.column_names else ():
            counts[row["name"], row["unit"]] += row["count"] or 0.0
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
