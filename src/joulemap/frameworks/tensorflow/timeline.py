"""TensorFlow's timeline (``timeline.Timeline``, ``ProfilerHook``): one file holds one step of a graph.

Times are epoch µs. A process of the trace is a device; its threads are only rows for drawing, chosen so
that events do not overlap, and say nothing about nesting: every event is a lane of its own.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from joulemap.errors import InputError
from joulemap.frameworks.chrome import BROKEN, LAST_NS, Event, arguments, nanoseconds
from joulemap.frameworks.imported import ImportedTrace
from joulemap.frameworks.tensorflow.dataflow import Node, input_name
from joulemap.frameworks.tensorflow.names import RUNTIME, Place, places
from joulemap.labels import Labels
from joulemap.program import Program
from joulemap.traces import EventTrace, Int64, Steps

COMPUTE = " Compute"
_PROCESS = re.compile(r"(?P<device>.*?)(?P<stream>/stream:.+|/memcpy)?" + COMPUTE + "$")
_DEVICE = re.compile(r"(?P<kind>CPU|GPU|TPU|XPU):(?P<index>\d+)", re.IGNORECASE)
_ONE_STREAM, _COPIES, _ALL_STREAMS, _NO_STREAM = range(4)


@dataclass(frozen=True, slots=True)
class _Process:
    """One process of a timeline: where its events ran, and as what they count."""

    device: str
    kind: str
    stream: int

    @classmethod
    def parse(cls, name: str) -> _Process | None:
        """None for what is no work: the tensors and the allocators."""
        match, device = _PROCESS.match(name), _DEVICE.findall(name)
        if match is None or not device:
            return None
        kind, index = device[-1][0].upper(), device[-1][1]
        if match["stream"]:
            copies, together = match["stream"] == "/memcpy", match["stream"].startswith("/stream:all")
            rank = _COPIES if copies else _ALL_STREAMS if together else _ONE_STREAM
            return cls(f"{kind}:{index}", "kernel", rank)
        # TensorFlow's CPU:0 is all sockets. A GPU without a stream is the host launching kernels on it.
        return cls("CPU", "op" if kind == "CPU" else "runtime", _NO_STREAM)


_NO_PROCESS = _Process("CPU", "runtime", _NO_STREAM)


@dataclass(frozen=True, slots=True)
class _File:
    """The operations of one timeline, as rows of node, process, start and length (ns)."""

    source: str
    processes: tuple[_Process | None, ...]
    rows: Int64

    @property
    def start_ns(self) -> int:
        return int(self.rows[:, 2].min())


class TimelineFiles:
    """Collects timelines, one after the other; ``trace`` puts them together, a step each."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._codes: dict[str, int] = {}
        self._files: list[_File] = []
        self._broken = 0

    def collect(self, events: Iterable[Event], source: str) -> None:
        """Keep of one file the operations: which, in which process, from when, how long."""
        process_names: dict[str, str] = {}
        process_codes: dict[str, int] = {}
        rows = array("q")
        for event in events:
            phase = event.get("ph")
            if phase == "X":
                self._keep(event, process_codes, rows)
            elif phase == "M" and event.get("name") == "process_name":
                process_names[str(event.get("pid"))] = str(arguments(event).get("name", ""))
        processes = tuple(_Process.parse(process_names.get(pid, "")) for pid in process_codes)
        table = np.frombuffer(rows, np.int64).reshape(-1, 4)
        work = np.array([process is not None for process in processes], bool)
        table = table[work[table[:, 1]]]
        if not len(table):
            raise InputError(
                f"{source} holds no operations that ran on a device.",
                "Record the session's run with RunOptions(trace_level=RunOptions.FULL_TRACE).",
            )
        self._files.append(_File(source, processes, table))

    def _keep(self, event: Event, processes: dict[str, int], rows: array[int]) -> None:
        try:
            args = arguments(event)
            name = str(args.get("name") or event["name"])
            times = (nanoseconds(event["ts"]), max(nanoseconds(event.get("dur", 0)), 0))
            process = processes.setdefault(str(event["pid"]), len(processes))
            possible = max(map(abs, times)) < LAST_NS
        except BROKEN:
            possible = False
        if not possible:
            self._broken += 1
            return
        known = self._nodes.get(name)
        if known is None or not known.inputs:
            inputs = tuple(input_name(str(value)) for key, value in args.items() if key.startswith("input"))
            self._nodes[name] = Node(str(args.get("op") or event.get("name")), inputs)
        rows.extend((self._codes.setdefault(name, len(self._codes)), process, *times))

    def trace(self) -> ImportedTrace:
        """Events, one step per file in order of time, and the graph as far as it was run."""
        named = places(self._nodes)
        files = sorted(self._files, key=lambda file: file.start_ns)
        parts = [self._events(file, step, named) for step, file in enumerate(files)]
        operations = {named[name].name: node.op for name, node in self._nodes.items()}
        edges = (
            (named[source].name, named[name].name)
            for name, node in self._nodes.items()
            for source in node.inputs
            if source in named
        )
        repeats = sum(len(file.rows) for file in files) - sum(len(part) for part in parts)
        return ImportedTrace(
            EventTrace.joined(parts),
            _steps(files, parts),
            Program.of(operations, edges),
            "tensorflow",
            self._notes(repeats),
        )

    def _events(self, file: _File, step: int, named: Mapping[str, Place]) -> EventTrace:
        work = [process or _NO_PROCESS for process in file.processes]
        rows = file.rows[_once(file.rows, np.array([process.stream for process in work]))]
        node = Labels(rows[:, 0].astype(np.int32), tuple(self._codes))
        process = Labels(rows[:, 1].astype(np.int32), tuple(str(number) for number in range(len(work))))
        kind = process.mapped([process.kind for process in work])
        glue = np.array([named[word].name.startswith(RUNTIME) for word in node.words])[node.codes]
        return EventTrace.from_columns(
            name=node.mapped([named[word].name for word in node.words]),
            device=process.mapped([process.device for process in work]),
            start_ns=rows[:, 2],
            end_ns=rows[:, 2] + rows[:, 3],
            kind=Labels(np.where(glue, len(kind.words), kind.codes), (*kind.words, "runtime")),
            op=node.mapped([self._nodes[word].op for word in node.words]),
            phase=node.mapped([named[word].phase for word in node.words]),
            step=np.full(len(rows), step),
        )

    def _notes(self, repeats: int) -> list[str]:
        notes = ["Rows of the timeline are for drawing only: operations that overlap share the energy."]
        if repeats:
            notes.append(f"Left out: {repeats:,} GPU events that the timeline lists under several streams.")
        if self._broken:
            notes.append(f"Left out: {self._broken:,} events without a name, time or process.")
        return notes


def _once(rows: Int64, stream: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Which rows to keep so that each kernel counts once.

    A timeline lists every kernel under its stream and under "all streams", and every copy under its
    stream and under "memcpy". What has the same node, time and length in a more precise list is a repeat.
    """
    rank = stream[rows[:, 1]]
    order = np.lexsort((rank, rows[:, 3], rows[:, 2], rows[:, 0]))
    alike = (np.diff(rows[order][:, [0, 2, 3]], axis=0) == 0).all(axis=1)
    both_on_gpu = (rank[order][1:] != _NO_STREAM) & (rank[order][:-1] != _NO_STREAM)
    first = np.concatenate(([True], ~(alike & both_on_gpu)))
    best = rank[order][np.flatnonzero(first)][np.cumsum(first) - 1]
    keep = np.empty(len(rows), bool)
    keep[order] = rank[order] == best
    return keep


def _steps(files: Sequence[_File], parts: Sequence[EventTrace]) -> Steps:
    start = np.array([part.start_ns.min() for part in parts])
    end = np.array([part.end_ns.max() for part in parts])
    for early, late in pairwise(range(len(parts))):
        if start[late] < end[early]:
            raise InputError(
                f"{files[early].source} and {files[late].source} cover the same time.",
                "A timeline file is one step: give each step's file once, all from one process.",
            )
    return Steps.from_columns(start_ns=start, end_ns=end)
