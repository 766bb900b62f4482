"""An operation as it was called: what it costs depends on that, and on little else."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from joulemap.accounting.attribute import actors_of, step_of_event
from joulemap.accounting.supply import Curve
from joulemap.accounting.sweep import share_out
from joulemap.devices import Device
from joulemap.frameworks.imported import call_key
from joulemap.frameworks.nesting import Forest
from joulemap.traces import KINDS, NO_STEP, PHASES, EventTrace, Float64, Int64, Steps
from joulemap.units import NS_PER_S

SMALL = 1_000_000
"""Elements, about: an operation on fewer takes no less time, on a GPU."""
COVERED = 0.95
"""The share of a device's busy time that is to be calibrated; the rest is many operations of little each."""
WORTH = 0.003
"""And each operation that takes so much of it: another pass over the others would tell less. On an H200
replays agree to 0.6 %, and what is shared by time is off by a quarter."""

OTHERWISE = 1.25
"""Executions that take so many times as long as others, or as short, were given something else."""


@dataclass(frozen=True, slots=True)
class Operation:
    """Its name, and of what it was given: shapes, strides, types and scalars, each as JSON; and which of the
    tensors come from memory, a 1 or 0 for each. Where nobody has looked, none is said to be in a cache."""

    op: str
    shapes: str
    strides: str
    types: str
    scalars: str
    cold: str = ""

    @property
    def key(self) -> str:
        """One line that is the same wherever the same was called."""
        return call_key(self.op, self.shapes, self.strides, self.types, self.scalars, self.cold)

    @property
    def elements(self) -> int:
        """Of all tensors that it was given; none where that cannot be read."""
        try:
            return _elements(json.loads(self.shapes))
        except ValueError:
            return 0

    @classmethod
    def from_key(cls, key: str) -> Operation:
        return cls(*json.loads(key))

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Operation:
        """From a row of a recording's signatures."""
        more = (row.get(name) or "" for name in ("scalars", "cold"))
        return cls(row["op"], row["shapes"], row.get("strides", ""), row["types"], *more)


@dataclass(frozen=True, eq=False)
class Place:
    """Where operations ran: all executions of one name in one phase of one kind of step, and what they were
    called with. ``rows`` are the events that are its work on the device."""

    name: str
    phase: str
    calls: Mapping[Operation, int]
    busy_s: float
    executions: float
    """How often the name ran in the events; its device work may be several kernels each time. Executions that
    did not say what they were called with, and took another time, count as so many of those that did."""
    rows: Int64
    part: float = 1.0
    """Of what an operation takes with all that it calls, what it takes itself: the rest is elsewhere."""
    share_s: float | None = None
    """What it had of the device's time, where that is less than ``busy_s``: others worked beside it."""


def places(
    events: EventTrace, device: str, signatures: Iterable[Mapping[str, Any]], steps: Steps | None = None
) -> list[Place]:
    """The places whose signatures are known, with what their work on ``device`` took. What kinds of ``steps``
    were called with is told apart where events say it themselves; ``signatures`` say it of all."""
    anywhere = _called_anywhere(signatures)
    own_s, chosen = own_seconds(events), on_device(events, device)
    step = step_of_event(events, steps)
    codes, group = _groups(events, chosen, steps, step)
    here = _called_here(events, group)
    size = len(codes)
    busy_s: Float64 = np.bincount(group[chosen], own_s[chosen], minlength=size).astype(np.float64)
    calling = _Calling.of(events, group, step, chosen, Device.parse(device))
    ran: Float64 = np.bincount(calling.group, calling.works * calling.here, size).astype(np.float64)
    kernels = np.bincount(group[chosen], minlength=size)
    executions = _as_seen(events, group, step, calling, np.where(chosen, own_s, 0.0))
    part = calling.parts(busy_s, ran)
    share_s = np.bincount(group[chosen], _shares_s(events, chosen), minlength=size)
    rows = np.flatnonzero(chosen)
    rows = rows[np.argsort(group[rows], kind="stable")]
    until = np.cumsum(kernels)
    found = []
    for code in np.flatnonzero(busy_s).tolist():
        named, phased = divmod(int(codes[code]), len(PHASES))
        name, phase = events.name.words[named], PHASES[phased]
        calls = here.get(code) or anywhere.get((name, phase))
        if calls:
            there, times = rows[until[code] - kernels[code] : until[code]], float(executions[code])
            more = float(part[code]), float(share_s[code])
            found.append(Place(name, phase, calls, float(busy_s[code]), times, there, *more))
    return found


def _called_anywhere(signatures: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], dict[Operation, int]]:
    """What each name was called with in a phase, in whatever steps, and how often."""
    calls: dict[tuple[str, str], dict[Operation, int]] = {}
    for row in signatures:
        here = calls.setdefault((row["name"], row["phase"]), {})
        operation = Operation.of(row)
        here[operation] = here.get(operation, 0) + row["calls"]
    return calls


def _called_here(events: EventTrace, group: Int64) -> dict[int, dict[Operation, int]]:
    """The same by group, of events that say it."""
    said = events.signatures()
    operations = [Operation.from_key(word) if word else None for word in said.words]
    rows = np.flatnonzero(np.array([one is not None for one in operations] or [False])[said.codes])
    calls: dict[int, dict[Operation, int]] = {}
    pairs, counts = np.unique(np.stack((group[rows], said.codes[rows])), axis=1, return_counts=True)
    for (place, code), count in zip(pairs.T.tolist(), counts.tolist(), strict=True):
        operation = operations[code]
        if operation is not None:
            calls.setdefault(place, {})[operation] = count
    return calls


def _as_seen(
    events: EventTrace, group: Int64, step: NDArray[np.int32], calling: _Calling, work_s: Float64
) -> Float64:
    """By place, how often it ran, as executions like those in steps that say what they were called with. Only
    some sessions keep that; others may have had other batches, and took another time then."""
    size = int(group.max(initial=-1)) + 1
    own = group * (int(step.max(initial=NO_STEP)) + 2) + step + 1
    said = np.array([word != "" for word in events.signatures().words] or [False])[events.signatures().codes]
    seen = np.isin(own, np.unique(own[said]))

    def sums(chosen: NDArray[np.bool_]) -> tuple[Float64, Float64]:
        ran = np.bincount(calling.group, (calling.works & chosen[calling.rows]) * calling.here, size)
        kernels = np.bincount(group, chosen & (work_s > 0), size)
        calls = np.bincount(calling.group, calling.works, size)
        times = np.where(calls > 0, ran, kernels).astype(np.float64)
        return times, np.bincount(group, work_s * chosen, size).astype(np.float64)

    (ran, took_s), (others, others_s) = sums(seen), sums(~seen)
    both = (took_s > 0) & (others_s > 0) & (others > 0)
    as_long = np.divide(others_s * ran, took_s * others, out=np.ones(size), where=both)
    unlike = (as_long > OTHERWISE) | (as_long < 1 / OTHERWISE)
    return np.asarray(ran + others * np.where(unlike, as_long, 1.0), np.float64)


@dataclass(frozen=True, eq=False)
class _Calling:
    """The operations among some events: where each is, and which calls which."""

    rows: Int64
    group: Int64
    forest: Forest
    works: NDArray[np.bool_]
    """Which do it themselves: one that calls its own name (with a scalar as a tensor, say) only passes on."""
    here: Float64
    """What part of it was on the device: of replicas or ranks that call the same in a step, what part of the
    kernels."""

    @classmethod
    def of(
        cls,
        events: EventTrace,
        group: Int64,
        step: NDArray[np.int32],
        chosen: NDArray[np.bool_],
        device: Device,
    ) -> _Calling:
        rows = np.flatnonzero(events.kind.codes == KINDS.index("op"))
        forest = Forest.of_events(events, rows)
        here = np.ones(len(rows))
        every = on_device(events, device.kind)
        if device.kind == "GPU" and not np.array_equal(every, chosen):
            both = group * (int(step.max(initial=NO_STEP)) + 2) + step + 1
            here = _part(chosen, every, np.unique(both, return_inverse=True)[1].reshape(-1))[rows]
        return cls(rows, group[rows], forest, ~forest.holds_its_like(group[rows]), here)

    def parts(self, busy_s: Float64, ran: Float64) -> Float64:
        """By place, what operations take themselves over what they take with all that they call."""
        each_s = np.divide(busy_s, ran, out=np.zeros(len(ran)), where=ran > 0)
        own_s = np.where(self.works, each_s[self.group], 0.0)
        whole_s = own_s.copy()
        for rows in reversed(self.forest.levels[1:]):
            np.add.at(whole_s, self.forest.parent[rows], whole_s[rows])
        own, whole = (np.bincount(self.group, one * self.works, len(ran)) for one in (own_s, whole_s))
        return np.asarray(np.divide(own, whole, out=np.ones(len(ran)), where=whole > 0))


def _part(chosen: NDArray[np.bool_], every: NDArray[np.bool_], group: Int64) -> Float64:
    """For each row, how many of its group are ``chosen`` of ``every`` one; all where there is none."""
    own, whole = (np.bincount(group, one) for one in (chosen, every))
    return np.asarray(np.divide(own, whole, out=np.ones(len(own)), where=whole > 0)[group])


def busy_s(events: EventTrace, device: str) -> float:
    """All the time that work on a device took."""
    return float(own_seconds(events)[on_device(events, device)].sum())


def by_time(here: Sequence[Place], own_s: Float64) -> dict[Operation, float]:
    """The operations with their busy seconds, ``own_s`` of each event, most first. Where a place has several,
    its time goes to them by how much they were given: which of them took how long, its events do not tell."""
    seconds: dict[Operation, float] = {}
    for place in here:
        busy_s = float(own_s[place.rows].sum())
        size = {one: calls * (SMALL + one.elements) for one, calls in place.calls.items()}
        for operation, part in size.items():
            seconds[operation] = seconds.get(operation, 0.0) + busy_s * part / sum(size.values())
    return dict(sorted(seconds.items(), key=lambda one: -one[1]))


def _elements(shapes: Any) -> int:
    """Of one shape, or of all in a list of them."""
    if not isinstance(shapes, list):
        return 0
    if all(isinstance(size, int) for size in shapes):
        return prod(shapes) if shapes else 0
    return sum(_elements(one) for one in shapes)


def _groups(
    events: EventTrace, chosen: NDArray[np.bool_], steps: Steps | None, step: NDArray[np.int32]
) -> tuple[Int64, Int64]:
    """The names and phases (as one number) of each kind of step, and which of these every event is of. Kinds
    are told apart where ``chosen`` work on a device lies in the same ones as the operations that it is of: a
    GPU that is behind its host may do it in another step."""
    place = events.name.codes.astype(np.int64) * len(PHASES) + events.phase.codes
    kind, kinds = np.zeros(len(events), np.int64), 1
    if steps is not None and len(steps):
        kinds = len(steps.label.words) + 1
        kind = np.append(steps.label.codes, NO_STEP)[step].astype(np.int64) + 1
    both = place * kinds + kind
    work, called = np.unique(both[chosen]), np.unique(both[events.kind.codes == KINDS.index("op")])
    apart = np.setxor1d(work, called) // kinds
    mixed = np.isin(place, np.intersect1d(apart, np.intersect1d(work // kinds, called // kinds)))
    both[mixed] = place[mixed] * kinds
    codes, group = np.unique(both, return_inverse=True)
    return codes // kinds, np.asarray(group.reshape(-1), np.int64)


def on_device(events: EventTrace, device: str) -> NDArray[np.bool_]:
    """Which events are operations' work on a device."""
    glue = events.kind.codes == KINDS.index("runtime")
    return np.asarray(all_on_device(events, device) & ~glue)


def all_on_device(events: EventTrace, device: str) -> NDArray[np.bool_]:
    """Those, and what a CPU does between them: Python, for one. Threads run on any socket."""
    its = Device.parse(device)
    there = np.array([its.runs(Device.parse(word)) for word in events.device.words] or [False])
    return np.asarray(there[events.device.codes])


def _shares_s(events: EventTrace, chosen: NDArray[np.bool_]) -> Float64:
    """Of a device's time, what each of its events has: several at a time have a part of it."""
    shares = np.zeros(len(events))
    lasting = np.flatnonzero(chosen & (events.end_ns > events.start_ns))
    if len(lasting):
        edges = np.array([events.start_ns[lasting].min(), events.end_ns[lasting].max()])
        whole = Curve(edges, np.diff(edges) / NS_PER_S)
        [shared], _ = share_out(actors_of(events, lasting), [whole], np.zeros(0, np.int64))
        shares[lasting] = shared.charge
    return shares[chosen]


_own_seconds: WeakKeyDictionary[EventTrace, Float64] = WeakKeyDictionary()
"""Of events that were asked for before: each of several devices asks."""


def own_seconds(events: EventTrace) -> Float64:
    """How long each event was the innermost of its lane."""
    seconds = _own_seconds.get(events)
    if seconds is None:
        lasting = np.flatnonzero(events.end_ns > events.start_ns)
        seconds = np.zeros(len(events))
        seconds[lasting] = share_out(actors_of(events, lasting), [], np.zeros(0, np.int64))[1]
        seconds.flags.writeable = False
        _own_seconds[events] = seconds
    return seconds
