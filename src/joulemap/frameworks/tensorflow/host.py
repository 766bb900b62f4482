"""The CPU's part of a profile: operations, what pool threads did for them, the runtime's glue.

Threads are lanes, and the innermost event of a thread owns its time. Ranges that only wait for what happens
inside them or on other threads are left out, so that waiting is not taken for work.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from joulemap.frameworks.tensorflow import roles
from joulemap.frameworks.tensorflow.frames import Frames
from joulemap.frameworks.tensorflow.roles import WORK, Role
from joulemap.frameworks.tensorflow.subjects import Context, Named, NamedRows, Namer, Subject
from joulemap.frameworks.xplane.events import Events
from joulemap.frameworks.xplane.plane import Described
from joulemap.frameworks.xplane.pool import NONE
from joulemap.labels import Labels
from joulemap.traces import EventTrace, Int64


@dataclass(frozen=True, eq=False)
class HostTrace:
    """The host's rows, and for each launch of GPU work, by its number, the operation that launched it."""

    events: EventTrace
    launches: dict[int, Named]


def host_trace(events: Events, session: str, name: Namer) -> HostTrace:
    """Name everything; lanes are unique for ``session`` and thread."""
    frames = Frames.of(events)
    silent = np.isin(frames.role, (Role.SCOPE, Role.PHASE, Role.FUNCTION)) | frames.wrappers()
    row = np.flatnonzero(~silent)
    worker = frames.owner[row] != NONE
    named = _named(frames, np.where(worker, frames.owner[row], row), name)
    kind = np.where(np.isin(frames.role[row], WORK), 0, np.where(worker, 1, 2)).astype(np.int32)
    trace = EventTrace.from_columns(
        name=named.name,
        device="CPU",
        start_ns=frames.spans.start_ns[row],
        end_ns=frames.forest.end_ns[row],
        lane=Labels(frames.spans.line[row], tuple(f"{session}/{i}" for i in range(len(events.lines)))),
        kind=Labels(kind, ("op", "worker", "runtime")),
        op=named.op,
        phase=named.phase,
    )
    return HostTrace(trace, _launches(frames, row, named))


def _launches(frames: Frames, row: Int64, named: NamedRows) -> dict[int, Named]:
    """GPU launches lie inside the operations that make them."""
    number = np.where(frames.event != NONE, frames.events.numbers("correlation_id")[frames.event], 0)
    operation = frames.around(*WORK)
    launches = np.flatnonzero((number != 0) & (operation != NONE))
    place = np.full(len(frames), NONE)
    place[row] = named.place
    found = zip(number[launches].tolist(), place[operation[launches]].tolist(), strict=True)
    return {one: named.table[at] for one, at in found if at != NONE}


def _named(frames: Frames, row: Int64, name: Namer) -> NamedRows:
    """The table of names is made for every distinct subject and context."""
    subject, subjects = _subjects(frames, row)
    function = frames.functions()[row]
    scope = frames.words(frames.around(Role.SCOPE)[row], roles.SCOPE)
    phase = frames.words(frames.around(Role.PHASE)[row], roles.PHASE)
    key = subject
    for column in (function, scope, phase):
        key = key * len(column.words) + column.codes
    _, first, place = np.unique(key, return_index=True, return_inverse=True)
    asked = [
        (
            subjects[int(subject[one])],
            Context(*(column.words[column.codes[one]] for column in (function, scope, phase))),
        )
        for one in first.tolist()
    ]
    return NamedRows(place.astype(np.int32), name(asked))


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
        name = instruction.words[word]
        subjects.append(Subject(Role.HLO, name, program=int(programs[number]), instruction=name))
    return place, subjects


def _subject(described: Described) -> Subject:
    role = roles.role(described)
    if role == Role.NODE:
        node, _, op = described.name.rpartition(":")
        return Subject(role, described.name, node, op)
    return Subject(role, described.name.removeprefix(roles.EAGER))
