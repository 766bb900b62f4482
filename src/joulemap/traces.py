"""The two traces of the paper, and what ties them together: events, power, steps, clocks.

All are columns in frozen values. Times are epoch nanoseconds (int64), intervals half-open, energies
joules. Whatever cannot be right is refused here, with the row that is wrong, so that the accounting
never has to ask.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from joulemap.columns import amounts, refuse, step_numbers, times_ns
from joulemap.counters import gaps, in_order, updates
from joulemap.devices import Device, Domain
from joulemap.errors import InputError
from joulemap.labels import Labels
from joulemap.program import leaf
from joulemap.units import NS_PER_S

KINDS = ("op", "worker", "kernel", "runtime")
"""What an event is. ``op``: an operation on its calling thread. ``worker``: a slice of an operation on
a pool thread. ``kernel``: work on an accelerator (copies and sets too). ``runtime``: glue and waits."""

PHASES = ("forward", "backward", "recompute", "optimizer", "other")

NO_STEP = -1

Int64: TypeAlias = NDArray[np.int64]
Float64: TypeAlias = NDArray[np.float64]
Words: TypeAlias = Labels | str | Sequence[str] | Iterable[str]


@dataclass(frozen=True, eq=False)
class EventTrace:
    """Executions of operations: who ran where, from when to when, in which lane, phase and step.

    A *lane* does one thing at a time (a CPU thread); events of one lane nest, and time belongs to the
    innermost. Where ``lane`` is None every event is a lane of its own. ``signature`` says what an operation
    was called with (shapes, types, scalars, as JSON), empty where that is not known; None where nothing is.
    """

    name: Labels
    device: Labels
    start_ns: Int64
    end_ns: Int64
    lane: Labels | None
    kind: Labels
    op: Labels
    phase: Labels
    step: NDArray[np.int32]
    signature: Labels | None = None

    @classmethod
    def from_columns(
        cls,
        *,
        name: Words,
        device: Words,
        start_ns: ArrayLike,
        end_ns: ArrayLike,
        lane: Words | ArrayLike | None = None,
        kind: Words | None = None,
        op: Words | None = None,
        phase: Words = "other",
        step: ArrayLike | None = None,
        signature: Words | None = None,
    ) -> EventTrace:
        """Check the columns and encode them; one string stands for a whole column.

        Left out, ``kind`` is ``kernel`` on accelerators and ``op`` on CPUs, ``op`` is the last part of
        the name, and ``step`` is none.
        """
        start = times_ns(start_ns, "start_ns")
        end = times_ns(end_ns, "end_ns")
        rows = len(start)
        names, devices = Labels.of(name, rows), Labels.of(device, rows)
        trace = cls(
            name=names,
            device=devices,
            start_ns=start,
            end_ns=end,
            lane=None if lane is None else _lanes(lane, rows),
            kind=Labels.among(KINDS, _default_kinds(devices) if kind is None else kind, rows),
            op=names.mapped([leaf(word) for word in names.words]) if op is None else Labels.of(op, rows),
            phase=Labels.among(PHASES, phase, rows),
            step=np.full(rows, NO_STEP, np.int32) if step is None else step_numbers(step, "step"),
            signature=None if signature is None else Labels.of(signature, rows),
        )
        trace._check()
        return trace

    def _check(self) -> None:
        rows = len(self.start_ns)
        for column in ("name", "device", "end_ns", "lane", "kind", "op", "phase", "step", "signature"):
            values = getattr(self, column)
            if values is not None and len(values) != rows:
                raise InputError(f"The events have {rows} start times but {len(values)} of {column}.")
        backwards = np.flatnonzero(self.end_ns < self.start_ns)
        if len(backwards):
            row = int(backwards[0])
            raise InputError(
                f"Event {row} ({self.name.words[self.name.codes[row]]}) ends "
                f"{int(self.start_ns[row] - self.end_ns[row])} ns before it starts.",
                "Start and end must be from the same clock.",
            )
        for word in self.device.words:
            Device.parse(word)

    def __len__(self) -> int:
        return len(self.start_ns)

    def take(self, rows: NDArray[np.bool_] | Int64 | slice) -> EventTrace:
        """Some of the events."""
        return EventTrace(
            name=self.name[rows],
            device=self.device[rows],
            start_ns=self.start_ns[rows],
            end_ns=self.end_ns[rows],
            lane=None if self.lane is None else self.lane[rows],
            kind=self.kind[rows],
            op=self.op[rows],
            phase=self.phase[rows],
            step=self.step[rows],
            signature=None if self.signature is None else self.signature[rows],
        )

    @classmethod
    def joined(cls, parts: Sequence[EventTrace]) -> EventTrace:
        """Traces one after the other. Lanes survive only where all parts have them."""
        lanes = [part.lane for part in parts if part.lane is not None]
        called = any(part.signature is not None for part in parts)
        return cls(
            name=Labels.joined([part.name for part in parts]),
            device=Labels.joined([part.device for part in parts]),
            start_ns=np.concatenate([part.start_ns for part in parts]),
            end_ns=np.concatenate([part.end_ns for part in parts]),
            lane=Labels.joined(lanes) if len(lanes) == len(parts) else None,
            kind=Labels.joined([part.kind for part in parts]),
            op=Labels.joined([part.op for part in parts]),
            phase=Labels.joined([part.phase for part in parts]),
            step=np.concatenate([part.step for part in parts]),
            signature=Labels.joined([part.signatures() for part in parts]) if called else None,
        )

    def signatures(self) -> Labels:
        """What each operation was called with; empty where that is not known."""
        return Labels.of("", len(self)) if self.signature is None else self.signature

    @property
    def span_ns(self) -> tuple[int, int] | None:
        """From the first start to the last end; None without events."""
        return (int(self.start_ns.min()), int(self.end_ns.max())) if len(self) else None


@dataclass(frozen=True, eq=False)
class PowerTrace:
    """The energy of one domain, interval by interval: ``energy_j[i]`` over ``[edges_ns[i], edges_ns[i+1])``.

    ``gap[i]`` marks an interval in which the meter was not read for long. A counter still knows its
    energy; of power samples it is unknown, and left out (0 J).
    """

    domain: Domain
    edges_ns: Int64
    energy_j: Float64
    gap: NDArray[np.bool_]

    def __init__(
        self,
        domain: Domain,
        edges_ns: ArrayLike,
        energy_j: ArrayLike,
        gap: NDArray[np.bool_] | None = None,
    ) -> None:
        name = domain.name
        edges = times_ns(edges_ns, f"the edges of {name}")
        energy = amounts(energy_j, f"the energies of {name}")
        marks = np.zeros(len(energy), bool) if gap is None else np.asarray(gap, bool)
        if len(edges) != len(energy) + 1 and not len(edges) == len(energy) == 0:
            raise InputError(
                f"{name}: {len(energy)} intervals need {len(energy) + 1} edges, not {len(edges)}."
            )
        if len(marks) != len(energy):
            raise InputError(f"{name}: {len(energy)} intervals, but {len(marks)} gap marks.")
        length = np.diff(edges)
        refuse(f"the edges of {name}", length < 0, "go back in time", "Sort the readings by time.")
        hint = "Energy only adds up; for a running counter use from_counter."
        refuse(f"the energies of {name}", energy < 0, "are negative", hint)
        timeless = (length == 0) & (energy > 0)
        refuse(f"the energies of {name}", timeless, "take no time", "Two readings share one timestamp.")
        object.__setattr__(self, "domain", domain)
        object.__setattr__(self, "edges_ns", edges)
        object.__setattr__(self, "energy_j", energy)
        object.__setattr__(self, "gap", marks)

    @classmethod
    def from_counter(
        cls, domain: Domain, t_ns: ArrayLike, energy_j: ArrayLike, wraps_at_j: float | None = None
    ) -> PowerTrace:
        """From readings of a running total, which may wrap around at ``wraps_at_j``.

        A counter that is read more often than it updates repeats its value. Those repeats say nothing
        about when the energy flowed, so the intervals reach from update to update.
        """
        t, total = _readings(domain, t_ns, energy_j, "energy_j")
        steps = np.diff(total)
        if wraps_at_j is not None:
            steps = np.where(steps < 0, steps + wraps_at_j, steps)
        refuse(
            f"{domain.name}'s readings",
            steps < 0,
            "go backwards",
            "A counter only grows. Say where it wraps (wraps_at_j); a reset needs two recordings.",
        )
        keep = updates(t, steps, domain.update_period_s)
        edges = t[keep]
        energy = np.diff(np.concatenate(([0.0], np.cumsum(steps)))[keep]) if len(t) else np.zeros(0)
        return cls(domain, edges, np.maximum(energy, 0.0), gap=gaps(edges))

    @classmethod
    def from_samples(
        cls, domain: Domain, t_ns: ArrayLike, power_w: ArrayLike, end_ns: int | None = None
    ) -> PowerTrace:
        """From power readings: each holds until the next one, the last until ``end_ns`` (else it only ends).

        Where readings are missing for long the energy is unknown: the gap is marked and holds none.
        """
        t, power = _readings(domain, t_ns, power_w, "power_w")
        refuse(f"{domain.name}'s power", power < 0, "are negative", "Power drawn is never below zero.")
        if end_ns is not None:
            t, power = np.append(t, np.int64(end_ns)), np.append(power, 0.0)
        gap = gaps(t)
        energy = power[:-1] * (np.diff(t) / NS_PER_S) if len(t) else np.zeros(0)
        return cls(domain, t, np.where(gap, 0.0, energy), gap=gap)

    def __len__(self) -> int:
        return len(self.energy_j)

    @cached_property
    def total_j(self) -> float:
        return float(self.energy_j.sum())

    @cached_property
    def power_w(self) -> Float64:
        """Mean power of each interval; zero for intervals without length."""
        seconds = np.diff(self.edges_ns) / NS_PER_S
        return np.divide(self.energy_j, seconds, out=np.zeros(len(self)), where=seconds > 0)

    def gap_at(self, t_ns: Int64) -> NDArray[np.bool_]:
        """Whether each instant lies in a gap."""
        if not len(self):
            return np.zeros(len(t_ns), bool)
        interval = np.searchsorted(self.edges_ns, t_ns, side="right") - 1
        return np.asarray(self.gap[np.clip(interval, 0, len(self) - 1)])

    @property
    def gap_s(self) -> float:
        """For how long, in all, the meter was not read."""
        return float(np.diff(self.edges_ns)[self.gap].sum()) / NS_PER_S

    @property
    def period_s(self) -> float:
        """How often the meter updates: as declared by its domain, else as the readings show."""
        if self.domain.update_period_s is not None:
            return self.domain.update_period_s
        return float(np.median(np.diff(self.edges_ns))) / NS_PER_S if len(self) else 0.0

    def energy_until(self, t_ns: ArrayLike) -> Float64:
        """Energy from the start of the trace to each time, spread evenly inside an interval."""
        times = np.asarray(t_ns, np.int64)
        if not len(self):
            return np.zeros(times.shape)
        total = np.concatenate(([0.0], np.cumsum(self.energy_j)))
        origin = self.edges_ns[0]
        return np.asarray(np.interp(times - origin, self.edges_ns - origin, total), np.float64)

    def energy_between(self, a_ns: int, b_ns: int) -> float:
        """Joules in ``[a_ns, b_ns)``; nothing is known outside the trace, so nothing is counted there."""
        until = self.energy_until([a_ns, b_ns])
        return float(max(until[1] - until[0], 0.0))


@dataclass(frozen=True, eq=False)
class Steps:
    """Training or inference steps: every one is metered, some are traced."""

    start_ns: Int64
    end_ns: Int64
    traced: NDArray[np.bool_]
    label: Labels

    @classmethod
    def from_columns(
        cls,
        *,
        start_ns: ArrayLike,
        end_ns: ArrayLike,
        traced: ArrayLike | bool = True,
        label: Words = "step",
    ) -> Steps:
        """Steps in order of time; ``label`` keeps kinds apart (``train``, ``test``)."""
        start, end = times_ns(start_ns, "step starts"), times_ns(end_ns, "step ends")
        rows = len(start)
        marks = np.broadcast_to(np.asarray(traced, bool), (rows,)).copy()
        steps = cls(start, end, marks, Labels.of(label, rows))
        if len(end) != rows or len(steps.label) != rows:
            raise InputError("The steps' columns differ in length.")
        if (end < start).any() or (start[1:] < end[:-1]).any():
            raise InputError(
                "Steps overlap or end before they start.", "Give them in order of time, one after the other."
            )
        return steps

    def __len__(self) -> int:
        return len(self.start_ns)

    def at(self, t_ns: Int64) -> NDArray[np.int32]:
        """The step that each time falls into, or ``NO_STEP``."""
        if not len(self):
            return np.full(len(t_ns), NO_STEP, np.int32)
        index = np.searchsorted(self.start_ns, t_ns, side="right") - 1
        inside = (index >= 0) & (t_ns < self.end_ns[np.maximum(index, 0)])
        return np.where(inside, index, NO_STEP).astype(np.int32)


@dataclass(frozen=True, slots=True)
class ClockAnchor:
    """One foreign clock, paired with ours at the start and at the end of a recording."""

    clock: str
    theirs_start_ns: int
    ours_start_ns: int
    theirs_end_ns: int
    ours_end_ns: int

    @property
    def drift_ppm(self) -> float:
        """How much faster ours runs than theirs, in parts per million."""
        theirs = self.theirs_end_ns - self.theirs_start_ns
        ours = self.ours_end_ns - self.ours_start_ns
        return (ours - theirs) / theirs * 1e6 if theirs else 0.0

    def to_ours(self, theirs_ns: ArrayLike) -> Int64:
        """Foreign times on our clock: offset removed, drift spread evenly."""
        elapsed = np.asarray(theirs_ns, np.int64) - self.theirs_start_ns
        drifted = np.rint(elapsed * (self.drift_ppm * 1e-6)).astype(np.int64)
        return np.asarray(self.ours_start_ns + elapsed + drifted, np.int64)


def _lanes(values: Words | ArrayLike, rows: int) -> Labels:
    if isinstance(values, (Labels, str)):
        return Labels.of(values, rows)
    array = np.asarray(values)
    if array.dtype.kind not in "iu":
        return Labels.of([str(value) for value in array.tolist()])
    ids, codes = np.unique(array, return_inverse=True)
    return Labels(codes.astype(np.int32), tuple(str(number) for number in ids.tolist()))


def _default_kinds(devices: Labels) -> Labels:
    kinds = ["op" if Device.parse(word).kind == "CPU" else "kernel" for word in devices.words]
    return devices.mapped(kinds)


def _readings(domain: Domain, t_ns: ArrayLike, values: ArrayLike, what: str) -> tuple[Int64, Float64]:
    t, numbers = times_ns(t_ns, f"{domain.name}'s t_ns"), amounts(values, f"{domain.name}'s {what}")
    if len(t) != len(numbers):
        raise InputError(f"{domain.name}: {len(t)} timestamps but {len(numbers)} of {what}.")
    return in_order(t, numbers)
