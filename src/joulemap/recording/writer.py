"""Making a recording and finishing it: one process, which holds the folder's lock."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa

from joulemap.calls.table import Calls
from joulemap.errors import RecordingError
from joulemap.processes import ProcessShares
from joulemap.program import Program
from joulemap.recording.appender import RecordingAppender
from joulemap.recording.columns import (
    call_sites_table,
    calls_table,
    domain_of,
    events_table,
    power_table,
    shares_table,
    steps_table,
)
from joulemap.recording.files import ARROWS, PARQUET, replace_bytes, writing
from joulemap.recording.folder import (
    CALL_SITES,
    CALLS,
    EVENTS,
    INFO,
    POWER,
    PROCESS,
    PROGRAM,
    STEPS,
    check_replaceable,
    checked_table_name,
    clear,
    file_name,
    lock_folder,
    open_tables,
    require_recording,
    stem_of,
)
from joulemap.recording.info import FORMAT, RecordingInfo, Status, read_info, save_info
from joulemap.recording.parts import Part
from joulemap.recording.sealed import row_slices, seal, sealed_schema, write_sealed
from joulemap.recording.stream import Order, discard_open
from joulemap.traces import EventTrace, PowerTrace, Steps


class RecordingWriter(RecordingAppender):
    """The one process that makes a recording and finishes it. Leaving it as a context manager finishes:
    ``complete``, or ``interrupted`` by an exception."""

    def __init__(self, path: Path, info: RecordingInfo, handle: int) -> None:
        super().__init__(path)
        self.info = info
        self._lock: int | None = handle
        self._pid = os.getpid()

    @classmethod
    def create(
        cls, path: str | os.PathLike[str], info: RecordingInfo, overwrite: bool = False
    ) -> RecordingWriter:
        """Start a recording in a new or empty folder. ``overwrite`` replaces a recording, nothing else."""
        folder, info = Path(path), dataclasses.replace(info, format=FORMAT, status="recording", files={})
        with writing(folder):
            if folder.exists():
                check_replaceable(folder, overwrite)
            folder.mkdir(parents=True, exist_ok=True)
        handle = lock_folder(folder)
        try:
            clear(folder)
            save_info(folder, info)
            return cls(folder, info, handle)
        except BaseException:
            os.close(handle)
            raise

    @classmethod
    def attach(cls, path: str | os.PathLike[str]) -> RecordingWriter:
        """Take over a recording whose writer is gone, in order to finish it."""
        folder = Path(path)
        require_recording(folder)
        info, handle = read_info(folder / INFO), lock_folder(folder)
        return cls(folder, info, handle)

    def put_events(self, events: EventTrace) -> None:
        """Write a whole trace at once, sealed."""
        groups = (events_table(events.take(rows)) for rows in row_slices(len(events)))
        self._put_groups(EVENTS, events_table(events.take(slice(0, 0))).schema, groups)

    def put_power(self, trace: PowerTrace) -> None:
        """Write all of a domain's power at once, sealed."""
        self._put(f"{POWER}/{file_name(trace.domain.name)}", power_table(trace))

    def put_steps(self, steps: Steps) -> None:
        """Write all steps at once, sealed."""
        self._put(STEPS, steps_table(steps))

    def put_shares(self, shares: ProcessShares) -> None:
        """Write all shares of a domain at once, sealed."""
        self._put(f"{PROCESS}/{file_name(shares.domain)}", shares_table(shares))

    def put_calls(self, calls: Calls) -> None:
        """Write all calls and their sites at once, sealed."""
        self._put(CALL_SITES, call_sites_table(calls.sites))
        self._put(CALLS, calls_table(calls))

    def put_table(self, name: str, table: pa.Table) -> None:
        """Write a table of another kind at once, sealed."""
        self._put(checked_table_name(name), table)

    def _put(self, name: str, table: pa.Table) -> None:
        groups = (table[rows] for rows in row_slices(table.num_rows))
        self._put_groups(name, table.schema, groups)

    def _put_groups(self, name: str, schema: pa.Schema, groups: Iterable[pa.Table]) -> None:
        self._check_owner()
        self._check_new(name)
        parts = write_sealed(self.path / name, schema, groups)
        self.update(**self._listed({name + PARQUET: parts}))

    def put_program(self, program: Program) -> None:
        """Write the program's structure, in place of what was known before."""
        self._check_owner()
        content = program.to_json().encode()
        replace_bytes(self.path / PROGRAM, content)
        self.update(**self._listed({PROGRAM: [Part.of(content, 0, 0)]}))

    def _listed(self, files: Mapping[str, list[Part]]) -> dict[str, Any]:
        """The lists of files and of domains once these files are sealed."""
        domains = {domain.name: domain for domain in self.info.domains}
        before = {name: parts for name, parts in self.info.files.items() if not _now_sealed(name, files)}
        for name in files:
            if name.startswith(f"{POWER}/"):
                domain = domain_of(sealed_schema(self.path / stem_of(name)))
                domains[domain.name] = domain
        return {"files": {**before, **files}, "domains": list(domains.values())}

    def warn(self, text: str) -> None:
        """Keep a warning for whoever reads the recording."""
        self.update(warnings=[*self.info.warnings, text.replace("\n", " ")])

    def update(self, **changes: Any) -> None:
        """Change what is known about the recording (``anchors=…``, ``rank=…``), at once and durably."""
        self._check_owner()
        info = dataclasses.replace(self.info, **changes)
        save_info(self.path, info)
        self.info = info

    def finish(self, status: Status = "complete", window_ns: tuple[int, int] | None = None) -> None:
        """Seal the tables and say how it ended. A table that cannot be sealed stays readable as it is."""
        self._check_owner()
        self.close()
        try:
            sealed, problems = self._seal_all()
            warnings = [*self.info.warnings, *(problem.message for problem in problems)]
            window = window_ns or self.info.window_ns
            self.update(status=status, window_ns=window, warnings=warnings, **self._listed(sealed))
            for name in open_tables(self.path):
                if name + PARQUET in self.info.files:
                    discard_open(self.path / name)
        finally:
            self._release()
        if problems:
            raise problems[0]

    def _seal_all(self) -> tuple[dict[str, list[Part]], list[RecordingError]]:
        sealed, problems = dict[str, list[Part]](), list[RecordingError]()
        for name in open_tables(self.path):
            if name + PARQUET in self.info.files:
                continue
            try:
                parts = seal(self.path / name)
            except RecordingError as error:
                problems.append(error)
            else:
                sealed.update({name + PARQUET: parts} if parts else {})
        return sealed, problems

    def _append(self, name: str, table: pa.Table, order: Order = "any") -> None:
        self._check_owner()
        known = name in self._tables
        super()._append(name, table, order)
        if not known:  # from now on it would be missed
            self.update(files={**self.info.files, name + ARROWS: []})

    def _is_sealed(self, name: str) -> bool:
        # A file that is not listed was left by an attempt that failed: it does not count.
        return name + PARQUET in self.info.files

    def _check_owner(self) -> None:
        if self._lock is None:
            raise RecordingError(f"{self.path} is finished.", "Start another recording.")
        if os.getpid() != self._pid:
            raise RecordingError(
                f"{self.path} belongs to the process that started it, not to a forked child.",
                "Add tables from other processes with a RecordingAppender of their own.",
            )

    def _release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
        self._lock = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lock is None or os.getpid() != self._pid:
            return
        if error is None:
            self.finish()
        else:
            with suppress(RecordingError):  # the program's own exception is the one to be seen
                self.finish("interrupted")


def _now_sealed(name: str, files: Mapping[str, list[Part]]) -> bool:
    return name.endswith(ARROWS) and stem_of(name) + PARQUET in files
