"""Exports: a recording as the files that other tools read. A format is a function that writes one file."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Format:
    """Where a format is written (``module:function``), how its files end, and what reads them."""

    writer: str
    suffix: str
    what: str


FORMATS = {
    "perfetto": Format("joulemap.exports.perfetto:write", ".perfetto.json.gz", "ui.perfetto.dev"),
    "speedscope": Format("joulemap.exports.flame:write_speedscope", ".speedscope.json", "speedscope.app"),
    "folded": Format("joulemap.exports.flame:write_folded", ".folded.txt", "flamegraph.pl, inferno"),
    "csv": Format("joulemap.exports.tables:write_csv", ".csv", "spreadsheets"),
    "parquet": Format("joulemap.exports.tables:write_parquet", ".parquet", "pandas, Polars, DuckDB"),
    "json": Format("joulemap.exports.document:write", ".json", "programs"),
    "dot": Format("joulemap.exports.graph:write_dot", ".dot", "Graphviz"),
    "svg": Format("joulemap.exports.picture:write_svg", ".svg", "browsers, papers"),
    "fecom-json": Format("joulemap.exports.fecom:write", ".fecom.json", "FECoM's scripts"),
}
"""Every format by its name, as ``joulemap export --to`` takes it."""
