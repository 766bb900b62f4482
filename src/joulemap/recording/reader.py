"""Reading a recording: each table when it is first asked for, and notes about what is missing."""

from __future__ import annotations

import copy
import dataclasses
import os
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa

from joulemap.calls.table import Calls
from joulemap.errors import DamagedRecording, InputError
from joulemap.processes import ProcessShares
from joulemap.program import Program
from joulemap.recording import tables
from joulemap.recording.columns import (
    call_sites_from,
    calls_from,
    events_from,
    power_from,
    shares_from,
    steps_from,
)
from joulemap.recording.files import ARROWS, PARQUET, is_locked
from joulemap.recording.folder import (
    CALL_SITES,
    CALLS,
    EVENTS,
    INFO,
    POWER,
    PROCESS,
    PROGRAM,
    STEPS,
    is_open,
    open_tables,
    require_recording,
    stem_of,
)
from joulemap.recording.info import (
    SALVAGE_HINT,
    RecordingInfo,
    read_info,
    salvage_info,
    spare_copy_notes,
)
from joulemap.recording.parts import Contents
from joulemap.traces import EventTrace, Float64, Int64, PowerTrace, Steps

T = TypeVar("T")


class Recording:
    """A recording as it lies on disk; each table is read when it is first asked for.

    ``notes`` grow as tables are read: what a killed writer had not finished, and with ``salvage`` what is
    damaged and left out; ``lost`` are the tables of which nothing could be read.
    """

    def __init__(self, path: Path, info: RecordingInfo, notes: list[str], salvage: bool) -> None:
        self.path = path
        self.info = info
        self.notes = notes
        self.lost: set[str] = set()
        self._salvage = salvage
        self._view: Callable[[EventTrace], EventTrace] | None = None

    @classmethod
    def open(cls, path: str | os.PathLike[str], salvage: bool = False) -> Recording:
        """Open a recording that is complete, was interrupted, or is still being written.

        Without ``salvage``, damage raises DamagedRecording here or where the damaged table is asked for.
        """
        folder, notes = Path(path), list[str]()
        require_recording(folder)
        info = salvage_info(folder, notes) if salvage else read_info(folder / INFO)
        notes += spare_copy_notes(folder)
        if info.status == "recording" and not is_locked(folder):
            info = dataclasses.replace(info, status="interrupted")
            notes.append(f"{folder} was not finished: its writer was killed, or the machine went down.")
        return cls(folder, info, notes, salvage)

    def seen(self, view: Callable[[EventTrace], EventTrace]) -> Recording:
        """The same recording, with its events as ``view`` has them."""
        other = copy.copy(self)
        vars(other).pop("_events", None)
        other._view = view
        return other

    def events(self) -> EventTrace:
        """All events; none when there is no such table."""
        return self._events

    def power(self) -> list[PowerTrace]:
        """A trace for each domain that was metered."""
        return self._power

    def steps(self) -> Steps | None:
        """The steps, or None when none were recorded."""
        return self._steps

    def shares(self) -> dict[str, ProcessShares]:
        """This program's part of a domain, by the domain's name, where it is known."""
        return self._shares

    def calls(self) -> Calls | None:
        """The calls of a library's API, or None where they were not metered."""
        return self._calls

    def program(self) -> Program:
        """The structure of the program; empty when it is not known."""
        return self._program

    def table(self, name: str) -> pa.Table | None:
        """Any table as it is, or None when there is none of that name."""
        return self._read(name, lambda table: table)

    def facts(self, name: str) -> tuple[Int64, Float64]:
        """When something was looked up that explains the energy (``GPU:0 sm_clock_mhz``), and what it was."""
        table = self.table("facts")
        if table is None:
            return np.zeros(0, np.int64), np.zeros(0)
        chosen = table["name"].to_numpy() == name
        return table["t_ns"].to_numpy()[chosen], table["value"].to_numpy()[chosen]

    @cached_property
    def _events(self) -> EventTrace:
        nothing = EventTrace.from_columns(name=[], device=[], start_ns=[], end_ns=[])
        events = self._read(EVENTS, events_from) or nothing
        return events if self._view is None else self._view(events)

    @cached_property
    def _power(self) -> list[PowerTrace]:
        order = {domain.name: number for number, domain in enumerate(self.info.domains)}
        traces = self._read_all(POWER, power_from)
        silent = order.keys() - {trace.domain.name for trace in traces}
        self.notes.extend(f"{self.path} has no power of {name}." for name in sorted(silent))
        return sorted(traces, key=lambda trace: order.get(trace.domain.name, len(order)))

    @cached_property
    def _steps(self) -> Steps | None:
        # Events point to steps by their number, so nothing that follows a loss can be kept.
        return self._read(STEPS, steps_from, prefix=True)

    @cached_property
    def _shares(self) -> dict[str, ProcessShares]:
        return {shares.domain: shares for shares in self._read_all(PROCESS, shares_from)}

    @cached_property
    def _calls(self) -> Calls | None:
        # A call without its site would say nothing, so the two are read together.
        sites = self._read(CALL_SITES, call_sites_from)
        return None if sites is None else self._read(CALLS, lambda table: calls_from(table, sites))

    @cached_property
    def _program(self) -> Program:
        parts = self.info.files.get(PROGRAM)
        if parts is None:
            return Program()
        path = self.path / PROGRAM
        try:
            content = path.read_bytes()
            if all(part.matches(content) for part in parts):
                return Program.from_json(content.decode())
            damage = f"{path} is damaged: it does not match its checksum."
        except FileNotFoundError:
            damage = f"{path} is missing."
        except (OSError, ValueError, InputError) as error:
            damage = f"{path} cannot be read: {error}."
        self._report(damage)
        return Program()

    def _read_all(self, folder: str, decode: Callable[[pa.Table], T]) -> list[T]:
        self._look_again()
        sealed = {stem_of(name) for name in self.info.files}
        names = sorted(name for name in sealed.union(open_tables(self.path)) if name.startswith(f"{folder}/"))
        found = (self._read(name, decode) for name in names)
        return [value for value in found if value is not None]

    def _read(self, name: str, decode: Callable[[pa.Table], T], prefix: bool = False) -> T | None:
        found = self._contents(name, prefix)
        if found.damage:
            self._report(found.damage)
            if found.table is None or not found.table.num_rows:
                self.lost.add(name)
        if found.cut_off and self.info.status != "recording":
            self.notes.append(found.cut_off)
        if found.table is None:
            return None
        try:
            return decode(found.table)
        except (InputError, KeyError, ValueError, TypeError) as error:
            self._report(f"{self.path / name} cannot be understood: {error}.")
            return None

    def _contents(self, name: str, prefix: bool) -> Contents:
        found = self._find(name, prefix)
        if (found.damage or found.table is None) and self._look_again():
            found = self._find(name, prefix)
        return found

    def _find(self, name: str, prefix: bool) -> Contents:
        sealed, stem = self.info.files.get(name + PARQUET), self.path / name
        if sealed is None and not is_open(stem):
            missing = name + ARROWS in self.info.files
            return Contents(damage=f"{stem}{ARROWS} is missing." if missing else "")
        return tables.read(stem, sealed, prefix)

    def _look_again(self) -> bool:
        """What was still being written when it was opened may have been sealed since."""
        if self.info.status != "recording":
            return False
        self.info = read_info(self.path / INFO)
        return True

    def _report(self, damage: str) -> None:
        if not self._salvage:
            raise DamagedRecording(damage, SALVAGE_HINT)
        self.notes.append(damage)
