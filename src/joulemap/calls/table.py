"""Calls of a library's API as columns: each with its site, parent, time, outcome and sizes."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from joulemap.columns import times_ns
from joulemap.errors import InputError
from joulemap.labels import Labels
from joulemap.traces import Int64, Words

OUTCOMES = ("open", "returned", "raised")
"""How a call ended; ``open`` where the program ended first."""

GATES = ("", "stable", "timed out")
"""How the wait before an isolated call ended; empty where nobody waited."""

NO_PARENT = -1
UNKNOWN_BYTES = -1


@dataclass(frozen=True, eq=False)
class Sites:
    """Places in the source that call a library; lines and columns count from 1, as editors show them."""

    site: NDArray[np.int32]
    file: Labels
    line: NDArray[np.int32]
    column: NDArray[np.int32]
    end_line: NDArray[np.int32]
    end_column: NDArray[np.int32]
    text: Labels
    function: Labels

    @classmethod
    def from_columns(
        cls,
        *,
        site: ArrayLike,
        file: Words,
        line: ArrayLike,
        column: ArrayLike,
        end_line: ArrayLike,
        end_column: ArrayLike,
        text: Words,
        function: Words,
    ) -> Sites:
        """Encode the columns; one string stands for a whole column."""
        numbers = np.asarray(site, np.int32)
        rows = len(numbers)
        sites = cls(
            site=numbers,
            file=Labels.of(file, rows),
            line=np.asarray(line, np.int32),
            column=np.asarray(column, np.int32),
            end_line=np.asarray(end_line, np.int32),
            end_column=np.asarray(end_column, np.int32),
            text=Labels.of(text, rows),
            function=Labels.of(function, rows),
        )
        _check_lengths(sites)
        return sites

    def __len__(self) -> int:
        return len(self.site)

    def rows(self, site: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
        """The row of each site by its number."""
        order = np.argsort(self.site, kind="stable")
        place = np.searchsorted(self.site, site, sorter=order)
        found = order[np.minimum(place, max(len(order) - 1, 0))] if len(order) else place
        if len(site) and (not len(self) or (self.site[found] != site).any()):
            raise InputError("A call is at a site that is not known.", "The recording is damaged.")
        return np.asarray(found, np.int64)


@dataclass(frozen=True, eq=False)
class Calls:
    """Calls in order of their start. Times are epoch nanoseconds; an ``open`` call lasts until the program
    ended. Sizes are bytes of arrays and tensors, -1 where they are not known."""

    call: Int64
    parent: Int64
    site: NDArray[np.int32]
    api: Labels
    thread: Int64
    start_ns: Int64
    end_ns: Int64
    outcome: Labels
    argument_bytes: Int64
    object_bytes: Int64
    shapes: Labels
    gate_start_ns: Int64
    gate_outcome: Labels
    tail_end_ns: Int64
    sites: Sites

    @classmethod
    def from_columns(
        cls,
        sites: Sites,
        *,
        call: ArrayLike,
        parent: ArrayLike,
        site: ArrayLike,
        api: Words,
        thread: ArrayLike,
        start_ns: ArrayLike,
        end_ns: ArrayLike,
        outcome: Words = "returned",
        argument_bytes: ArrayLike | None = None,
        object_bytes: ArrayLike | None = None,
        shapes: Words = "",
        gate_start_ns: ArrayLike | None = None,
        gate_outcome: Words = "",
        tail_end_ns: ArrayLike | None = None,
    ) -> Calls:
        """Encode and check the columns. Left out, sizes are not known and nobody waited at a gate."""
        start = times_ns(start_ns, "starts of calls")
        rows = len(start)
        calls = cls(
            call=np.asarray(call, np.int64),
            parent=np.asarray(parent, np.int64),
            site=np.asarray(site, np.int32),
            api=Labels.of(api, rows),
            thread=np.asarray(thread, np.int64),
            start_ns=start,
            end_ns=times_ns(end_ns, "ends of calls"),
            outcome=Labels.among(OUTCOMES, outcome, rows),
            argument_bytes=_numbers(argument_bytes, UNKNOWN_BYTES, rows),
            object_bytes=_numbers(object_bytes, UNKNOWN_BYTES, rows),
            shapes=Labels.of(shapes, rows),
            gate_start_ns=_numbers(gate_start_ns, 0, rows),
            gate_outcome=Labels.among(GATES, gate_outcome, rows),
            tail_end_ns=_numbers(tail_end_ns, 0, rows),
            sites=sites,
        )
        _check_lengths(calls)
        if (calls.end_ns < calls.start_ns).any():
            raise InputError("A call ends before it starts.", "Start and end must be from the same clock.")
        sites.rows(calls.site)
        return calls

    def __len__(self) -> int:
        return len(self.start_ns)


def _numbers(values: ArrayLike | None, default: int, rows: int) -> Int64:
    return np.full(rows, default, np.int64) if values is None else np.asarray(values, np.int64)


def _check_lengths(table: Sites | Calls) -> None:
    lengths = {one.name: len(getattr(table, one.name)) for one in fields(table) if one.name != "sites"}
    if len(set(lengths.values())) > 1:
        raise InputError(f"The columns differ in length: {lengths}.")
