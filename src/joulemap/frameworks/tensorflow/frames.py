"""What happened on the host of a TensorFlow profile, with every join made once: what encloses what, which
operation a pool's task works for, and in which function's run something happened."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joulemap.frameworks.nesting import Forest
from joulemap.frameworks.tensorflow import roles
from joulemap.frameworks.tensorflow.roles import WORK, Role
from joulemap.frameworks.xplane import pool
from joulemap.frameworks.xplane.events import Events
from joulemap.frameworks.xplane.pool import NONE, Spans
from joulemap.labels import Labels
from joulemap.traces import Int64

INPUT_FUNCTION = "(input pipeline)"
"""The function of what the input pipeline runs."""

_DATA_THREADS, _PYTHON = "tf_data", "python"
_PIPELINE = (Role.DATA, Role.WAITING)


@dataclass(frozen=True, eq=False)
class Frames:
    """The profile's events that have a length, then the tasks of pool threads, as rows.

    ``event`` is the row in the profile, ``NONE`` for a task. ``owner`` is the row of the operation that a
    task works for, or ``NONE``.
    """

    events: Events
    event: Int64
    role: NDArray[np.int64]
    spans: Spans
    forest: Forest
    owner: Int64

    @classmethod
    def of(cls, events: Events) -> Frames:
        role = _roles(events)
        kept = np.flatnonzero(~np.isin(role, (Role.LEFT_OUT, Role.RECORD, Role.START, Role.STOP)))
        found = _tasks(events, role)
        spans = Spans(events.line[kept], events.start_ns[kept], events.end_ns[kept]).joined(found.spans)
        event = np.concatenate((kept, np.full(len(found.number), NONE)))
        roles_ = np.concatenate((role[kept], np.full(len(found.number), Role.TASK)))
        forest = Forest.of(spans.line, spans.start_ns, spans.end_ns)
        owner = _owners(events, np.flatnonzero(role == Role.RECORD), spans, forest, roles_, found.number)
        return cls(events, event, roles_, spans, forest, owner)

    def __len__(self) -> int:
        return len(self.event)

    def around(self, *wanted: Role) -> Int64:
        """For each row the nearest at or around it of these roles, or ``NONE``."""
        return pool.nearest(self.forest, np.isin(self.role, wanted))

    def words(self, row: Int64, prefix: str) -> Labels:
        """The names of rows, without a prefix; empty for ``NONE``."""
        name = self.events.name
        words = (*(word.removeprefix(prefix) for word in name.words), "")
        known = (row != NONE) & (self.event[row] != NONE)
        return Labels(np.where(known, name.codes[self.event[row]], len(words) - 1).astype(np.int32), words)

    def functions(self) -> Labels:
        """The function in whose run each row happened; empty where that is not known."""
        called = self.words(self.around(Role.FUNCTION), roles.EAGER)
        unknown, pipeline = len(called.words) - 1, len(called.words)
        in_pipeline = self._on(_DATA_THREADS) | (self.around(*_PIPELINE) != NONE)
        caller = np.where(in_pipeline, pipeline, called.codes)
        run = self._runs()
        code = np.where(in_pipeline, pipeline, np.where(run != NONE, caller[run], unknown))
        return Labels(code.astype(np.int32), (*called.words, INPUT_FUNCTION))

    def _runs(self) -> Int64:
        """Where the run that a row is part of was set off, by the number that the executor has too."""
        number = np.where(self.event != NONE, self.events.numbers("id")[self.event], 0)
        runs, process = np.flatnonzero(self.role == Role.RUN), self.around(Role.PROCESS)
        mine = np.where(process != NONE, number[process], 0)
        return pool.handed_over(mine, number[runs], runs)

    def wrappers(self) -> NDArray[np.bool_]:
        """Ranges of Python's threads around others: they say nothing that those do not."""
        encloses = np.zeros(len(self), bool)
        encloses[self.forest.parent[self.forest.parent != NONE]] = True
        return np.asarray((self.role == Role.RANGE) & encloses & self._on(_PYTHON))

    def _on(self, threads: str) -> NDArray[np.bool_]:
        named = np.array([line.name.startswith(threads) for line in self.events.lines] or [False])
        return np.asarray(named[self.spans.line])


def _roles(events: Events) -> NDArray[np.int64]:
    by_name = np.array([roles.role(described) for described in events.plane.described], np.int64)
    role = by_name[events.described]
    instruction = events.has("hlo_op") & (role != Role.LEFT_OUT)
    return np.where(instruction, Role.HLO, role)


def _tasks(events: Events, role: NDArray[np.int64]) -> pool.Tasks:
    marks = np.flatnonzero((role == Role.START) | (role == Role.STOP))
    number = events.numbers("_c", NONE)[marks]
    return pool.tasks(events.line[marks], events.start_ns[marks], role[marks] == Role.START, number)


def _owners(
    events: Events, records: Int64, spans: Spans, forest: Forest, role: NDArray[np.int64], number: Int64
) -> Int64:
    """The operation that each task works for.

    What the executor hands over is the next nodes, no operation's work; and a task in which the executor
    runs is the executor's, not that of the operation which called the function.
    """
    if not len(role):  # nothing but remarks on what was handed over
        return np.zeros(0, np.int64)
    is_task, executor = role == Role.TASK, role == Role.PROCESS
    around = pool.innermost(spans, forest, events.line[records], events.start_ns[records])
    source = pool.nearest(forest, is_task | executor | np.isin(role, (*WORK, Role.WAITING)))
    came_from = np.where(around != NONE, source[around], NONE)
    came_from[(came_from != NONE) & executor[came_from]] = NONE
    origin = np.full(len(role), NONE)
    origin[is_task] = pool.handed_over(number, events.numbers("_p", NONE)[records], came_from)
    executing = pool.nearest(forest, is_task)[executor]
    origin[executing[executing != NONE]] = NONE
    return pool.owners(origin, is_task)
