"""A GPU's part of a JAX profile: kernels, copies and sets, by the instructions that they are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from joulemap.frameworks.imported import UNNAMED
from joulemap.frameworks.jax.naming import Naming, Part
from joulemap.frameworks.jax.pieces import cut, whole
from joulemap.frameworks.jax.restored import Schedule
from joulemap.frameworks.xplane.events import Events
from joulemap.labels import Labels
from joulemap.traces import EventTrace, Int64

_STREAM = "Stream"
_GRAPH = "command_buffer"
_COPY_IN = re.compile(r"Memcpy ?H(?:to|2)D", re.IGNORECASE)
_INPUT = "input pipeline"


@dataclass(frozen=True, eq=False)
class Kernels:
    """The rows of one GPU; how many kernels came from CUDA graphs, and how many of these got no name."""

    events: EventTrace
    of_graphs: int
    unrestored: int


def kernel_events(events: Events, device: str, session: str, naming: Naming) -> Kernels:
    """A lane for each stream. Lines that are no streams repeat the kernels in other words."""
    streams = np.array([line.name.startswith(_STREAM) for line in events.lines] or [False])
    row = np.flatnonzero(streams[events.line])
    row = row[np.argsort(events.start_ns[row], kind="stable")]
    instruction, kernel = list(events.texts("hlo_op")[row]), list(events.name[row])
    program = events.numbers("program_id")[row].tolist()
    launch = events.numbers("correlation_id")[row].tolist()
    of_graphs = [number for number, name in enumerate(instruction) if name.startswith(_GRAPH)]
    for number, name in _restored(of_graphs, kernel, program, launch, naming).items():
        instruction[number] = name
    place, table = _table(program, instruction, kernel, naming)
    pieces = cut(events.start_ns[row], events.end_ns[row], place, table)
    lane = Labels(
        events.line[row][pieces.row], tuple(f"{session}/{device}/{i}" for i in range(len(events.lines)))
    )
    trace = EventTrace.from_columns(
        name=pieces.name,
        device=device,
        start_ns=pieces.start_ns,
        end_ns=pieces.end_ns,
        lane=lane,
        kind="kernel",
        op=pieces.op,
        phase=pieces.phase,
    )
    return Kernels(trace, len(of_graphs), sum(not instruction[number] for number in of_graphs))


def _restored(
    rows: Sequence[int], kernel: Sequence[str], program: Sequence[int], launch: Sequence[int], naming: Naming
) -> dict[int, str]:
    """The instructions of kernels of graphs, launch by launch; empty where they cannot be told."""
    launches: dict[tuple[int, int], list[int]] = {}
    for number in rows:
        launches.setdefault((program[number], launch[number]), []).append(number)
    found: dict[int, str] = {}
    schedules: dict[int, Schedule] = {}
    since: dict[int, int] = {}
    for (one, _), members in launches.items():
        module = naming.module(one)
        if one not in schedules:
            schedules[one] = Schedule(module.scheduled() if module else ())
        names = [kernel[number] for number in members]
        further, end = schedules[one].restored(names, since.get(one, 0))
        anew, end_anew = schedules[one].restored(names)
        better = _known(anew) >= _known(further)
        since[one] = end_anew if better else end
        found.update(zip(members, anew if better else further, strict=True))
    return found


def _known(names: Sequence[str]) -> int:
    return sum(map(bool, names))


def _table(
    program: Sequence[int], instruction: Sequence[str], kernel: Sequence[str], naming: Naming
) -> tuple[Int64, list[Sequence[Part]]]:
    places: dict[tuple[int, str, str], int] = {}
    table: list[Sequence[Part]] = []
    place = np.empty(len(kernel), np.int64)
    for number, key in enumerate(zip(program, instruction, kernel, strict=True)):
        if key not in places:
            places[key] = len(table)
            table.append(_parts(*key, naming))
        place[number] = places[key]
    return place, table


def _parts(program: int, instruction: str, kernel: str, naming: Naming) -> Sequence[Part]:
    if instruction:
        return naming.parts(program, instruction)
    return whole(f"{_INPUT if _COPY_IN.match(kernel) else UNNAMED}/{kernel}", kernel)
