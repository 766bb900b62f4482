"""Profiles of a JAX program (XPlane files), put together: events of all devices, and the dataflow."""

from __future__ import annotations

import os
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
from joulemap.frameworks.xplane.hlo import Modules
from joulemap.frameworks.xplane.space import GPU, HOST, METADATA, Space, damaged, read_space
from joulemap.program import Program
from joulemap.traces import KINDS, EventTrace, Steps

JAX = "jax"
WHOLE_FUSIONS = "JOULEMAP_WHOLE_FUSIONS"
"""An environment variable: set, and fusions are not split."""

_WORK = ("op", "kernel")


@dataclass(eq=False)
class _Read:
    """What has been read so far."""

    modules: Modules = field(default_factory=Modules)
    events: list[EventTrace] = field(default_factory=list)
    edges: dict[tuple[str, str], None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    of_graphs: int = 0
    unrestored: int = 0


def is_of_jax(space: Space) -> bool:
    """Whether JAX wrote a profile."""
    return any("jax_version" in plane.stats for plane in space.planes if plane.name == METADATA)


def read_profiles(
    paths: Sequence[Path],
    progress: Callable[[float], None] | None = None,
    *,
    whole_fusions: bool | None = None,
) -> ImportedTrace:
    """Read the files, each a session of the profiler; a damaged one is left out with a note.

    Steps are for others to know, so there are none.
    """
    read = _Read()
    whole = bool(os.environ.get(WHOLE_FUSIONS)) if whole_fusions is None else whole_fusions
    for number, path in enumerate(paths):
        try:
            _add(read, read_space(path), str(number), whole)
        except Torn as error:
            read.notes.append(f"Left out: {damaged(path, error).message}")
        except InputError as error:
            read.notes.append(f"Left out: {error.message}")
        if progress is not None:
            progress((number + 1) / len(paths))
    none = np.zeros(0, np.int64)
    empty = EventTrace.from_columns(name=(), device=(), start_ns=none, end_ns=none, lane=())
    events = EventTrace.joined(read.events or [empty])
    program = Program.of(_operations(events), read.edges)
    steps = Steps.from_columns(start_ns=none, end_ns=none)
    return ImportedTrace(events, steps, program, JAX, [*read.notes, *_of_graphs(read)])


def _add(read: _Read, space: Space, session: str, whole: bool) -> None:
    naming = Naming(read.modules.of(space), whole)
    if HOST in space.events:
        read.events.append(host_events(space.events[HOST], session, naming))
    for kernels in _kernels(space, session, naming):
        read.events.append(kernels.events)
        read.of_graphs += kernels.of_graphs
        read.unrestored += kernels.unrestored
    read.edges.update(dict.fromkeys(naming.edges()))


def _kernels(space: Space, session: str, naming: Naming) -> Iterator[Kernels]:
    for plane, events in space.events.items():
        if plane.startswith(GPU):
            yield kernel_events(events, f"GPU:{plane.removeprefix(GPU)}", session, naming)


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
