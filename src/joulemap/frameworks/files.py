"""Trace files on disk: which framework wrote them, and which reader gets them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from itertools import chain, islice
from pathlib import Path

import numpy as np

from joulemap.errors import InputError
from joulemap.frameworks.chrome import ChromeTrace, Event, arguments
from joulemap.frameworks.imported import ImportedTrace, describe
from joulemap.frameworks.jax.profiles import is_of_jax
from joulemap.frameworks.jax.profiles import read_profiles as jax_profiles
from joulemap.frameworks.kineto import KinetoTrace, trace_of
from joulemap.frameworks.tensorflow import metadata
from joulemap.frameworks.tensorflow.graphs import Graphs, read_graphs
from joulemap.frameworks.tensorflow.profiles import TENSORFLOW, read_profiles
from joulemap.frameworks.tensorflow.raw import GRAPHS, PROFILES
from joulemap.frameworks.tensorflow.timeline import COMPUTE, TimelineFiles
from joulemap.frameworks.torch_chrome import CATEGORIES, TorchEvents
from joulemap.frameworks.xplane.space import is_space, read_space
from joulemap.program import Program
from joulemap.traces import EventTrace, Steps
from joulemap.units import NS_PER_S

TORCH, PROFILE = "torch", "profile"
_LOOK_AT_EVENTS = 5000
_LOOK_AT_BYTES = 4096
_EPOCH_SINCE_NS = 10**18  # September 2001
_ONLY_SCOPES = (
    "The layers have the names of TensorFlow's scopes, which Keras 3 numbers anew (dense becomes dense_1); "
    "joulemap run records their own."
)


@dataclass(frozen=True, eq=False)
class _Opened:
    """A file, what kind of trace it is, and its events where they are a list of JSON's."""

    path: Path
    kind: str
    events: Iterator[Event] = field(default_factory=lambda: iter(()))
    trace: ChromeTrace | None = None


def read_files(paths: Sequence[Path], progress: Callable[[float], None] | None = None) -> ImportedTrace:
    """Read the files with the reader of the framework that wrote them, and say what was understood.

    A folder stands for the profiles in it.
    """
    if not paths:
        raise InputError("No trace file was given.")
    files = [file for path in paths for file in _files(path)]
    opened = [_open(path, _share(progress, number, len(files))) for number, path in enumerate(files)]
    if len({file.kind for file in opened}) > 1:
        names = ", ".join(f"{file.path.name} ({file.kind})" for file in opened)
        raise InputError(f"The files come from different frameworks: {names}.", "Import them one by one.")
    if opened[0].kind == PROFILE:
        imported = _read_profiles(files, _graphs(paths), progress)
    else:
        imported = (_read_timelines if opened[0].kind == TENSORFLOW else _read_torch)(opened)
    notes = describe(imported.events, imported.steps) + imported.notes + _notes(opened, imported.events)
    return replace(imported, notes=notes)


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    profiles = sorted(path.rglob(PROFILES))
    if not profiles:
        raise InputError(
            f"There is no {PROFILES} in {path}.",
            "Give the folder that the profiler wrote to, or a trace file.",
        )
    return profiles


def _read_profiles(
    files: Sequence[Path], graphs: Graphs, progress: Callable[[float], None] | None
) -> ImportedTrace:
    if is_of_jax(read_space(files[0])):
        return jax_profiles(files, progress, leave_out_damaged=False)
    imported = read_profiles(files, graphs, progress)
    if graphs or imported.framework != TENSORFLOW:
        return imported
    return replace(imported, notes=[*imported.notes, _ONLY_SCOPES])


def _graphs(paths: Sequence[Path]) -> Graphs:
    """The graphs beside the profiles, where joulemap itself recorded them."""
    return next((read_graphs(path / GRAPHS) for path in paths if (path / GRAPHS).is_dir()), Graphs())


def _open(path: Path, progress: Callable[[float], None] | None) -> _Opened:
    head = _head(path)
    if is_space(head) or fnmatch(path.name, PROFILES):
        return _Opened(path, PROFILE)
    if metadata.is_binary(head) or metadata.is_text(head):
        return _Opened(path, TENSORFLOW, metadata.metadata_events(path))
    trace = ChromeTrace(path, progress)
    events = trace.events()
    first = list(islice(events, _LOOK_AT_EVENTS))
    return _Opened(path, _framework(trace, first), chain(first, events), trace)


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_LOOK_AT_BYTES)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}.") from error


def _framework(trace: ChromeTrace, events: Sequence[Event]) -> str:
    if any(str(event.get("cat")) in CATEGORIES for event in events):
        return TORCH
    processes = [
        str(arguments(event).get("name", "")) for event in events if event.get("name") == "process_name"
    ]
    if any(name.endswith(COMPUTE) for name in processes):
        return TENSORFLOW
    if any(name.startswith(("/host:", "/device:")) for name in processes):
        raise InputError(
            f"{trace.path} is the viewer's copy of an XLA profile, without the names of the layers.",
            "Import the .xplane.pb file beside it instead.",
        )
    kinds = Counter(str(event.get("cat", "no category")) for event in events).most_common(5)
    raise InputError(
        f"{trace.path} is a Chrome trace of neither torch.profiler nor TensorFlow's timeline: "
        f"its events are of {', '.join(repr(kind) for kind, _ in kinds)}.",
        "torch.profiler writes it with export_chrome_trace, TensorFlow with timeline.Timeline.",
    )


def _read_timelines(files: Sequence[_Opened]) -> ImportedTrace:
    timelines = TimelineFiles()
    for file in files:
        timelines.collect(file.events, str(file.path))
    return timelines.trace()


def _read_torch(files: Sequence[_Opened]) -> ImportedTrace:
    read, notes = [], []
    for file in files:
        collected = TorchEvents()
        collected.collect(file.events)
        read.append(trace_of(collected.columns(file.trace.header if file.trace else {})))
        notes += [*collected.notes(), *read[-1].notes]
    read.sort(key=lambda part: int(part.events.start_ns.min()) if len(part.events) else 0)
    steps = _following_steps(read)
    return ImportedTrace(EventTrace.joined(list(_renumbered(read))), steps, Program(), TORCH, notes)


def _renumbered(parts: Sequence[KinetoTrace]) -> Iterator[EventTrace]:
    """The events of each part, with their steps counted through all parts."""
    before = 0
    for part in parts:
        step = part.events.step
        yield replace(part.events, step=np.where(step >= 0, step + before, step).astype(np.int32))
        before += len(part.steps)


def _following_steps(parts: Sequence[KinetoTrace]) -> Steps:
    start = np.concatenate([part.steps.start_ns for part in parts])
    end = np.concatenate([part.steps.end_ns for part in parts])
    if (start[1:] < end[:-1]).any():
        raise InputError(
            "The steps of the trace files overlap in time.",
            "Files of one process follow each other. Import the files of several ranks one by one, "
            "and put the recordings together with joulemap merge.",
        )
    return Steps.from_columns(start_ns=start, end_ns=end)


def _share(
    progress: Callable[[float], None] | None, number: int, count: int
) -> Callable[[float], None] | None:
    return None if progress is None else lambda share: progress((number + share) / count)


def _notes(files: Sequence[_Opened], events: EventTrace) -> list[str]:
    notes = [
        f"{file.path.name} stops in the middle; it was read up to its last whole event."
        for file in files
        if file.trace is not None and file.trace.torn
    ]
    if events.span_ns and events.span_ns[0] < _EPOCH_SINCE_NS:
        notes.append(
            f"The times do not count from 1970 (the first is {events.span_ns[0] / NS_PER_S:.3f} s): "
            "they fit only power that was logged on the same clock."
        )
    return notes
