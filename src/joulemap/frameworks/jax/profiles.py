"""Profiles of a JAX program (XPlane files), put together: events of all devices, and the dataflow."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from joulemap.errors import InputError
from joulemap.frameworks.imported import ImportedTrace
from joulemap.frameworks.jax.host import host_events
from joulemap.frameworks.jax.kernels import Kernels, kernel_events
from joulemap.frameworks.jax.naming import Naming
from joulemap.frameworks.wire import Torn
from joulemap.frameworks.xplane.events import Events
from joulemap.frameworks.xplane.hlo import Module, Modules
from joulemap.frameworks.xplane.space import GPU, HOST, METADATA, Space, damaged, read_space
from joulemap.program import Fusion, Program
from joulemap.traces import KINDS, EventTrace, Int64, Steps

JAX = "jax"
_WORK = ("op", "kernel")
_STEP = "step_num"
_VERSION = "jax_version"
_PROGRAM = re.compile(r"(?:jit|pmap)_")


@dataclass(eq=False)
class _Read:
    """What has been read so far."""

    one_process: bool
    modules: Modules = field(default_factory=Modules)
    programs: dict[int, Module] = field(default_factory=dict)
    events: list[EventTrace] = field(default_factory=list)
    edges: dict[tuple[str, str], None] = field(default_factory=dict)
    fusions: dict[Fusion, None] = field(default_factory=dict)
    steps: list[Int64] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    of_graphs: int = 0
    unrestored: int = 0


def is_of_jax(space: Space) -> bool:
    """Whether JAX wrote a profile. It says so since 0.9; before that, its programs' names do."""
    programs = [plane for plane in space.planes if plane.name == METADATA]
    names = [described.name for plane in programs for described in plane.described]
    return any(_VERSION in plane.stats for plane in programs) or any(map(_PROGRAM.match, names))


def read_profiles(
    paths: Sequence[Path],
    progress: Callable[[float], None] | None = None,
    *,
    leave_out_damaged: bool = True,
    one_process: bool = False,
) -> ImportedTrace:
    """Read the files, each a session of the profiler, with the steps that the program marked in them. Of one
    process, a session need not have the compiled programs that one before it has.

    A damaged file is an ``InputError``, or is left out with a note.
    """
    read = _Read(one_process)
    for number, path in enumerate(paths):
        problem = _problem_of_adding(read, path, str(number))
        if problem is not None and not leave_out_damaged:
            raise problem
        read.notes += [] if problem is None else [f"Left out: {problem.message}"]
        if progress is not None:
            progress((number + 1) / len(paths))
    none = np.zeros(0, np.int64)
    empty = EventTrace.from_columns(name=(), device=(), start_ns=none, end_ns=none, lane=())
    events = EventTrace.joined(read.events or [empty])
    program = Program.of(_operations(events), read.edges, fusions=read.fusions)
    return ImportedTrace(events, _steps(read.steps), program, JAX, [*read.notes, *_of_graphs(read)])


def _problem_of_adding(read: _Read, path: Path, session: str) -> InputError | None:
    """Add a file to what has been read; says what is wrong with it instead where it is damaged."""
    try:
        _add(read, read_space(path), session)
    except Torn as error:
        return damaged(path, error)
    except InputError as error:
        return error
    return None


def _add(read: _Read, space: Space, session: str) -> None:
    programs = {**read.programs, **read.modules.of(space)}
    read.programs = programs if read.one_process else {}
    naming = Naming(programs)
    if HOST in space.events:
        read.events.append(host_events(space.events[HOST], session, naming))
        read.steps.append(_marked(space.events[HOST]))
    for kernels in _kernels(space, session, naming):
        read.events.append(kernels.events)
        read.of_graphs += kernels.of_graphs
        read.unrestored += kernels.unrestored
    read.edges.update(dict.fromkeys(naming.edges()))
    read.fusions.update(dict.fromkeys(naming.fusions()))


def _kernels(space: Space, session: str, naming: Naming) -> Iterator[Kernels]:
    for plane, events in space.events.items():
        if plane.startswith(GPU):
            yield kernel_events(events, f"GPU:{plane.removeprefix(GPU)}", session, naming)


def _marked(events: Events) -> Int64:
    """Start and end of ranges that have a step's number."""
    marked = np.flatnonzero(events.has(_STEP) & (events.end_ns > events.start_ns))
    return np.column_stack((events.start_ns[marked], events.end_ns[marked]))


def _steps(marked: Sequence[Int64]) -> Steps:
    """One after the other; where two overlap, the earlier one ends."""
    steps = np.concatenate([np.zeros((0, 2), np.int64), *marked])
    steps = steps[np.argsort(steps[:, 0], kind="stable")]
    ends = np.minimum(steps[:, 1], np.append(steps[1:, 0], steps[-1:, 1]))
    return Steps.from_columns(start_ns=steps[:, 0], end_ns=ends)


def _operations(events: EventTrace) -> dict[str, str]:
    """The qualified names of work, with the operation's type."""
    work = np.isin(events.kind.codes, [KINDS.index(kind) for kind in _WORK])
    pairs = np.unique(np.stack((events.name.codes[work], events.op.codes[work])), axis=1)
    return {events.name.words[name]: events.op.words[op] for name, op in pairs.T.tolist()}


def _of_graphs(read: _Read) -> list[str]:
    if not read.of_graphs:
        return []
    said = (
        f"{read.of_graphs:,} kernels are from CUDA graphs (XLA's command buffers), which keep no names: "
        "these were found again by the order of the compiled program's instructions"
    )
    if not read.unrestored:
        return [f"{said}."]
    otherwise = "With XLA_FLAGS=--xla_gpu_enable_command_buffer= all have names."
    return [f"{said}, except for {read.unrestored:,}. {otherwise}"]
