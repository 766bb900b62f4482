"""From Kineto's events to qualified names: the one reading of PyTorch's profiler, wherever they come from.

``KinetoColumns`` is what Kineto records, as columns; a JSON export and a live profiler both fill it.
``trace_of`` finds for every event the layer it belongs to:

- a forward operation belongs to the innermost module range around it on its thread;
- a backward operation belongs to the layer of the forward operation with its sequence number;
- a kernel belongs to the operation that launched it, by the profiler's own link between the two.

All joins are searches over whole columns: ``nesting`` has the ranges, ``kineto_scopes`` layers and
phases, ``kineto_names`` the words.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joulemap.frameworks import kineto_names as names
from joulemap.frameworks.kineto_calls import NONE, Calls
from joulemap.frameworks.kineto_names import COPY, Paths, Role
from joulemap.frameworks.kineto_places import feeding
from joulemap.frameworks.kineto_scopes import OTHER, scopes
from joulemap.frameworks.nesting import NO_PARENT, Forest
from joulemap.labels import Labels
from joulemap.program import PROFILER
from joulemap.traces import PHASES, EventTrace, Int64, Steps

_NEAR = 1024
"""Events that are looked at together, for the one around another."""


@dataclass(frozen=True, eq=False)
class KinetoColumns:
    """Kineto's events, one row each; times in epoch ns.

    ``category`` is Kineto's activity type as the JSON export spells it (``cpu_op``, ``kernel``, …).
    ``device`` is the GPU's index (-1 on the CPU), ``lane`` the thread or stream. ``op_id`` is an
    operation's own id, and for kernels and runtime calls the id of the operation that launched them;
    ``correlation`` ties a kernel to its launch. Both are 0, and ``sequence`` is -1, where there is none.
    ``thread_number`` is torch's own numbering of threads, which ``forward_thread`` refers to; None where
    the source does not tell: then the sequence number alone must do.
    """

    name: Labels
    category: Labels
    start_ns: Int64
    end_ns: Int64
    device: Int64
    lane: Labels
    op_id: Int64
    correlation: Int64
    sequence: Int64
    forward_thread: Int64
    thread_number: Int64 | None = None

    def __len__(self) -> int:
        return len(self.start_ns)

    def take(self, rows: NDArray[np.bool_] | Int64) -> KinetoColumns:
        """Some of the events."""
        taken: dict[str, Any] = {}
        for field in fields(self):
            column = getattr(self, field.name)
            taken[field.name] = None if column is None else column[rows]
        return KinetoColumns(**taken)


@dataclass(frozen=True, eq=False)
class KinetoTrace:
    """The events with their qualified names, the steps, and what to tell the user about the reading.

    The first events are those on the CPU, of which ``host`` knows more; ``host_rows`` says which rows of the
    columns they were.
    """

    events: EventTrace
    steps: Steps
    notes: tuple[str, ...]
    host: Host
    host_rows: Int64


def trace_of(columns: KinetoColumns) -> KinetoTrace:
    """Name every event. Ranges and profiler overhead become ``runtime`` rows; ranges drawn a second time
    on the GPU are left out, since they are no work, and so is what only says where a kernel belongs."""
    roles = names.roles(columns.name, columns.category)
    if (roles == Role.MODULE).any():
        # Module ranges carry the full path; the class names beside them would only add parts to it.
        roles[roles == Role.PYTHON_MODULE] = Role.LEFT_OUT
    on_host = (roles != Role.KERNEL) & (roles != Role.LEFT_OUT)
    kernels = columns.take(roles == Role.KERNEL)
    host = Host(_in_threads(columns.take(on_host), roles[on_host]), roles[on_host], kernels)
    work = host.role != Role.COMPILED
    events = EventTrace.joined([host.events().take(work), _kernel_events(kernels, host)])
    notes = (*_notes(columns, roles), *_graph_notes(host))
    return KinetoTrace(events, host.steps, notes, host, np.flatnonzero(on_host)[work])


def _in_threads(host: KinetoColumns, role: NDArray[np.int64]) -> KinetoColumns:
    """The profiler's own work, of which it says no thread, in the one that it held up: whatever runs around
    it, the innermost, would seem to take that long in every step."""
    others = np.flatnonzero(role != Role.OVERHEAD)
    others = others[np.argsort(host.start_ns[others], kind="stable")]
    start_ns, end_ns, lane = host.start_ns[others], host.end_ns[others], host.lane.codes.copy()
    for row in np.flatnonzero(role == Role.OVERHEAD).tolist():
        last = int(np.searchsorted(start_ns, host.start_ns[row], side="right"))
        while last > 0:  # the innermost has begun last, and mostly just before
            first = max(last - _NEAR, 0)
            around = np.flatnonzero(end_ns[first:last] >= host.end_ns[row])
            if len(around):
                lane[row] = lane[others[first + around[-1]]]
                break
            last = first
    return replace(host, lane=Labels(lane, host.lane.words))


class Host:
    """The events on the CPU with everything that is known about them; each join is made once, here."""

    def __init__(self, columns: KinetoColumns, role: NDArray[np.int64], kernels: KinetoColumns) -> None:
        self.columns, self.role = columns, role
        self.forest = Forest.of(columns.lane.codes, columns.start_ns, columns.end_ns)
        self.steps = _steps(columns, role)
        self.step = self.steps.at(columns.start_ns)
        self.paths = Paths(columns.name)
        thread = np.zeros(len(columns), np.int64) if columns.thread_number is None else columns.thread_number
        sequence, forward_thread = _of_nodes(columns, role, self.forest)
        self.calls = Calls(
            columns.name,
            role,
            columns.lane.codes.astype(np.int64),
            columns.start_ns,
            thread,
            sequence,
            forward_thread,
        )
        self.scopes = scopes(self.calls, self.forest, self.paths, self.steps)
        self.launch = _launches(kernels, columns, role)
        """The row that launched each kernel, or ``NONE``."""
        feeds = self._feeds(kernels)
        self.path = np.where(feeds, self.paths.code(names.INPUT), self.scopes.path)
        self.phase = np.where(feeds, OTHER, self.scopes.phase)
        rows = np.arange(len(columns))
        self.operation = self.forest.inherit(np.where(role == Role.OP, rows, NONE))
        """The row of the innermost operation at or around each row."""
        self.leaf = names.leaves(columns.name, role)
        self.name = self._names()

    def _feeds(self, kernels: KinetoColumns) -> NDArray[np.bool_]:
        """Which rows bring data to a GPU outside of modules."""
        copies, known = _to_gpu(kernels), self.launch != NONE
        copying, computing = self.launch[known & copies], self.launch[known & ~copies]
        return feeding(self.calls, self.forest, self.scopes.path, copying, computing)

    def _names(self) -> Labels:
        """Layer path and operation; a runtime call is named below the operation that makes it."""
        prefix = np.array(self.path)
        prefix[self.role == Role.STEP] = self.paths.code(names.STEP)
        prefix[self.role == Role.OVERHEAD] = self.paths.code(PROFILER)
        plain = names.qualified(prefix, self.paths.words, self.leaf)
        inside = np.flatnonzero((self.role == Role.RUNTIME) & (self.operation != NONE))
        above = plain.codes[self.operation[inside]].astype(np.int64)
        return _replaced(plain, inside, names.qualified(above, plain.words, self.leaf[inside]))

    def events(self) -> EventTrace:
        """As rows on the device ``CPU``: threads migrate, so no socket is named."""
        return EventTrace.from_columns(
            name=self.name,
            device="CPU",
            start_ns=self.columns.start_ns,
            end_ns=self.forest.end_ns,
            lane=self.columns.lane,
            kind=Labels((self.role == Role.OP).astype(np.int32), ("runtime", "op")),
            op=self.leaf.mapped([word.removesuffix(names.AUTOGRAD) for word in self.leaf.words]),
            phase=Labels(self.phase.astype(np.int32), PHASES),
            step=self.step,
        )


def _of_nodes(columns: KinetoColumns, role: NDArray[np.int64], forest: Forest) -> tuple[Int64, Int64]:
    """Sequence numbers and forward threads, the engine's rows having those of the nodes that they evaluate:
    the profiler tells neither where a hook of the gradient runs before its node."""
    sequence, forward_thread = columns.sequence.copy(), columns.forward_thread.copy()
    nodes = np.flatnonzero((role == Role.OP) & (sequence >= 0) & (forward_thread > 0))
    nodes = nodes[forest.parent[nodes] != NO_PARENT]
    around = forest.parent[nodes]
    untold = (role[around] == Role.EVALUATE) & (sequence[around] < 0)
    sequence[around[untold]] = sequence[nodes[untold]]
    forward_thread[around[untold]] = forward_thread[nodes[untold]]
    return sequence, forward_thread


def _kernel_events(kernels: KinetoColumns, host: Host) -> EventTrace:
    """GPU work under the name and phase of the operation that launched it, in the launch's step."""
    origin = host.launch
    known = origin != NONE
    operation = np.where(known, _at(host.operation, origin), NONE)
    path = np.where(known, _at(host.path, origin), Paths.NOWHERE)
    phase = np.where(known, _at(host.phase, origin), OTHER)
    collective = np.array([names.place(word) == names.COMMUNICATION for word in kernels.name.words], bool)
    path[collective[kernels.name.codes]] = host.paths.code(names.COMMUNICATION)
    short = kernels.name.mapped([names.kernel(word) for word in kernels.name.words])
    name, op = names.qualified(path, host.paths.words, short), short
    named = np.flatnonzero((operation != NONE) & ~collective[kernels.name.codes])
    name = _replaced(name, named, host.name[operation[named]])
    op = _replaced(op, named, host.leaf[operation[named]])
    outside = (path == Paths.NOWHERE) | (path == host.paths.code(names.INPUT))
    feeds = np.flatnonzero(_to_gpu(kernels) & outside)
    phase[feeds] = OTHER
    by_time = host.steps.at(kernels.start_ns)
    return EventTrace.from_columns(
        name=_replaced(name, feeds, Labels.of(names.INPUT_COPY, len(feeds))),
        device=_gpus(kernels.device),
        start_ns=kernels.start_ns,
        end_ns=kernels.end_ns,
        lane=kernels.lane,
        kind="kernel",
        op=_replaced(op, feeds, Labels.of(COPY, len(feeds))),
        phase=Labels(phase.astype(np.int32), PHASES),
        step=np.where(known, _at(host.step, origin), by_time),
    )


def _to_gpu(kernels: KinetoColumns) -> NDArray[np.bool_]:
    """Which of the GPU's work are copies from the host."""
    copies = np.array([word.startswith(COPY) for word in kernels.name.words], bool)
    return copies[kernels.name.codes] if len(kernels) else np.zeros(0, bool)


def _launches(kernels: KinetoColumns, host: KinetoColumns, role: NDArray[np.int64]) -> Int64:
    """The row on the CPU that launched each kernel, or ``NONE``.

    The profiler links kernels to operations. Older ones repeat the correlation id there instead, which
    is no operation's id; then, and for graph launches, the launching runtime call tells.
    """
    operations = np.flatnonzero((role != Role.RUNTIME) & (role != Role.OVERHEAD))
    linked = np.where(kernels.op_id == kernels.correlation, 0, kernels.op_id)
    by_link = _lookup(host.op_id, operations, linked)
    launches = np.flatnonzero(role == Role.RUNTIME)
    by_launch = _lookup(host.correlation, launches, kernels.correlation)
    return np.where(by_link != NONE, by_link, by_launch)


def _lookup(ids: Int64, rows: Int64, wanted: Int64) -> Int64:
    """Among ``rows``, the one with each wanted id; ``NONE`` where there is none, or the id is 0."""
    rows = rows[np.argsort(ids[rows], kind="stable")]
    if not len(rows):
        return np.full(len(wanted), NONE, np.int64)
    found = rows[np.minimum(np.searchsorted(ids[rows], wanted), len(rows) - 1)]
    return np.where((ids[found] == wanted) & (wanted != 0), found, NONE)


def _at(values: NDArray[np.integer], rows: Int64) -> Int64:
    """``values[rows]``, with anything where a row is ``NONE``."""
    return values[np.maximum(rows, 0)].astype(np.int64) if len(values) else np.zeros(len(rows), np.int64)


def _replaced(labels: Labels, rows: Int64, by: Labels) -> Labels:
    """The labels with those of some rows exchanged."""
    both = Labels.joined([labels, by])
    codes = both.codes[: len(labels)].copy()
    codes[rows] = both.codes[len(labels) :]
    return Labels(codes, both.words)


def _gpus(device: Int64) -> Labels:
    indices, codes = np.unique(device, return_inverse=True)
    return Labels(codes.astype(np.int32), tuple(f"GPU:{index}" for index in indices.tolist()))


def _steps(columns: KinetoColumns, role: NDArray[np.int64]) -> Steps:
    """The step ranges of one thread, in order; the profiler's own where both kinds are there."""
    marks = np.flatnonzero(role == Role.STEP)
    own = np.array([word.startswith("ProfilerStep") for word in columns.name.words], bool)
    if own[columns.name.codes[marks]].any():
        marks = marks[own[columns.name.codes[marks]]]
    if len(marks):
        threads, count = np.unique(columns.lane.codes[marks], return_counts=True)
        marks = marks[columns.lane.codes[marks] == threads[np.argmax(count)]]
    marks = marks[np.argsort(columns.start_ns[marks], kind="stable")]
    start, end = columns.start_ns[marks], columns.end_ns[marks]
    end[:-1] = np.minimum(end[:-1], start[1:])
    return Steps.from_columns(start_ns=start, end_ns=end)


def _notes(columns: KinetoColumns, roles: NDArray[np.int64]) -> tuple[str, ...]:
    notes = []
    for category in np.unique(columns.category.codes[roles == Role.LEFT_OUT]).tolist():
        if (
            columns.category.words[category] == names.GPU_RANGES
        ):  # the program's own ranges, drawn a second time
            continue
        count = int(((roles == Role.LEFT_OUT) & (columns.category.codes == category)).sum())
        notes.append(f"Left out: {count} events of category {columns.category.words[category]!r}.")
    threads = np.unique(columns.forward_thread[columns.forward_thread > 0])
    if columns.thread_number is None and len(threads) > 1:
        notes.append(
            f"{len(threads)} threads ran forward passes, and the trace does not say which is which: "
            "backward operations were matched by their sequence number alone."
        )
    return tuple(notes)


def _graph_notes(host: Host) -> list[str]:
    """Kernels that were captured into a CUDA graph know only the launch of the whole graph."""
    launches = np.array(
        [names.GRAPH_LAUNCH.match(word) is not None for word in host.columns.name.words], bool
    )
    known = host.launch[host.launch != NONE]
    replayed = int(launches[host.columns.name.codes[known]].sum())
    said = f"{replayed:,} kernels are from CUDA graphs, which do not keep their layers: they stand where the "
    return [f"{said}graph was replayed."] if replayed else []
