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
from joulemap.traces import PowerTrace
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

    def _between_rests_j(self, stretch: Stretch) -> float | None:
        """From the meter's last update before it to the first one after it, without the rest in between."""
        pause_ns, edges = round(stretch.pause_s * NS_PER_S), self.power.edges_ns
        if not pause_ns or not self.rest_w:
            return None
        first = int(np.searchsorted(edges, stretch.start_ns, side="right")) - 1
        last = int(np.searchsorted(edges, stretch.end_ns + round(LAG_S * NS_PER_S)))
        if first < 0 or last >= len(edges):
            return None
        before_ns, after_ns = stretch.start_ns - int(edges[first]), int(edges[last]) - stretch.end_ns
        if before_ns > pause_ns or after_ns > pause_ns:
            return None
        rested_s = (before_ns + after_ns) / NS_PER_S
        return float(self.power.energy_j[first:last].sum()) - self.rest_w * rested_s


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
