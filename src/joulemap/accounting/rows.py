"""From charges per event to rows per name: added up, spread over steps, and projected.

A row is one (name, phase, device). Its energy is what its events were charged in traced steps and outside
steps, plus what those steps stand for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from joulemap.accounting.account import Account
from joulemap.accounting.footprint import LOADING, UNTRACED, Footprint
from joulemap.accounting.lanes import WORKER
from joulemap.accounting.project import Projection, StepParts, project
from joulemap.accounting.sums import sums_by
from joulemap.accounting.supply import Supply
from joulemap.accounting.sweep import Shared
from joulemap.accounting.uncertainty import Blocks
from joulemap.devices import Domain
from joulemap.labels import Labels
from joulemap.traces import KINDS, NO_STEP, PHASES, EventTrace, Float64, Int64, Steps

_STRETCH = 1 << 16
KERNEL = KINDS.index("kernel")
_EARLIEST, _LATEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


@dataclass(frozen=True, eq=False)
class StepOf:
    """The step of each event, that of which it is a model for others, and how steps make up blocks."""

    event: NDArray[np.int32]
    model: NDArray[np.int32]
    steps: Steps | None

    @property
    def count(self) -> int:
        return 0 if self.steps is None else len(self.steps)

    @cached_property
    def blocks(self) -> Blocks:
        """The stretches of steps that spread is judged by."""
        return Blocks.of(self.steps)

    def by_block(self, per_step: Float64) -> Float64:
        inside = self.blocks.of_step >= 0
        return sums_by(self.blocks.of_step[inside], per_step[inside], len(self.blocks))


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows that some events fall into: event ``event[i]`` into row ``row[i]``."""

    events: EventTrace
    event: Int64 | slice
    row: Int64
    name: Labels
    op: Labels
    phase: Labels
    device: Labels
    first_ns: Int64
    last_ns: Int64

    @classmethod
    def of(cls, events: EventTrace, event: Int64 | slice) -> Rows:
        """Number the distinct (name, phase, device) of some events (all of them by ``slice(None)``)."""
        phases, devices = len(PHASES), len(events.device.words)
        name, phase, device = events.name.codes[event], events.phase.codes[event], events.device.codes[event]
        key = np.empty(len(name), np.int64)
        for some in _stretches(len(name)):
            key[some] = (name[some].astype(np.int64) * phases + phase[some]) * devices + device[some]
        distinct, row = _numbered(key, len(events.name.words) * phases * devices)
        first, last = np.full(len(distinct), _LATEST), np.full(len(distinct), _EARLIEST)
        np.minimum.at(first, row, events.start_ns[event])
        np.maximum.at(last, row, events.end_ns[event])
        op = np.zeros(len(distinct), np.int32)
        op[row] = events.op.codes[event]
        return cls(
            events=events,
            event=event,
            row=row,
            name=Labels((distinct // (phases * devices)).astype(np.int32), events.name.words).used(),
            op=Labels(op, events.op.words).used(),
            phase=Labels((distinct // devices % phases).astype(np.int32), PHASES),
            device=Labels((distinct % devices).astype(np.int32), events.device.words),
            first_ns=first,
            last_ns=last,
        )

    def __len__(self) -> int:
        return len(self.first_ns)

    def total(self, amounts: Float64, times: Float64 | None = None) -> Float64:
        """Per-event amounts (times a factor), added up by row."""
        total = np.zeros(len(self))
        for some in _stretches(len(self.row)):
            part = amounts[some] if times is None else amounts[some] * times[some]
            total += sums_by(self.row[some], part, len(self))
        return total

    def executions(self, times: Float64 | None = None) -> Float64:
        """How often each row ran (times a factor); a worker's slice is only part of an execution."""
        kinds = self.events.kind.codes[self.event]
        total = np.zeros(len(self))
        for some in _stretches(len(self.row)):
            once = (kinds[some] != WORKER) * (1.0 if times is None else times[some])
            total += sums_by(self.row[some], once, len(self))
        return total


BY_TIME_RMS = 0.25
"""How far off what is shared by time is. Eight kernels on an H200 were, on the mean by energy, and so were
seventeen operations without a cost in programs that had been calibrated, on the mean: intervals that take it
for an rms hold sixteen of these."""


@dataclass(frozen=True, eq=False)
class Charges:
    """What each event got: joules and seconds of the domain, and its own time in its lane; and how far off
    the cost may be that it weighed by (relative, as an rms; NaN for one that was not calibrated).

    ``model_j`` is what its cost says: what untraced steps took goes by that where it is known. The meter's
    few updates while steps were traced say less. ``period_s`` is how often the meter updates."""

    energy_j: Float64
    share_s: Float64
    active_s: Float64
    cost_rms: Float64 | None = None
    model_j: Float64 | None = None
    period_s: float = 0.0

    @property
    def basis_j(self) -> Float64:
        """By what events stand for those of untraced steps."""
        return self.energy_j if self.model_j is None else self.model_j

    def calibrated(self, joules: Float64) -> Float64 | None:
        """The energy of calibrated events; None where there are none."""
        return None if self.cost_rms is None else np.where(np.isnan(self.cost_rms), 0.0, joules)

    def cost_rms_j(self, joules: Float64) -> Float64 | None:
        """How far off it may be: executions of one operation are all off together. What has no cost beside
        others that have one is as far off as sharing by time is; except for what lasts longer than the meter
        takes to update, which shares no more than its edges."""
        if self.cost_rms is None:
            return None
        shared = self.period_s / np.maximum(self.active_s, max(self.period_s, 1e-9))
        return np.where(np.isnan(self.cost_rms), BY_TIME_RMS * shared, self.cost_rms) * joules


def domain_footprint(
    rows: Rows,
    step_of: StepOf,
    supply: Supply,
    shared: tuple[Shared, Shared, Shared],
    charges: Charges,
    rule: str,
) -> Footprint:
    """One domain's footprint; its energy and seconds as they were ``shared``, and that by which untraced
    steps go."""
    energy, seconds, basis = shared
    step, model = step_of.event[rows.event], step_of.model[rows.event]
    idle_j, idle_s = energy.idle_between_marks(), seconds.idle_between_marks()
    work_j = _by_step(charges.energy_j, step, step_of.count)
    work_s = _by_step(charges.share_s, step, step_of.count)
    idle_basis_j = basis.idle_between_marks()
    extra = Projection.none()
    model_s = _by_step(charges.share_s, model, step_of.count)
    waits_for_host = bool((rows.events.kind.codes[rows.event] == KERNEL).any())
    if step_of.steps is not None:
        extra = project(
            step_of.steps,
            StepParts(_by_step(charges.basis_j, model, step_of.count), idle_basis_j, supply.untraced_j),
            StepParts(model_s, idle_s, supply.untraced_s),
            waits_for_host,
        )
    more_idle_j = idle_basis_j * (extra.energy * extra.idle)
    all_idle_j = energy.idle + float(more_idle_j.sum())
    all_idle_s = seconds.idle + float(idle_s @ (extra.seconds * extra.idle))
    waits_w = all_idle_j / all_idle_s if waits_for_host and all_idle_s > 0 else 0.0
    loading = supply.loading
    account = Account(
        domain=supply.domain,
        measured_j=supply.measured_j,
        idle_j=all_idle_j,
        idle_time_based_j=all_idle_j,
        idle_s=all_idle_s,
        idle_outside_steps_j=max(energy.idle - float(idle_j.sum()), 0.0) if step_of.count else 0.0,
        other_processes_j=supply.other_processes_j,
        outside_j=supply.outside_j,
        period_s=supply.period_s,
        covered_s=float(supply.seconds.amount.sum() + supply.untraced_s.sum())
        + (0.0 if loading is None else loading.share_s),
        step_j=work_j + idle_j + supply.untraced_j + (0.0 if loading is None else loading.step_j),
        step_s=work_s + idle_s + supply.untraced_s + (0.0 if loading is None else loading.step_s),
        idle_block_j=step_of.by_block(idle_j + more_idle_j),
        projected_block_j=step_of.by_block(waits_w * model_s * extra.seconds),
    )
    placed = _placed(rows, step_of, extra, model, charges, account, rule)
    parts = [replace(placed, accounts=(replace(account, cost_rms_j=float(placed.cost_rms_j.sum())),))]
    if extra.unplaced_j > 0:
        edges_ns = supply.energy.edges_ns
        span = int(edges_ns[0]), int(edges_ns[-1])
        times = extra.unplaced_s, extra.lasted_s
        parts.append(_one_row(placed, UNTRACED, UNTRACED, supply.domain, extra.unplaced_j, times, span))
    if loading is not None and loading.energy_j > 0:
        span, times = (loading.first_ns, loading.last_ns), (loading.share_s, loading.active_s)
        parts.append(_one_row(placed, *LOADING, supply.domain, loading.energy_j, times, span))
    return Footprint.joined(parts).with_meter_resolution()


def _placed(
    rows: Rows,
    step_of: StepOf,
    extra: Projection,
    step: NDArray[np.int32],
    charges: Charges,
    account: Account,
    rule: str,
) -> Footprint:
    """Rows in which each traced step also stands for the untraced ones that it is the model of."""
    count = len(rows)
    more_j, more_s, more_calls = (
        _at_step(ratio, step) for ratio in (extra.energy, extra.seconds, extra.calls)
    )
    projected_j = np.zeros(count) if more_j is None else rows.total(charges.basis_j, more_j)
    energy_j = rows.total(charges.energy_j) + projected_j
    first_ns, last_ns = _spans(rows, step_of, step, extra)
    return Footprint(
        name=rows.name,
        op=rows.op,
        phase=rows.phase,
        device=rows.device,
        domain=Labels.of(account.domain.name, count),
        energy_j=energy_j,
        projected_j=projected_j,
        baseline_j=np.zeros(count),
        calibrated_j=_with_more(rows, charges, charges.calibrated, more_j),
        time_based_j=energy_j,
        share_s=rows.total(charges.share_s) + _more(rows, charges.share_s, more_s),
        active_s=rows.total(charges.active_s) + _more(rows, charges.active_s, more_s),
        calls=rows.executions() + (0.0 if more_calls is None else rows.executions(more_calls)),
        first_ns=first_ns,
        last_ns=last_ns,
        block_j=_block_energy(rows, step_of, step, charges, more_j),
        meter_rms_j=np.zeros(count),
        cost_rms_j=_with_more(rows, charges, charges.cost_rms_j, more_j),
        blocks=step_of.blocks,
        accounts=(account,),
        rule=rule,
    )


def _spans(rows: Rows, step_of: StepOf, step: NDArray[np.int32], extra: Projection) -> tuple[Int64, Int64]:
    """From when to when each row ran: an execution in a traced step stands for those in the untraced ones of
    its label too."""
    steps = step_of.steps
    first_ns, last_ns = rows.first_ns.copy(), rows.last_ns.copy()
    if steps is None:
        return first_ns, last_ns
    for code in np.unique(steps.label.codes[extra.energy > 0]).tolist():
        alike = steps.label.codes == code
        standing = np.append(alike & (extra.energy > 0), False)[step]  # no step is the last one
        row = np.unique(rows.row[standing])
        first_ns[row] = np.minimum(first_ns[row], steps.start_ns[alike].min())
        last_ns[row] = np.maximum(last_ns[row], steps.end_ns[alike].max())
    return first_ns, last_ns


def _more(rows: Rows, amounts: Float64, ratio: Float64 | None) -> Float64 | float:
    return 0.0 if ratio is None else rows.total(amounts, ratio)


def _with_more(
    rows: Rows, charges: Charges, of: Callable[[Float64], Float64 | None], ratio: Float64 | None
) -> Float64:
    """What is said of joules by row, the projected ones with them; nothing where there is nothing to say."""
    own, others = of(charges.energy_j), of(charges.basis_j)
    if own is None or others is None:
        return np.zeros(len(rows))
    return rows.total(own) + _more(rows, others, ratio)


def _one_row(
    like: Footprint,
    name: str,
    op: str,
    domain: Domain,
    energy_j: float,
    times_s: tuple[float, float],
    span_ns: tuple[int, int],
) -> Footprint:
    """A row for energy that no event has; its part of the domain's time, and how long it was there."""
    one = np.ones(1)
    return Footprint(
        name=Labels.of(name, 1),
        op=Labels.of(op, 1),
        phase=Labels.among(PHASES, "other", 1),
        device=Labels.of(domain.device, 1),
        domain=Labels.of(domain.name, 1),
        energy_j=one * energy_j,
        projected_j=np.zeros(1),
        baseline_j=np.zeros(1),
        calibrated_j=np.zeros(1),
        time_based_j=one * energy_j,
        share_s=one * times_s[0],
        active_s=one * times_s[1],
        calls=np.zeros(1),
        first_ns=np.array(span_ns[:1], np.int64),
        last_ns=np.array(span_ns[1:], np.int64),
        block_j=np.zeros((1, like.block_j.shape[1])),
        meter_rms_j=np.zeros(1),
        cost_rms_j=np.zeros(1),
        blocks=like.blocks,
        accounts=(),
        rule=like.rule,
    )


def _stretches(count: int) -> Iterator[slice]:
    """A long column in pieces, so that what is computed on the way stays small."""
    for begin in range(0, count, _STRETCH):
        yield slice(begin, begin + _STRETCH)


def _numbered(key: Int64, size: int) -> tuple[Int64, Int64]:
    """The distinct keys in order, and the number of each key among them (in the keys' own memory)."""
    if size > 4 * len(key) + (1 << 16):
        distinct, number = np.unique(key, return_inverse=True)
        return distinct, number
    present = np.zeros(size, bool)
    present[key] = True
    number = np.cumsum(present) - 1
    for some in _stretches(len(key)):
        key[some] = number[key[some]]
    return np.flatnonzero(present), key


def _block_energy(
    rows: Rows, step_of: StepOf, step: NDArray[np.int32], charges: Charges, more: Float64 | None
) -> Float64:
    blocks = len(step_of.blocks)
    if not blocks:
        return np.zeros((len(rows), 0))
    block = np.append(step_of.blocks.of_step, np.int32(-1))[step]
    inside = block >= 0
    cell = rows.row[inside] * blocks + block[inside]
    total_j = charges.energy_j[inside]
    if more is not None:
        total_j = total_j + (charges.basis_j * more)[inside]
    return sums_by(cell, total_j, len(rows) * blocks).reshape(len(rows), blocks)


def _by_step(amounts: Float64, step: NDArray[np.int32], count: int) -> Float64:
    if not count:
        return np.zeros(0)
    inside = step != NO_STEP
    return sums_by(step[inside], amounts[inside], count)


def _at_step(per_step: Float64, step: NDArray[np.int32]) -> Float64 | None:
    """Look a per-step ratio up for each event (0 for events of no step); None where all are 0."""
    return np.asarray(np.append(per_step, 0.0)[step]) if per_step.any() else None
