"""What some steps drew, by a meter that updates less often than steps end.

The meter's interval across a border holds some of both sides. To share it by time would make the two more
alike than they are: so either the device rests at every border for longer than an interval, and what it draws
then is known; or, of steps that are short against the interval, only whole intervals count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from joulemap.calibration.cost import level_power_w
from joulemap.traces import Float64, Int64, PowerTrace
from joulemap.units import NS_PER_S
from joulemap.validating.stretch import Stretch

LONG_PERIODS = 3
"""A step of so many updates of the meter is long: it begins and ends alike, and is taken as it is."""
LAG_S = 0.02
"""So long after the last kernel the meter knows of it."""


@dataclass(frozen=True, eq=False, slots=True)
class Metered:
    """What a meter saw of the stretches of a program; ``rest_w`` is what the device draws while it rests at
    borders, 0 where it does not or that is not known."""

    power: PowerTrace
    rest_w: float = 0.0

    @classmethod
    def of(cls, power: PowerTrace, stretches: Sequence[Stretch]) -> Metered:
        """With all that the stretches say about rests."""
        return cls(power, _rest_w(power, stretches))

    def knows(self, stretch: Stretch) -> bool:
        """Whether the meter has seen a stretch to its end."""
        after_ns = round(stretch.pause_s * NS_PER_S)
        return bool(len(self.power)) and stretch.end_ns + after_ns <= int(self.power.edges_ns[-1])

    def energy_j(self, stretch: Stretch) -> float:
        """What a stretch drew."""
        rested_j = self._between_rests_j(stretch)
        if rested_j is not None:
            return rested_j
        power, watts = self.power, None
        if stretch.seconds < LONG_PERIODS * power.period_s * max(stretch.steps, 1):
            watts = level_power_w(power, stretch.start_ns, stretch.end_ns)
        if watts is None:
            return power.energy_between(stretch.start_ns, stretch.end_ns)
        return watts * stretch.seconds

    def step_j(self, stretch: Stretch) -> float:
        """What each of its steps drew."""
        return self.energy_j(stretch) / stretch.steps

    def refined(self, stretches: Sequence[Stretch]) -> PowerTrace:
        """The same energy, with an edge wherever a stretch begins or ends between rests: of an interval
        across it the rest has what it draws, and the stretch what is left."""
        power, done = self.power, 0
        edges, joules = [power.edges_ns[:1]], list[Float64]()
        for one in sorted(stretches, key=lambda one: one.start_ns):
            found = self._updates(one)
            if found is None or found[0] < done:
                continue
            first, last = found
            own_edges, own_j = self._cut(one, first, last)
            edges += [power.edges_ns[done + 1 : first + 1], own_edges]
            joules += [power.energy_j[done:first], own_j]
            done = last
        edges.append(power.edges_ns[done + 1 :])
        joules.append(power.energy_j[done:])
        cut_ns = np.concatenate(edges)
        return PowerTrace(power.domain, cut_ns, np.concatenate(joules), power.gap_at(cut_ns[:-1]))

    def _cut(self, stretch: Stretch, first: int, last: int) -> tuple[Int64, Float64]:
        """The meter's intervals from ``first`` to ``last``, cut where a stretch begins and ends; without the
        first edge."""
        edges, joules = self.power.edges_ns[first : last + 1], self.power.energy_j[first:last].copy()
        start_ns, end_ns = stretch.start_ns, stretch.end_ns
        inside = np.flatnonzero((edges > start_ns) & (edges < end_ns))
        own_j = np.add.reduceat(joules, [0, *inside.tolist()])
        rests_j = []
        for number, rested_ns in ((0, start_ns - edges[0]), (-1, edges[-1] - end_ns)):
            rest_j = min(self.rest_w * rested_ns / NS_PER_S, own_j[number])
            own_j[number] -= rest_j
            rests_j.append(rest_j)
        cut_ns = np.array([start_ns, *edges[inside].tolist(), end_ns, edges[-1]], np.int64)
        return cut_ns, np.array([rests_j[0], *own_j.tolist(), rests_j[1]])

    def _between_rests_j(self, stretch: Stretch) -> float | None:
        """What it drew, without the rest on both sides of it; None where there is none."""
        found = self._updates(stretch)
        if found is None:
            return None
        first, last = found
        around_ns = int(self.power.edges_ns[last] - self.power.edges_ns[first])
        rested_s = around_ns / NS_PER_S - stretch.seconds
        return float(self.power.energy_j[first:last].sum()) - self.rest_w * rested_s

    def _updates(self, stretch: Stretch) -> tuple[int, int] | None:
        """The numbers of the meter's last update before it and of the first one after it, where these are in
        rests."""
        pause_ns, edges = round(stretch.pause_s * NS_PER_S), self.power.edges_ns
        if not pause_ns or not self.rest_w:
            return None
        first = int(np.searchsorted(edges, stretch.start_ns, side="right")) - 1
        last = int(np.searchsorted(edges, stretch.end_ns + round(LAG_S * NS_PER_S)))
        if first < 0 or last >= len(edges):
            return None
        before_ns, after_ns = stretch.start_ns - int(edges[first]), int(edges[last]) - stretch.end_ns
        return (first, last) if max(before_ns, after_ns) <= pause_ns else None


def _rest_w(power: PowerTrace, stretches: Sequence[Stretch]) -> float:
    """The median power of the meter's intervals that lie in rests; 0 where there is none."""
    found = []
    for one in stretches:
        begin_ns = one.end_ns + round(LAG_S * NS_PER_S)
        until_ns = one.end_ns + round(one.pause_s * NS_PER_S)
        first = int(np.searchsorted(power.edges_ns, begin_ns))
        if first + 1 < len(power.edges_ns) and power.edges_ns[first + 1] <= until_ns:
            seconds = (power.edges_ns[first + 1] - power.edges_ns[first]) / NS_PER_S
            found.append(float(power.energy_j[first] / seconds))
    return float(np.median(found)) if found else 0.0
