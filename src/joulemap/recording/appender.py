"""Adding to a recording, part by part, from any process."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import pyarrow as pa

from joulemap.errors import RecordingError
from joulemap.processes import ProcessShares
from joulemap.recording.columns import events_table, power_table, shares_table, steps_table
from joulemap.recording.files import PARQUET, beside
from joulemap.recording.folder import (
    EVENTS,
    POWER,
    PROCESS,
    STEPS,
    checked_table_name,
    file_name,
    is_open,
    require_recording,
)
from joulemap.recording.stream import Order, TableAppender
from joulemap.traces import EventTrace, PowerTrace, Steps

Self = TypeVar("Self", bound="RecordingAppender")


class RecordingAppender:
    """The tables that one process adds to a recording: the monitor its power, the program its events.

    Each part is on disk when its call returns, and survives whatever happens to the process.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        require_recording(self.path)
        self._tables: dict[str, TableAppender] = {}

    def append_events(self, events: EventTrace) -> None:
        """Add events; all of a recording's events have lanes, or none."""
        if len(events):
            self._append(EVENTS, events_table(events))

    def append_power(self, trace: PowerTrace) -> None:
        """Add to a domain's power; the part starts where the last one ended."""
        self._append(f"{POWER}/{file_name(trace.domain.name)}", power_table(trace), "contiguous")

    def append_steps(self, steps: Steps) -> None:
        """Add steps that come after those before."""
        self._append(STEPS, steps_table(steps), "ascending")

    def append_shares(self, shares: ProcessShares) -> None:
        """Add to the shares of a domain; the part starts where the last one ended."""
        self._append(f"{PROCESS}/{file_name(shares.domain)}", shares_table(shares), "contiguous")

    def append_table(self, name: str, table: pa.Table) -> None:
        """Add rows to a table of another kind."""
        self._append(checked_table_name(name), table)

    def _append(self, name: str, table: pa.Table, order: Order = "any") -> None:
        if name not in self._tables:
            self._check_new(name)
            self._tables[name] = TableAppender(self.path / name, table.schema, order)
        self._tables[name].append(table)

    def _check_new(self, name: str) -> None:
        if is_open(self.path / name) or self._is_sealed(name):
            raise RecordingError(
                f"{self.path / name} exists already.", "A table is written once, by one process."
            )

    def _is_sealed(self, name: str) -> bool:
        return beside(self.path / name, PARQUET).exists()

    def close(self) -> None:
        """Let go of the tables; they stay open on disk until the recording is finished."""
        for table in self._tables.values():
            table.close()
        self._tables.clear()

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
