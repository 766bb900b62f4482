"""Trace files on disk: which framework wrote them, and which reader gets them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path

import numpy as np

from joulemap.errors import InputError
from joulemap.frameworks.chrome import ChromeTrace, Event, arguments
from joulemap.frameworks.imported import ImportedTrace, describe
from joulemap.frameworks.kineto import KinetoTrace, trace_of
from joulemap.frameworks.tensorflow.timeline import COMPUTE, TimelineFiles
from joulemap.frameworks.torch_chrome import CATEGORIES, TorchEvents
from joulemap.program import Program
from joulemap.traces import EventTrace, Steps
from joulemap.units import NS_PER_S

TENSORFLOW, TORCH = "tensorflow", "torch"
_LOOK_AT_EVENTS = 5000
_EPOCH_SINCE_NS = 10**18  # September 2001


@dataclass(frozen=True, eq=False)
class _Opened:
    trace: ChromeTrace
    events: Iterator[Event]
    framework: str


def read_files(paths: Sequence[Path], progress: Callable[[float], None] | None = None) -> ImportedTrace:
    """Read the files with the reader of the framework that wrote them, and say what was understood."""
    if not paths:
        raise InputError("No trace file was given.")
    opened = [_open(path, _share(progress, number, len(paths))) for number, path in enumerate(paths)]
    if len({file.framework for file in opened}) > 1:
        files = ", ".join(f"{file.trace.path.name} ({file.framework})" for file in opened)
        raise InputError(f"The files come from different frameworks: {files}.", "Import them one by one.")
    read = _read_timelines if opened[0].framework == TENSORFLOW else _read_torch
    imported = read(opened)
    notes = describe(imported.events, imported.steps) + imported.notes + _notes(opened, imported.events)
    return replace(imported, notes=notes)


def _open(path: Path, progress: Callable[[float], None] | None) -> _Opened:
    trace = ChromeTrace(path, progress)
    events = trace.events()
    first = list(islice(events, _LOOK_AT_EVENTS))
    return _Opened(trace, chain(first, events), _framework(trace, first))


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
        timelines.collect(file.events, str(file.trace.path))
    return timelines.trace()


def _read_torch(files: Sequence[_Opened]) -> ImportedTrace:
    read, notes = [], []
    for file in files:
        collected = TorchEvents()
        collected.collect(file.events)
        read.append(trace_of(collected.columns(file.trace.header)))
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
        f"{file.trace.path.name} stops in the middle; it was read up to its last whole event."
        for file in files
        if file.trace.torn
    ]
    if events.span_ns and events.span_ns[0] < _EPOCH_SINCE_NS:
        notes.append(
            f"The times do not count from 1970 (the first is {events.span_ns[0] / NS_PER_S:.3f} s): "
            "they fit only power that was logged on the same clock."
        )
    return notes
