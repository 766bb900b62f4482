"""Profiles (XPlane files) of one program, put together: events of all devices, steps, and the dataflow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from joulemap.errors import InputError
from joulemap.frameworks.imported import ImportedTrace
from joulemap.frameworks.tensorflow import roles
from joulemap.frameworks.tensorflow.graphs import Graphs
from joulemap.frameworks.tensorflow.host import host_trace
from joulemap.frameworks.tensorflow.kernels import kernel_events
from joulemap.frameworks.tensorflow.naming import Naming
from joulemap.frameworks.tensorflow.subjects import Named
from joulemap.frameworks.wire import Torn
from joulemap.frameworks.xplane.events import Events
from joulemap.frameworks.xplane.hlo import Modules
from joulemap.frameworks.xplane.space import GPU, HOST, METADATA, Space, damaged, read_space
from joulemap.program import Program
from joulemap.traces import KINDS, EventTrace, Int64, Steps

TENSORFLOW, JAX = "tensorflow", "jax"
_WORK = ("op", "kernel")


@dataclass(eq=False)
class _Read:
    """What has been read so far."""

    modules: Modules = field(default_factory=Modules)
    events: list[EventTrace] = field(default_factory=list)
    edges: dict[tuple[str, str], None] = field(default_factory=dict)
    steps: list[Int64] = field(default_factory=list)
    frameworks: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read_profiles(
    paths: Sequence[Path],
    graphs: Graphs,
    progress: Callable[[float], None] | None = None,
    *,
    leave_out_damaged: bool = False,
) -> ImportedTrace:
    """Read the files, each a session of the profiler, with the steps that the profiles themselves mark.

    A damaged file is an ``InputError``, or is left out with a note.
    """
    read = _Read()
    for number, path in enumerate(paths):
        problem = _problem_of_adding(read, path, str(number), graphs, _share(progress, number, len(paths)))
        if problem is not None and not leave_out_damaged:
            raise problem
        read.notes += [] if problem is None else [f"Left out: {problem.message}"]
    events = EventTrace.joined(read.events) if read.events else _no_events()
    program = Program.of(_operations(events), read.edges)
    framework = read.frameworks[0] if read.frameworks else TENSORFLOW
    return ImportedTrace(events, _steps(read.steps), program, framework, read.notes)


def _problem_of_adding(
    read: _Read, path: Path, session: str, graphs: Graphs, progress: Callable[[float], None] | None
) -> InputError | None:
    """Add a file to what has been read; says what is wrong with it instead where it is damaged."""
    try:
        space = read_space(path, progress)
        _add(read, space, session, Naming(graphs, read.modules.of(space)))
    except Torn as error:
        return damaged(path, error)
    except InputError as error:
        return error
    return None


def _add(read: _Read, space: Space, session: str, naming: Naming) -> None:
    parts = list(_events(space, session, naming))
    ran = {name for part in parts for name in _operations(part)}
    edges = dict.fromkeys(naming.edges(ran))
    read.events += parts
    read.edges.update(edges)
    read.steps += [marks for events in space.events.values() if len(marks := _marked_steps(events))]
    read.frameworks.append(_framework(space))
    read.notes += _notes(space)


def _events(space: Space, session: str, naming: Naming) -> Iterator[EventTrace]:
    launches: dict[int, Named] = {}
    if HOST in space.events:
        host = host_trace(space.events[HOST], session, naming)
        launches = host.launches
        yield host.events
    for plane, events in space.events.items():
        if plane.startswith(GPU):
            device = f"GPU:{plane.removeprefix(GPU)}"
            yield kernel_events(events, device, session, naming, launches)


def _operations(events: EventTrace) -> dict[str, str]:
    """The qualified names of work, with the operation's type."""
    work = np.isin(events.kind.codes, [KINDS.index(kind) for kind in _WORK])
    pairs = np.unique(
        events.name.codes[work].astype(np.int64) * len(events.op.words) + events.op.codes[work]
    ).tolist()
    return {
        events.name.words[pair // len(events.op.words)]: events.op.words[pair % len(events.op.words)]
        for pair in pairs
    }


def _marked_steps(events: Events) -> Int64:
    """Ranges with a step's number, or else calls of functions, or runs of a session: start and end of those
    inside no other."""
    runs = np.array([one.name == roles.SESSION_RUN for one in events.plane.described])
    for marks in (events.has("step_num"), events.has("tf_function_call"), runs[events.described]):
        marked = np.flatnonzero(marks & (events.end_ns > events.start_ns))
        if len(marked):
            marked = marked[np.lexsort((-events.end_ns[marked], events.start_ns[marked]))]
            start, end = events.start_ns[marked], events.end_ns[marked]
            outer = np.concatenate(([True], start[1:] >= np.maximum.accumulate(end)[:-1]))
            return np.column_stack((start[outer], end[outer]))
    return np.zeros((0, 2), np.int64)


def _steps(marked: Sequence[Int64]) -> Steps:
    steps = np.concatenate([np.zeros((0, 2), np.int64), *marked])
    steps = steps[np.argsort(steps[:, 0], kind="stable")]
    return Steps.from_columns(
        start_ns=steps[:, 0], end_ns=np.minimum(steps[:, 1], np.append(steps[1:, 0], steps[-1:, 1]))
    )


def _framework(space: Space) -> str:
    names = [key for plane in space.planes if plane.name == METADATA for key in plane.stats]
    return JAX if "jax_version" in names else TENSORFLOW


def _notes(space: Space) -> list[str]:
    replayed = sum(
        int(events.has("cuda_graph_id").sum())
        for plane, events in space.events.items()
        if plane.startswith(GPU)
    )
    if not replayed:
        return []
    return [
        f"{replayed:,} kernels of {space.path.name} are from CUDA graphs, which do not keep their layers; "
        "with XLA_FLAGS=--xla_gpu_enable_command_buffer= they do."
    ]


def _no_events() -> EventTrace:
    return EventTrace.from_columns(name=(), device=(), start_ns=np.zeros(0), end_ns=np.zeros(0), lane=())


def _share(
    progress: Callable[[float], None] | None, number: int, count: int
) -> Callable[[float], None] | None:
    return None if progress is None else lambda share: progress((number + share) / count)
