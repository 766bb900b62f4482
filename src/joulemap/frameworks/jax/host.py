"""The CPU's part of a JAX profile: instructions, what pool threads did for them, and the runtime's glue.

Threads are lanes, and the innermost event of a thread owns its time. What only waits is left out, so that
waiting is not taken for work; so are tasks of a pool in which the executor itself runs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from joulemap.frameworks.jax.naming import Naming, Part
from joulemap.frameworks.jax.pieces import cut, whole
from joulemap.frameworks.nesting import Forest
from joulemap.frameworks.xplane import pool
from joulemap.frameworks.xplane.events import Events
from joulemap.frameworks.xplane.pool import NONE, Spans
from joulemap.labels import Labels
from joulemap.traces import EventTrace, Int64

RUNTIME, COMPILATION = "(runtime)", "(compilation)"
_RECORD, _START, _STOP = (f"ThreadpoolListener::{what}" for what in ("Record", "StartRegion", "StopRegion"))
_END = "end: "
_EXECUTOR = "ThunkExecutor::Execute"
_WAITING = re.compile(
    r"wait for completion|^Wait |::Await|BlockUntilReady|BlockHostUntil|^Await|BUFFER_FLUSH|^\$|"
    r"MemoryAllocation|MemoryDeallocation"
)
_COMPILING = re.compile(
    r"\w*Compiler::|[Jj]it_?[Cc]ompile|backend_compile|ThunkEmitter|Codegen$|HLO passes|mlir::|\w+Pass$"
)
_ADDED = re.compile(r"^\[\d+\] |[(:#].*$")
_POOL = "tf_"


class _Role(IntEnum):
    LEFT_OUT = 0
    INSTRUCTION = 1
    EXECUTOR = 2
    RANGE = 3
    RECORD = 4
    START = 5
    STOP = 6
    TASK = 7


@dataclass(frozen=True, eq=False)
class _Frames:
    """The profile's events that have a length, then the tasks of pool threads, as rows.

    ``event`` is the row in the profile, ``owner`` the row of the instruction that a task works for, or
    ``NONE``."""

    event: Int64
    role: NDArray[np.int64]
    spans: Spans
    forest: Forest
    owner: Int64


def host_events(events: Events, session: str, naming: Naming) -> EventTrace:
    """The rows of the host; lanes are unique for ``session`` and thread."""
    frames = _frames(events)
    row = np.flatnonzero(~_silent(events, frames))
    worker = frames.owner[row] != NONE
    subject = np.where(worker, frames.owner[row], row)
    place, table, work = _named(events, frames, subject, naming)
    pieces = cut(frames.spans.start_ns[row], frames.forest.end_ns[row], place, table)
    kind = np.where(worker, 1, np.where(work[place], 0, 2)).astype(np.int32)
    return EventTrace.from_columns(
        name=pieces.name,
        device="CPU",
        start_ns=pieces.start_ns,
        end_ns=pieces.end_ns,
        lane=Labels(
            frames.spans.line[row][pieces.row], tuple(f"{session}/{i}" for i in range(len(events.lines)))
        ),
        kind=Labels(kind[pieces.row], ("op", "worker", "runtime")),
        op=pieces.op,
        phase=pieces.phase,
    )


def _frames(events: Events) -> _Frames:
    by_name = np.array([_role(described.name) for described in events.plane.described], np.int64)
    role = by_name[events.described]
    role = np.where(events.has("hlo_op") & (role == _Role.RANGE), _Role.INSTRUCTION, role)
    lasting = np.isin(role, (_Role.INSTRUCTION, _Role.EXECUTOR, _Role.RANGE))
    kept = np.flatnonzero(lasting & (events.end_ns > events.start_ns))
    marks = np.flatnonzero((role == _Role.START) | (role == _Role.STOP))
    number = events.numbers("_c", NONE)[marks]
    tasks = pool.tasks(events.line[marks], events.start_ns[marks], role[marks] == _Role.START, number)
    spans = Spans(events.line[kept], events.start_ns[kept], events.end_ns[kept]).joined(tasks.spans)
    event = np.concatenate((kept, np.full(len(tasks.number), NONE)))
    roles = np.concatenate((role[kept], np.full(len(tasks.number), _Role.TASK)))
    forest = Forest.of(spans.line, spans.start_ns, spans.end_ns)
    records = np.flatnonzero(role == _Role.RECORD)
    return _Frames(event, roles, spans, forest, _owners(events, records, spans, forest, roles, tasks.number))


def _role(name: str) -> _Role:
    exact = {_RECORD: _Role.RECORD, _START: _Role.START, _STOP: _Role.STOP, _EXECUTOR: _Role.EXECUTOR}
    if name in exact:
        return exact[name]
    return _Role.LEFT_OUT if name.startswith(_END) or _WAITING.search(name) else _Role.RANGE


def _owners(
    events: Events, records: Int64, spans: Spans, forest: Forest, role: NDArray[np.int64], number: Int64
) -> Int64:
    """The instruction that each task works for. What the executor hands over is the next instructions, no
    instruction's work."""
    if not len(role):  # a session that saw tasks handed over, and nothing else
        return np.zeros(0, np.int64)
    is_task, executor = role == _Role.TASK, role == _Role.EXECUTOR
    around = pool.innermost(spans, forest, events.line[records], events.start_ns[records])
    source = pool.nearest(forest, is_task | executor | (role == _Role.INSTRUCTION))
    came_from = np.where(around != NONE, source[around], NONE)
    came_from[(came_from != NONE) & executor[came_from]] = NONE
    origin = np.full(len(role), NONE)
    origin[is_task] = pool.handed_over(number, events.numbers("_p", NONE)[records], came_from)
    return pool.owners(origin, is_task)


def _silent(events: Events, frames: _Frames) -> NDArray[np.bool_]:
    """Ranges of Python's threads around others, which say nothing that those do not; and tasks around the
    executor or instructions."""
    encloses = np.zeros(len(frames.event), bool)
    encloses[frames.forest.parent[frames.forest.parent != NONE]] = True
    on_pool = np.array([line.name.startswith(_POOL) for line in events.lines] or [False])[frames.spans.line]
    wrapper = (frames.role == _Role.RANGE) & encloses & ~on_pool
    runs = np.isin(frames.role, (_Role.INSTRUCTION, _Role.EXECUTOR))
    task_around = pool.nearest(frames.forest, frames.role == _Role.TASK)[runs]
    wrapper[task_around[task_around != NONE]] = True
    return np.asarray(wrapper)


def _named(
    events: Events, frames: _Frames, row: Int64, naming: Naming
) -> tuple[Int64, list[Sequence[Part]], NDArray[np.bool_]]:
    """For each row its place in a table of parts, and for each entry whether it is work: instructions of the
    program that do not only run others, and compilation."""
    event = frames.event[row]
    described = events.plane.described
    table: list[Sequence[Part]] = [
        *(_glue(one.name, naming) for one in described),
        whole(f"{RUNTIME}/pool", "pool"),
    ]
    work = [_COMPILING.match(one.name) is not None for one in described] + [False]
    place = np.where(event != NONE, events.described[event], len(table) - 1).astype(np.int64)
    table.append(whole(f"{RUNTIME}/launch", "launch"))
    work.append(False)
    place[(event != NONE) & (events.numbers("correlation_id")[event] > 0)] = len(table) - 1
    compiled = np.flatnonzero(frames.role[row] == _Role.INSTRUCTION)
    instruction = events.texts("hlo_op")[event[compiled]]
    programs, program = np.unique(events.numbers("program_id")[event[compiled]], return_inverse=True)
    pairs, pair = np.unique(program * len(instruction.words) + instruction.codes, return_inverse=True)
    place[compiled] = len(table) + pair
    for number, word in (divmod(one, len(instruction.words)) for one in pairs.tolist()):
        key = int(programs[number]), instruction.words[word]
        table.append(naming.parts(*key))
        work.append(not naming.runs_others(*key))
    return place, table, np.array(work, bool)


def _glue(name: str, naming: Naming) -> Sequence[Part]:
    """What the runtime does, without for which function, device or line of Python."""
    if _COMPILING.match(name):
        return whole(f"{COMPILATION}/{_without_details(name)}", "compile")
    what = "instruction" if naming.is_instruction(name) else _without_details(name) or "range"
    return whole(f"{RUNTIME}/{what}", what)


def _without_details(name: str) -> str:
    return _ADDED.sub("", name).strip()
