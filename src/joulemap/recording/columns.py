"""What is in the tables: events, power, steps, shares and calls as Arrow columns, and back."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from joulemap.calls.table import Calls, Sites
from joulemap.devices import Domain
from joulemap.errors import InputError
from joulemap.labels import Labels
from joulemap.processes import ProcessShares
from joulemap.recording.info import value_from
from joulemap.traces import EventTrace, PowerTrace, Steps

_WORDS = pa.dictionary(pa.int32(), pa.string())
_TIMES = {"start_ns": pa.int64(), "end_ns": pa.int64()}
_LABELS = dict.fromkeys(("name", "device", "lane", "kind", "op", "phase"), _WORDS)
_EVENTS = {**_LABELS, **_TIMES, "step": pa.int32(), "signature": _WORDS}
_NOT_ALWAYS = ("lane", "signature")
"""Columns of events that are absent where there would be nothing in them."""
_STEPS = {**_TIMES, "traced": pa.bool_(), "label": _WORDS}
_POWER = {**_TIMES, "energy_j": pa.float64(), "gap": pa.bool_()}
_SHARES = {**_TIMES, "share": pa.float64(), "loading": pa.float64()}
_CALLS = {
    "call": pa.int64(),
    "parent": pa.int64(),
    "site": pa.int32(),
    "api": _WORDS,
    "thread": pa.int64(),
    **_TIMES,
    "outcome": _WORDS,
    "argument_bytes": pa.int64(),
    "object_bytes": pa.int64(),
    "shapes": _WORDS,
    "gate_start_ns": pa.int64(),
    "gate_outcome": _WORDS,
    "tail_end_ns": pa.int64(),
}
_PLACES = dict.fromkeys(("line", "column", "end_line", "end_column"), pa.int32())
_SITES = {"site": pa.int32(), "file": _WORDS, **_PLACES, "text": _WORDS, "function": _WORDS}


def events_table(events: EventTrace) -> pa.Table:
    """Events as a table, with columns for lanes and signatures when they have them."""
    types = {name: kind for name, kind in _EVENTS.items() if getattr(events, name) is not None}
    return _table(types, vars(events))


def events_from(table: pa.Table) -> EventTrace:
    """Events from their table."""
    absent = [name for name in _NOT_ALWAYS if name not in table.column_names]
    types = {name: kind for name, kind in _EVENTS.items() if name not in absent}
    return EventTrace.from_columns(**_columns(table, types))


def steps_table(steps: Steps) -> pa.Table:
    """Steps as a table."""
    return _table(_STEPS, vars(steps))


def steps_from(table: pa.Table) -> Steps:
    """Steps from their table."""
    return Steps.from_columns(**_columns(table, _STEPS))


def power_table(trace: PowerTrace) -> pa.Table:
    """A domain's power as a table, an interval a row."""
    times = {"start_ns": trace.edges_ns[:-1], "end_ns": trace.edges_ns[1:]}
    columns = {**times, "energy_j": trace.energy_j, "gap": trace.gap}
    return _table(_POWER, columns, domain=dataclasses.asdict(trace.domain))


def power_from(table: pa.Table) -> PowerTrace:
    """Power from its table. Where rows are lost, a gap without energy stands for them."""
    columns = _columns(table, _POWER)
    start, end = columns["start_ns"], columns["end_ns"]
    lost = np.flatnonzero(start[1:] != end[:-1]) + 1
    edges = np.insert(np.append(start[:1], end), lost + 1, start[lost])
    energy, gap = np.insert(columns["energy_j"], lost, 0.0), np.insert(columns["gap"], lost, True)
    return PowerTrace(domain_of(table.schema), edges, energy, gap)


def shares_table(shares: ProcessShares) -> pa.Table:
    """A domain's shares as a table, an interval a row."""
    times = {"start_ns": shares.edges_ns[:-1], "end_ns": shares.edges_ns[1:]}
    columns = {**times, "share": shares.share, "loading": shares.loading}
    return _table(_SHARES, columns, domain=shares.domain)


def shares_from(table: pa.Table) -> ProcessShares:
    """Shares from their table; older ones do not know what loads data. Where rows are lost, the share before
    them goes on until the next."""
    known = {name: kind for name, kind in _SHARES.items() if name != "loading" or name in table.column_names}
    columns = _columns(table, known)
    edges = np.append(columns["start_ns"], columns["end_ns"][-1:])
    domain = _about(table.schema)["domain"]
    return ProcessShares.from_columns(domain, edges, columns["share"], columns.get("loading"))


def calls_table(calls: Calls) -> pa.Table:
    """Calls as a table, without the sites they refer to."""
    return _table(_CALLS, vars(calls))


def call_sites_table(sites: Sites) -> pa.Table:
    """Call sites as a table."""
    return _table(_SITES, vars(sites))


def calls_from(table: pa.Table, sites: Sites) -> Calls:
    """Calls from their table and that of their sites."""
    return Calls.from_columns(sites, **_columns(table, _CALLS))


def call_sites_from(table: pa.Table) -> Sites:
    """Call sites from their table."""
    return Sites.from_columns(**_columns(table, _SITES))


def domain_of(schema: pa.Schema) -> Domain:
    """The domain that a table of power is about."""
    return value_from(Domain, _about(schema)["domain"])


def _about(schema: pa.Schema) -> dict[str, Any]:
    about: dict[str, Any] = json.loads((schema.metadata or {})[b"joulemap"])
    return about


def _table(types: Mapping[str, pa.DataType], columns: Mapping[str, Any], **about: object) -> pa.Table:
    """The columns as an Arrow table, with ``about`` in its metadata."""
    arrays = [
        _words(columns[name]) if kind == _WORDS else pa.array(columns[name], kind)
        for name, kind in types.items()
    ]
    metadata = {"joulemap": json.dumps(about)} if about else None
    return pa.Table.from_arrays(arrays, schema=pa.schema(list(types.items()), metadata))


def _words(labels: Labels) -> pa.DictionaryArray:
    """Only the words that occur. Half a surrogate pair is no text in any file; it is spelled out."""
    used = labels.used()
    words = [word.encode(errors="backslashreplace").decode() for word in used.words]
    return pa.DictionaryArray.from_arrays(pa.array(used.codes, pa.int32()), pa.array(words, pa.string()))


def _columns(table: pa.Table, types: Mapping[str, pa.DataType]) -> dict[str, Any]:
    """The known columns; a table of another shape raises InputError."""
    for name, kind in types.items():
        if name not in table.column_names or table[name].type != kind or table[name].null_count:
            raise InputError(f"it has no proper column {name!r}")
    return {
        name: Labels.from_arrow(table[name]) if kind == _WORDS else table[name].to_numpy()
        for name, kind in types.items()
    }
