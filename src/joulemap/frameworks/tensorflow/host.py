"""The CPU's part of a TensorFlow profile: operations, what pool threads did for them, the runtime's glue.

Threads are lanes, and the innermost event of a thread owns its time. Ranges that only wait for what happens
inside them or on other threads are left out, so that waiting is not taken for work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joulemap.frameworks.tensorflow import roles
from joulemap.frameworks.tensorflow.frames import Frames
from joulemap.frameworks.tensorflow.roles import WORK, Role
from joulemap.frameworks.xplane.events import Events
from joulemap.frameworks.xplane.plane import Described
from joulemap.frameworks.xplane.pool import NONE
from joulemap.labels import Labels
from joulemap.traces import EventTrace, Int64


@dataclass(frozen=True, slots=True)
class Subject:
    """What ran, as the profile tells it: a node, an eager operation, an instruction of a compiled program."""

    role: Role
    name: str
    op: str = ""
    program: int = 0


@dataclass(frozen=True, slots=True)
class Context:
    """Where it ran: the function's run, and the ranges around it that name a layer and a phase."""

    function: str = ""
    scope: str = ""
    phase: str = ""


@dataclass(frozen=True, slots=True)
class Named:
    """A qualified name, the operation's type, and the phase."""

    name: str
    op: str
    phase: str


def host_events(events: Events, session: str, name: Callable[[Subject, Context], Named]) -> EventTrace:
    """The host's rows, in lanes that are unique for ``session`` and thread.

    ``name`` is asked once for each thing that ran, however often it did.
    """
    frames = Frames.of(events)
    silent = np.isin(frames.role, (Role.SCOPE, Role.PHASE, Role.FUNCTION)) | frames.wrappers()
    row = np.flatnonzero(~silent)
    worker = frames.owner[row] != NONE
    table, codes = _named(frames, np.where(worker, frames.owner[row], row), name)
    kind = np.where(np.isin(frames.role[row], WORK), 0, np.where(worker, 1, 2)).astype(np.int32)
    number = Labels(codes, tuple(map(str, range(len(table)))))
    return EventTrace.from_columns(
        name=number.mapped([one.name for one in table]),
        device="CPU",
        start_ns=frames.spans.start_ns[row],
        end_ns=frames.forest.end_ns[row],
        lane=Labels(frames.spans.line[row], tuple(f"{session}/{i}" for i in range(len(events.lines)))),
        kind=Labels(kind, ("op", "worker", "runtime")),
        op=number.mapped([one.op for one in table]),
        phase=number.mapped([one.phase for one in table]),
    )


def _named(
    frames: Frames, row: Int64, name: Callable[[Subject, Context], Named]
) -> tuple[list[Named], NDArray[np.int32]]:
    """For each row its place in a table of names, which is made for every distinct subject and context."""
    subject, subjects = _subjects(frames, row)
    function = frames.functions()[row]
    scope = frames.words(frames.around(Role.SCOPE)[row], roles.SCOPE)
    phase = frames.words(frames.around(Role.PHASE)[row], roles.PHASE)
    key = subject
    for column in (function, scope, phase):
        key = key * len(column.words) + column.codes
    _, first, codes = np.unique(key, return_index=True, return_inverse=True)
    table = [
        name(
            subjects[int(subject[one])],
            Context(*(column.words[column.codes[one]] for column in (function, scope, phase))),
        )
        for one in first.tolist()
    ]
    return table, codes.astype(np.int32)


def _subjects(frames: Frames, row: Int64) -> tuple[Int64, list[Subject]]:
    """For each row its place in a list of subjects: the profile's names, a pool's task, and instructions."""
    events, event = frames.events, frames.event[row]
    subjects = [*map(_subject, events.plane.described), Subject(Role.TASK, "thread pool")]
    place = np.where(event != NONE, events.described[event], len(subjects) - 1).astype(np.int64)
    compiled = np.flatnonzero(frames.role[row] == Role.HLO)
    instruction = events.texts("hlo_op")[event[compiled]]
    programs, program = np.unique(events.numbers("program_id")[event[compiled]], return_inverse=True)
    pairs, pair = np.unique(program * len(instruction.words) + instruction.codes, return_inverse=True)
    place[compiled] = len(subjects) + pair
    for number, word in (divmod(one, len(instruction.words)) for one in pairs.tolist()):
        subjects.append(Subject(Role.HLO, instruction.words[word], program=int(programs[number])))
    return place, subjects


def _subject(described: Described) -> Subject:
    role = roles.role(described)
    if node := roles.node_and_op(described):
        return Subject(role, *node)
    return Subject(role, described.name.removeprefix(roles.EAGER))
