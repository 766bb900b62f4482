"""What the monitor learns, on its way into a recording.

A disk that is full for a while loses nothing: what could not be written is kept and tried again.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType

import pyarrow as pa

from joulemap.errors import RecordingError
from joulemap.monitor.facts import Fact
from joulemap.monitor.quality import Quality
from joulemap.monitor.sampler import Batch
from joulemap.monitor.track import Note
from joulemap.processes import ProcessShares
from joulemap.recording import RecordingAppender

FACTS, NOTES, MONITOR = "facts", "notes", "monitor"

_FACTS = pa.schema({"t_ns": pa.int64(), "name": pa.string(), "value": pa.float64()})
_NOTES = pa.schema({"t_ns": pa.int64(), "text": pa.string()})
_COUNTS = dict.fromkeys(("reads", "failed", "missed"), pa.int64())
_SECONDS = dict.fromkeys(("late_p50_s", "late_p99_s", "cpu_s", "span_s"), pa.float64())
_MONITOR = pa.schema({"t_ns": pa.int64(), **_COUNTS, **_SECONDS, "busy_share": pa.float64()})


class Store:
    """The monitor's part of a recording: power, shares, and the tables ``facts``, ``notes`` and
    ``monitor`` (how well it kept its deadlines, and what it cost)."""

    def __init__(self, path: Path) -> None:
        self._appender = RecordingAppender(path)
        self._waiting: deque[Callable[[], None]] = deque()
        self.problem: RecordingError | None = None
        """Why the latest parts are not on disk, where they are not."""

    def write(self, batch: Batch, shares: Sequence[ProcessShares], busy_share: float) -> None:
        """Add a batch, after whatever is still waiting."""
        add = self._appender
        self._waiting += [partial(add.append_power, part) for part in batch.power]
        self._waiting += [partial(add.append_shares, part) for part in shares]
        figures = _figures(batch.t_ns, batch.quality, busy_share)
        small = [(NOTES, _notes(batch.notes)), (FACTS, _facts(batch.facts)), (MONITOR, figures)]
        self._waiting += [partial(add.append_table, *part) for part in small if part[1].num_rows]
        self._try(batch.t_ns)

    def finish(self, t_ns: int) -> None:
        """Write everything that is left."""
        self._try(t_ns)

    def _try(self, t_ns: int) -> None:
        before, self.problem = self.problem, None
        try:
            while self._waiting:
                self._waiting[0]()
                self._waiting.popleft()
        except RecordingError as error:
            self.problem = error
            if before is None:
                late = Note(t_ns, f"{error.message} Written later, and in danger until then.")
                self._waiting.append(partial(self._appender.append_table, NOTES, _notes([late])))

    def close(self) -> None:
        """Let go of the recording."""
        self._appender.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _facts(facts: Sequence[Fact]) -> pa.Table:
    columns = [[fact.t_ns for fact in facts], [fact.name for fact in facts], [fact.value for fact in facts]]
    return pa.table(columns, _FACTS)


def _notes(notes: Sequence[Note]) -> pa.Table:
    return pa.table([[note.t_ns for note in notes], [note.text for note in notes]], _NOTES)


def _figures(t_ns: int, quality: Quality, busy_share: float) -> pa.Table:
    """How well the monitor kept its deadlines, and what it cost: one row."""
    row = {"t_ns": t_ns, **dataclasses.asdict(quality), "busy_share": busy_share}
    return pa.table([[row[name]] for name in _MONITOR.names], _MONITOR)
