"""What there is to share out: one domain's energy, sorted by where it may go.

Before any event is looked at, a domain's energy falls into five parts: outside the recording, other
processes, processes that load the program's data, steps that were metered but not traced, and the rest, which
the events of the device share. The rest is a curve over time; the others are sums.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joulemap.accounting.sums import sums_by
from joulemap.devices import Domain
from joulemap.processes import ProcessShares
from joulemap.traces import NO_STEP, Float64, Int64, PowerTrace, Steps
from joulemap.units import NS_PER_S


@dataclass(frozen=True, eq=False)
class Curve:
    """An amount that flows over time: ``amount[i]``, evenly, in ``[edges_ns[i], edges_ns[i+1])``."""

    edges_ns: Int64
    amount: Float64

    def increments(self, t_ns: Int64) -> Float64:
        """What flows between consecutive times (sorted).

        Inside one interval that is rate times time, never a difference of running totals: the energy
        of a microsecond must not drown in the rounding of a day's.
        """
        first = max(int(np.searchsorted(self.edges_ns, t_ns[0], side="right")) - 1, 0)
        last = min(int(np.searchsorted(self.edges_ns, t_ns[-1])), len(self.amount))
        edges, amount = self.edges_ns[first : last + 1], self.amount[first:last]
        if not len(amount):
            return np.zeros(len(t_ns) - 1)
        rate = np.divide(amount, np.diff(edges), out=np.zeros(len(amount)), where=np.diff(edges) > 0)
        if len(amount) == 1 and edges[0] <= t_ns[0] and t_ns[-1] <= edges[1]:
            return np.asarray(np.diff(t_ns) * rate[0])
        rate = np.concatenate(([0.0], rate, [0.0]))
        begins = np.bincount(np.searchsorted(t_ns, edges), minlength=len(t_ns) + 1)
        interval = np.cumsum(begins[: len(t_ns)])
        flow = rate[interval[:-1]] * np.diff(t_ns)
        crossing = np.flatnonzero(interval[1:] != interval[:-1])
        before, after = interval[crossing], interval[crossing + 1]
        whole = np.concatenate(([0.0, 0.0], np.cumsum(amount)))
        flow[crossing] = (
            rate[before] * (edges[before] - t_ns[crossing])
            + (whole[after] - whole[before + 1])
            + rate[after] * (t_ns[crossing + 1] - edges[after - 1])
        )
        return flow


@dataclass(frozen=True, eq=False)
class Loading:
    """What processes took that load the program's data: in all, and in each step. They were at it from
    ``first_ns`` to ``last_ns``, for ``active_s``; ``share_s`` is their part of the domain's time."""

    energy_j: float
    share_s: float
    active_s: float
    step_j: Float64
    step_s: Float64
    first_ns: int
    last_ns: int


@dataclass(frozen=True, eq=False)
class Supply:
    """One domain's energy: ``energy`` is for the events (per weight, where a density was given), the sums
    go to their buckets."""

    domain: Domain
    measured_j: float
    energy: Curve
    seconds: Curve
    other_processes_j: float
    outside_j: float
    untraced_j: Float64
    untraced_s: Float64
    loading: Loading | None
    period_s: float


def supply(
    power: PowerTrace,
    steps: Steps | None = None,
    window_ns: tuple[int, int] | None = None,
    shares: Mapping[str, ProcessShares] | None = None,
    density: Callable[[Int64], Float64] | None = None,
    loading_apart: bool = True,
) -> Supply:
    """Sort a power trace: cut it at every border that matters, then give each piece its destination. Where
    ``loading_apart`` is off, processes that load data are the program like the rest of it.

    Inside a sensor interval the energy is spread evenly over time, or, with ``density``, in proportion to
    what that says of each piece between edges (weight times seconds); then ``energy`` is per weight.
    """
    share = (shares or {}).get(power.domain.name)
    apart = loading_apart and share is not None and bool(share.loading.any())
    edges = _cut(power, _borders(steps, apart), window_ns, share)
    known_s = np.diff(edges) / NS_PER_S * ~_unknown(power, edges)
    middle = edges[:-1] + np.diff(edges) // 2
    inside = np.ones(len(middle), bool)
    if window_ns is not None:
        inside = (middle >= window_ns[0]) & (middle < window_ns[1])
    ours = np.where(inside, share.at(middle) if share is not None else 1.0, 0.0)
    others = inside * (1 - ours)
    loads = None
    if apart and share is not None:
        loads = np.where(inside, share.loading_at(middle), 0.0)
        ours = ours - loads
    step = _untraced_step(steps, middle, inside)
    traced = step == NO_STEP
    modelled = None if density is None else density(edges)
    energy_j = _piece_energy(power, edges, traced, modelled)
    flow = energy_j * ours * traced
    if modelled is not None:
        length_s = np.diff(edges) / NS_PER_S
        flow = np.divide(flow * length_s, modelled, out=np.zeros(len(flow)), where=modelled > 0)
    count = 0 if steps is None else len(steps)
    return Supply(
        domain=power.domain,
        measured_j=power.total_j,
        energy=Curve(edges, flow),
        seconds=_coalesced(edges, known_s * ours * traced),
        other_processes_j=float((energy_j * others).sum()),
        outside_j=float(energy_j[~inside].sum()),
        untraced_j=sums_by(step[~traced], (energy_j * ours)[~traced], count),
        untraced_s=sums_by(step[~traced], (known_s * ours)[~traced], count),
        loading=None if loads is None else _loading(edges, energy_j, known_s, loads, steps),
        period_s=power.period_s,
    )


def _loading(
    edges: Int64, energy_j: Float64, known_s: Float64, loads: Float64, steps: Steps | None
) -> Loading:
    at_it = np.flatnonzero(loads)
    share_j, share_s = (energy_j * loads)[at_it], (known_s * loads)[at_it]
    step = np.full(len(at_it), NO_STEP, np.int32)
    if steps is not None:
        step = steps.at(edges[at_it] + np.diff(edges)[at_it] // 2)
    inside, count = step != NO_STEP, 0 if steps is None else len(steps)
    return Loading(
        energy_j=float(share_j.sum()),
        share_s=float(share_s.sum()),
        active_s=float(known_s[at_it].sum()),
        step_j=sums_by(step[inside], share_j[inside], count),
        step_s=sums_by(step[inside], share_s[inside], count),
        first_ns=int(edges[at_it[0]]) if len(at_it) else 0,
        last_ns=int(edges[at_it[-1] + 1]) if len(at_it) else 0,
    )


def _borders(steps: Steps | None, traced: bool) -> list[Int64]:
    """Where untraced steps begin and end; those that were ``traced`` as well, where they are to be known."""
    if steps is None:
        return []
    chosen = ~steps.traced | traced
    return [steps.start_ns[chosen], steps.end_ns[chosen]]


def _cut(
    power: PowerTrace,
    of_steps: list[Int64],
    window_ns: tuple[int, int] | None,
    share: ProcessShares | None,
) -> Int64:
    borders = [power.edges_ns, *of_steps]
    if window_ns is not None:
        borders.append(np.array(window_ns, np.int64))
    if share is not None:
        borders.append(share.edges_ns)
    edges = np.sort(np.concatenate(borders))
    if not len(power):
        return np.zeros(1, np.int64)
    inside = (edges >= power.edges_ns[0]) & (edges <= power.edges_ns[-1])
    distinct: NDArray[np.bool_] = np.append(np.diff(edges) > 0, True)
    return np.asarray(edges[inside & distinct], np.int64)


def _piece_energy(
    power: PowerTrace, edges: Int64, traced: NDArray[np.bool_], modelled: Float64 | None
) -> Float64:
    """Each piece's part of the interval it lies in, so that an interval's pieces sum to its energy.

    Nothing is known of what ran in untraced steps: they take their part by time, and the model shares out
    the rest.
    """
    if not len(power):
        return np.zeros(len(edges) - 1)
    interval = np.searchsorted(power.edges_ns, edges[:-1], side="right") - 1
    by_time = power.power_w[interval] * (np.diff(edges) / NS_PER_S)
    if modelled is None:
        return by_time
    known = traced & (modelled > 0)
    energy = sums_by(interval[known], by_time[known], len(power))
    total = sums_by(interval[known], modelled[known], len(power))
    scaled = energy[interval] * np.divide(
        modelled, total[interval], out=np.zeros(len(modelled)), where=total[interval] > 0
    )
    return np.where(known, scaled, by_time)


def _unknown(power: PowerTrace, edges: Int64) -> NDArray[np.bool_]:
    """Pieces in a gap of power samples, where the energy is not known and so not counted."""
    if not len(power):
        return np.zeros(len(edges) - 1, bool)
    interval = np.searchsorted(power.edges_ns, edges[:-1], side="right") - 1
    return np.asarray((power.gap & (power.energy_j == 0))[interval])


def _coalesced(edges: Int64, seconds: Float64) -> Curve:
    """The same curve of seconds with fewer edges: only where the part of time that counts changes."""
    length = np.diff(edges) / NS_PER_S
    rate = np.divide(seconds, length, out=np.zeros(len(length)), where=length > 0)
    border = np.concatenate(([True], rate[1:] != rate[:-1], [True])) if len(rate) else np.ones(1, bool)
    kept = edges[border]
    return Curve(kept, np.diff(kept) / NS_PER_S * rate[border[:-1]])


def _untraced_step(steps: Steps | None, t_ns: Int64, inside: NDArray[np.bool_]) -> NDArray[np.int32]:
    if steps is None or steps.traced.all():
        return np.full(len(t_ns), NO_STEP, np.int32)
    step = steps.at(t_ns)
    return np.where(inside & ~steps.traced[step], step, NO_STEP).astype(np.int32)
