"""What there is to share out: one domain's energy, sorted by where it may go.

Before any event is looked at, a domain's energy falls into four parts: outside the recording, other
processes, steps that were metered but not traced, and the rest, which the events of the device share.
The rest is a curve over time; the others are sums.
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
    period_s: float


def supply(
    power: PowerTrace,
    steps: Steps | None = None,
    window_ns: tuple[int, int] | None = None,
    shares: Mapping[str, ProcessShares] | None = None,
    density: Callable[[Int64], Float64] | None = None,
) -> Supply:
    """Sort a power trace: cut it at every border that matters, then give each piece its destination.

    Inside a sensor interval the energy is spread evenly over time, or, with ``density``, in proportion to
    what that says of each piece between edges (weight times seconds); then ``energy`` is per weight.
    """
    share = (shares or {}).get(power.domain.name)
    edges = _cut(power, steps, window_ns, share)
    known_s = np.diff(edges) / NS_PER_S * ~_unknown(power, edges)
    middle = edges[:-1] + np.diff(edges) // 2
    inside = np.ones(len(middle), bool)
    if window_ns is not None:
        inside = (middle >= window_ns[0]) & (middle < window_ns[1])
    ours = np.where(inside, share.at(middle) if share is not None else 1.0, 0.0)
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
        other_processes_j=float((energy_j * (1 - ours))[inside].sum()),
        outside_j=float(energy_j[~inside].sum()),
        untraced_j=sums_by(step[~traced], (energy_j * ours)[~traced], count),
        untraced_s=sums_by(step[~traced], (known_s * ours)[~traced], count),
        period_s=power.period_s,
    )


def _cut(
    power: PowerTrace, steps: Steps | None, window_ns: tuple[int, int] | None, share: ProcessShares | None
) -> Int64:
    borders = [power.edges_ns]
    if window_ns is not None:
        borders.append(np.array(window_ns, np.int64))
    if steps is not None:
        borders += [steps.start_ns[~steps.traced], steps.end_ns[~steps.traced]]
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
