"""From events and power to a footprint: the accounting, whole.

For each device, the energy of its domains is first sorted (``supply``), then shared out over its events by
a rule, then added up by name, phase and device, with the untraced steps projected (``rows``). It ends
with ``Footprint.check()``.

The rules differ in one thing, the density of the energy inside one sensor interval:

- ``exact``: constant in time; what is active at an instant shares it by weight (equally, unless weights
  are given).
- ``recency``: the paper's Algorithm 2, walked instant by instant. The same numbers by brute force.
- ``calibrated``: proportional to the weights that are active (watts of the operation by itself), or to the
  idle weight where nothing is. The interval's energy is conserved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from joulemap.accounting.alike import borrowed, told_apart, unlike
from joulemap.accounting.footprint import Footprint
from joulemap.accounting.lanes import WORKER
from joulemap.accounting.recency import walk
from joulemap.accounting.rows import Charges, Rows, StepOf, domain_footprint
from joulemap.accounting.supply import Supply, supply
from joulemap.accounting.sweep import Actors, Shared, modelled, share_out
from joulemap.accounting.watching import part
from joulemap.devices import Device, Domain, roots
from joulemap.errors import InputError
from joulemap.processes import ProcessShares
from joulemap.program import BETWEEN, PROFILER, START_UP, split
from joulemap.traces import NO_STEP, PHASES, EventTrace, Float64, Int64, PowerTrace, Steps
from joulemap.units import fmt_seconds, fmt_share

Rule = Literal["exact", "recency", "calibrated"]
RULES: tuple[Rule, ...] = ("exact", "recency", "calibrated")
_MUCH = 1 / 3


def attribute(
    events: EventTrace,
    power: PowerTrace | Iterable[PowerTrace],
    rule: Rule = "exact",
    *,
    steps: Steps | None = None,
    window_ns: tuple[int, int] | None = None,
    shares: Mapping[str, ProcessShares] | None = None,
    weights: ArrayLike | None = None,
    idle_weight: float | Mapping[str, float] | None = None,
    cost_rms: ArrayLike | None = None,
) -> Footprint:
    """Account the energy of every domain to the events of its device.

    ``window_ns`` is the recording: energy before and after it is *outside*. ``shares`` gives the
    program's part of a domain that other processes use too. ``weights`` is one positive number per
    event; the ``calibrated`` rule takes it, and ``idle_weight``, in watts. Where ``idle_weight`` is by
    domain, domains without one are shared by time. ``cost_rms`` says how far off each event's weight may be
    (relative, as an rms), NaN where the weight was not calibrated.
    """
    traces = [power] if isinstance(power, PowerTrace) else list(power)
    weighting = _Weighting.of(rule, weights, idle_weight, cost_rms, len(events))
    by_others = [] if steps is None else borrowed(steps)
    steps = None if steps is None else told_apart(steps)
    step = step_of_event(events, steps)
    step_of = StepOf(step, _models(events, step), steps)
    _check_window(window_ns)
    _check_shares(shares, traces)
    sort = partial(supply, steps=steps, window_ns=window_ns, shares=shares)
    if rule != "calibrated":
        return _accounted(events, traces, weighting, step_of, sort, by_others)
    with part(0, 2):
        footprint = _accounted(events, traces, weighting, step_of, sort, by_others)
    with part(1, 2):
        return footprint.beside(_accounted(events, traces, _BY_TIME, step_of, sort))


def _accounted(
    events: EventTrace,
    traces: list[PowerTrace],
    weighting: _Weighting,
    step_of: StepOf,
    sort: Callable[..., Supply],
    by_others: Sequence[str] = (),
) -> Footprint:
    """Every domain's energy, by one way of weighting; ``sort`` makes the supply of a power trace, and
    ``by_others`` is what to say of steps that go by others."""
    counted = outermost(traces)
    footprints: list[Footprint] = []
    each = [(trace.domain.device, weighting.of_idle(trace.domain)) for trace in counted]
    for number, (device, idle) in enumerate(dict.fromkeys(each)):
        fed = [trace for trace, its in zip(counted, each, strict=True) if its == (device, idle)]
        own = weighting if idle == weighting.idle_weight else weighting.on(idle)
        with part(number, len(set(each))):
            footprints += _account_device(events, step_of, own, Device.parse(device), fed, sort)
    warnings = _warnings(events, traces, counted)
    warnings += [*_unlike(events, step_of.steps), *by_others, *_much_between(footprints)]
    if not footprints:
        return Footprint.empty(weighting.rule, warnings)
    return replace(Footprint.joined(footprints, warnings), rule=weighting.rule).check()


@dataclass(frozen=True, eq=False)
class _Weighting:
    """The rule, with its weights checked; ``idle_weight`` (of any domain, or by domain) only for the
    calibrated rule."""

    rule: Rule
    weights: Float64 | None
    idle_weight: float | Mapping[str, float] | None
    cost_rms: Float64 | None

    @classmethod
    def of(
        cls,
        rule: Rule,
        weights: ArrayLike | None,
        idle_weight: float | Mapping[str, float] | None,
        cost_rms: ArrayLike | None,
        count: int,
    ) -> _Weighting:
        if rule not in RULES:
            raise InputError(f"There is no rule {rule!r}.", f"Rules are {', '.join(RULES)}.")
        column = _a_number_each(weights, "weights", count)
        if column is not None and not (np.isfinite(column) & (column > 0)).all():
            raise InputError(
                "Weights must be positive numbers.", "Where nothing is known of an event, it weighs 1."
            )
        if rule != "calibrated":
            return cls(rule, column, None, None)
        idle = idle_weight.values() if isinstance(idle_weight, Mapping) else [idle_weight]
        if not all(one is not None and 0 < one < np.inf for one in idle):
            raise InputError(
                "The calibrated rule needs the weight of idle time (idle_weight).",
                "It is the device's idle power, in the unit of the weights.",
            )
        rms = np.zeros(count) if cost_rms is None else cost_rms
        return cls(rule, column, idle_weight, _a_number_each(rms, "cost_rms", count))

    def of_idle(self, domain: Domain) -> float | None:
        """What waiting weighs in a domain; None where that is shared by time."""
        every = self.idle_weight
        return every.get(domain.name) if isinstance(every, Mapping) else every

    def on(self, idle_w: float | None) -> _Weighting:
        """For domains of which waiting weighs so much."""
        return _BY_TIME if idle_w is None else replace(self, idle_weight=idle_w)


_BY_TIME = _Weighting("exact", None, None, None)


def _a_number_each(values: ArrayLike | None, what: str, count: int) -> Float64 | None:
    column = None if values is None else np.asarray(values, np.float64)
    if column is not None and len(column) != count:
        raise InputError(f"{count} events need {count} {what}, not {len(column)}.")
    return column


def outermost(traces: list[PowerTrace]) -> list[PowerTrace]:
    """The traces that add up: those of domains that are no part of another."""
    names = [trace.domain.name for trace in traces]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise InputError(f"There are two power traces of {twice[0]!r}.", "A domain has one trace.")
    adding = {domain.name for domain in roots([trace.domain for trace in traces])}
    if names and not adding:
        raise InputError(
            f"{names[0]!r} is inside itself.", "A domain's parent is the domain around it, or None."
        )
    return [trace for trace in traces if trace.domain.name in adding]


def _check_window(window_ns: tuple[int, int] | None) -> None:
    if window_ns is not None and window_ns[1] < window_ns[0]:
        raise InputError(f"The recording ends ({window_ns[1]} ns) before it starts ({window_ns[0]} ns).")


def _check_shares(shares: Mapping[str, ProcessShares] | None, traces: list[PowerTrace]) -> None:
    unknown = set(shares or ()) - {trace.domain.name for trace in traces}
    if unknown:
        raise InputError(f"There are process shares of {unknown.pop()!r}, but no power.")


def step_of_event(events: EventTrace, steps: Steps | None) -> NDArray[np.int32]:
    """The step an event says it belongs to, else the traced one in which it starts or that it runs into."""
    if steps is None:
        return np.full(len(events), NO_STEP, np.int32)
    if (events.step >= len(steps)).any():
        raise InputError(
            f"An event is of step {int(events.step.max())}, but there are only {len(steps)} steps."
        )
    if (events.step != NO_STEP).any() or not len(steps):
        return events.step
    step = steps.at(events.start_ns)
    traced = np.flatnonzero(steps.traced)
    following = np.append(traced, NO_STEP)[np.searchsorted(steps.start_ns[traced], events.start_ns)]
    reached = (following != NO_STEP) & (events.end_ns > steps.start_ns[following])
    elsewhere = (step == NO_STEP) | ~steps.traced[step]
    return np.where(elsewhere & reached, following, step).astype(np.int32)


def _models(events: EventTrace, step: NDArray[np.int32]) -> NDArray[np.int32]:
    """The step that each event is an example of: what the tracer does itself is of none, since steps that
    were not traced have nothing like it."""
    tracers = np.array([split(word)[0] == PROFILER for word in events.name.words] or [False])
    return np.where(tracers[events.name.codes], NO_STEP, step).astype(np.int32)


def _account_device(
    events: EventTrace,
    step_of: StepOf,
    weighting: _Weighting,
    device: Device,
    traces: list[PowerTrace],
    sort: Callable[..., Supply],
) -> list[Footprint]:
    """The footprints of the domains that feed one device; ``sort`` makes the supply of a power trace."""
    rows = Rows.of(events, events_on(events, device))
    lasting = events.end_ns[rows.event] > events.start_ns[rows.event]
    actors = actors_of(events, rows.event, None if lasting.all() else lasting, weighting.weights)
    density = None
    if isinstance(weighting.idle_weight, float | int):
        density = partial(modelled, actors, idle_weight=weighting.idle_weight)
    supplies = [sort(trace, density=density) for trace in traces]
    shared, active_s = _share(actors, supplies, _step_marks(step_of.steps), weighting)

    def per_event(amounts: Float64) -> Float64:
        """Zero-length events are executions, but get nothing. Rounding may leave a negative speck."""
        np.maximum(amounts, 0.0, out=amounts)
        if len(amounts) == len(lasting):
            return amounts
        everyone = np.zeros(len(lasting))
        everyone[lasting] = amounts
        return everyone

    active_s = per_event(active_s)
    cost_rms = None if weighting.cost_rms is None else weighting.cost_rms[rows.event]
    footprints = []
    for one, (energy, seconds, model) in zip(supplies, shared, strict=True):
        charges = Charges(
            energy_j=per_event(energy.charge),
            share_s=per_event(seconds.charge),
            active_s=active_s,
            cost_rms=cost_rms,
            model_j=None if model is None else per_event(model.charge),
            period_s=one.period_s,
        )
        idle = (energy, seconds, energy if model is None else model)
        footprints.append(domain_footprint(rows, step_of, one, idle, charges, weighting.rule))
    return footprints


def events_on(events: EventTrace, device: Device) -> Int64 | slice:
    """The rows of the events that ran on a device."""
    here = np.array([device.runs(Device.parse(word)) for word in events.device.words] or [False])
    return slice(None) if here.all() else np.flatnonzero(here[events.device.codes])


def actors_of(
    events: EventTrace,
    event: Int64 | slice,
    lasting: NDArray[np.bool_] | None = None,
    weights: Float64 | None = None,
) -> Actors:
    """Those who share: some events, or of these the ``lasting`` ones; alike, or by the ``weights`` of all."""
    if lasting is not None:
        event = np.flatnonzero(lasting) if isinstance(event, slice) else event[lasting]
    kind = events.kind.codes[event]
    group = None
    if (kind == WORKER).any():
        group = events.name.codes[event].astype(np.int64) * len(PHASES) + events.phase.codes[event]
    return Actors(
        start_ns=events.start_ns[event],
        end_ns=events.end_ns[event],
        lane=_lanes(events, event),
        kind=kind,
        group=group,
        weight=None if weights is None else weights[event],
    )


def _lanes(events: EventTrace, event: Int64 | slice) -> NDArray[np.int32] | None:
    """A lane is a thread of a device: thread 1 of another socket is another thread."""
    if events.lane is None:
        return None
    devices = events.device.codes[event]
    if not len(devices) or (devices == devices[0]).all():
        return events.lane.codes[event]
    lanes = devices * np.int32(len(events.lane.words)) + events.lane.codes[event]
    return np.asarray(lanes, np.int32)


def _step_marks(steps: Steps | None) -> Int64:
    """Where idle is to be read off: the start and the end of each step."""
    if steps is None:
        return np.zeros(0, np.int64)
    return np.column_stack((steps.start_ns, steps.end_ns)).ravel()


def _share(
    actors: Actors, supplies: list[Supply], marks: Int64, weighting: _Weighting
) -> tuple[list[tuple[Shared, Shared, Shared | None]], Float64]:
    """Each domain's energy and seconds, shared out by the rule, and what costs alone say, where these are
    known; and the events' own seconds."""
    energy = [one.energy for one in supplies]
    seconds = [one.seconds for one in supplies]
    if weighting.rule == "recency":
        shared, active_s = walk(actors, energy + seconds, marks)
    elif isinstance(weighting.idle_weight, float | int):
        by_weight, _ = share_out(actors, energy + seconds, marks, weighting.idle_weight)
        by_time, active_s = share_out(actors, seconds, marks)
        models = by_weight[len(energy) :]
        return list(zip(by_weight[: len(energy)], by_time, models, strict=True)), active_s
    else:
        shared, active_s = share_out(actors, energy + seconds, marks)
    count = len(supplies)
    return [(*both, None) for both in zip(shared[:count], shared[count:], strict=True)], active_s


def _warnings(events: EventTrace, traces: list[PowerTrace], counted: list[PowerTrace]) -> list[str]:
    """What a reader of the footprint must know about what it does not hold."""
    said = [
        f"{trace.domain.name} is part of {trace.domain.parent} and not added to it."
        for trace in traces
        if trace not in counted
    ]
    fed = [Device.parse(trace.domain.device) for trace in counted]
    for code, word in enumerate(events.device.words):
        without = int((events.device.codes == code).sum())
        if without and not any(device.runs(Device.parse(word)) for device in fed):
            said.append(f"No power of {word} was recorded: its {without:,} events have no energy.")
    said += [
        f"{trace.domain.name} was not read for {fmt_seconds(trace.gap_s)} in all; see the power over time."
        for trace in counted
        if trace.gap_s > 0
    ]
    return said


def _much_between(footprints: list[Footprint]) -> list[str]:
    """That most of what a program does may lie between its steps: what belongs to them, or they themselves,
    were not recognised. How long it took to start says nothing of that."""

    def of(name: str) -> float:
        return sum(float(one.energy_j[one.name.isin([name])].sum()) for one in footprints)

    between_j = of(BETWEEN)
    drawn_j = sum(one.attributed_j + one.idle_j for one in footprints) - of(START_UP)
    if between_j <= _MUCH * drawn_j or not between_j:
        return []
    return [
        f"{fmt_share(between_j / drawn_j)} of the energy after the start is of the time between steps, of "
        "which nothing is traced. Where that is part of a step, mark the whole of it: joulemap.step()."
    ]


def _unlike(events: EventTrace, steps: Steps | None) -> list[str]:
    """What to say of traced steps. Each is over when all that began in it is: a device may be behind its
    host."""
    if steps is None:
        return []
    step = step_of_event(events, steps)
    inside = step != NO_STEP
    ended_ns: Int64 = steps.end_ns.copy()
    np.maximum.at(ended_ns, step[inside], events.end_ns[inside])
    return unlike(steps, ended_ns, np.bincount(step[inside], minlength=len(steps)))
