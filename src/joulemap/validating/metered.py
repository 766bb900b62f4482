"""What some steps drew, by a meter that updates less often than steps end.

The meter's interval across a border holds some of both sides. To share it by time would make the two more
alike than they are: so either the device rests at every border for longer than an interval, and what it draws
then is known; or, of steps that are short against the interval, only whole intervals count.

A GPU at its power limit changes its clocks with whatever is added, and with its clocks what everything else
costs. So energy is told at the clocks of plain steps. How energy goes with clocks is seen in steps in which
the GPU also waits for a while: its clocks are higher then, and its work is the same. What it draws while it
waits is found with it, from waits of different lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from joulemap.calibration.clocks import DOUBT
from joulemap.calibration.cost import level_power_w
from joulemap.recorder.experiment import PLAIN, WAITING
from joulemap.traces import Float64, PowerTrace
from joulemap.units import NS_PER_S
from joulemap.validating.stretch import Stretch

LONG_PERIODS = 3
"""A step of so many updates of the meter is long: it begins and ends alike, and is taken as it is."""
LAG_S = 0.02
"""So long after the last kernel the meter knows of it."""
LEAST_SPREAD = 0.003
"""Clocks that vary by less, relative to their mean, do not matter."""
FEWEST = 3
"""Stretches with waits, before how energy goes with clocks is believed."""
STEEPEST = 2.0
FAR = 5.0
"""A stretch that is so many times as far off as most has had something else come between."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """Energy goes with this power of the clocks, of which these are the usual ones; half of its 95 %
    interval. ``waiting_w`` is what was found to be drawn in waits, 0 where these do not tell."""

    usual_mhz: float
    power: float
    half: float
    waiting_w: float = 0.0

    @classmethod
    def of(cls, energy_j: Float64, clock_mhz: Float64, waited_s: Float64) -> Clocks | None:
        """From steps that did the same at other clocks, and waited for so long: the work goes with a power of
        the clocks, and waits draw some power. None where clocks were always the same, or too little is
        known."""
        if len(clock_mhz) < 2 * FEWEST or clock_mhz.std() < LEAST_SPREAD * clock_mhz.mean():
            return None
        usual_mhz = float(np.median(clock_mhz[waited_s <= np.median(waited_s)]))
        x, keep = np.log(clock_mhz / usual_mhz), np.ones(len(clock_mhz), bool)
        for _ in range(2):
            power, (work_j, waiting_w) = _fitted(x[keep], energy_j[keep], waited_s[keep])
            off = np.abs(energy_j - work_j * np.exp(power * x) - waiting_w * waited_s)
            keep = off <= FAR * np.median(off)
        slopes = np.stack([np.exp(power * x), work_j * x * np.exp(power * x), waited_s], axis=1)[keep]
        rms_j = float(np.sqrt(np.square(off[keep]).sum() / max(keep.sum() - 3, 1)))
        spread = np.sqrt(np.diag(np.linalg.pinv(slopes.T @ slopes)))
        return cls(usual_mhz, power, 2 * rms_j * float(spread[1]), float(waiting_w))

    @classmethod
    def told(cls, stretches: Sequence[Stretch], exponent: float | None) -> Clocks | None:
        """By calibration, where clocks vary."""
        clocks = np.array([one.clock_mhz for one in stretches if one.clock_mhz > 0])
        if exponent is None or not len(clocks) or clocks.std() < LEAST_SPREAD * clocks.mean():
            return None
        usual = [one.clock_mhz for one in stretches if one.clock_mhz > 0 and one.target == PLAIN]
        return cls(float(np.median(usual)), exponent, 2 * DOUBT) if usual else None


def _fitted(x: Float64, energy_j: Float64, waited_s: Float64) -> tuple[float, Float64]:
    """The power of clocks with which the least is left over, and the joules of work and watts of waiting that
    go with it."""
    found = []
    for power in np.linspace(0.0, STEEPEST, 401).tolist():
        parts = np.stack([np.exp(power * x), waited_s], axis=1)
        both, *_ = np.linalg.lstsq(parts, energy_j, rcond=None)
        found.append((float(np.square(energy_j - parts @ both).sum()), power, both))
    _, power, both = min(found, key=lambda one: one[0])
    return power, both


@dataclass(frozen=True, eq=False, slots=True)
class Metered:
    """What a meter saw of the stretches of a program; ``rest_w`` is what the device draws while it rests at
    borders, 0 where it does not or that is not known."""

    power: PowerTrace
    rest_w: float = 0.0
    clocks: Clocks | None = None

    @classmethod
    def of(
        cls,
        power: PowerTrace,
        stretches: Sequence[Stretch],
        *,
        by_clocks: bool = False,
        exponent: float | None = None,
    ) -> Metered:
        """With all that the stretches say about rests, and ``by_clocks`` about clocks: a program that is not
        at its power limit until something is repeated says nothing of these, and energy goes with
        ``exponent`` then, where that is known."""
        seen = cls(power, _rest_w(power, stretches))
        same = [one for one in stretches if one.target in (PLAIN, WAITING) and one.steps]
        same = [one for one in same if one.clock_mhz > 0 and seen.knows(one)]
        if not by_clocks or not same:
            return seen
        if sum(one.target == WAITING for one in same) < FEWEST:
            return cls(power, seen.rest_w, Clocks.told(stretches, exponent))
        each = [(seen.energy_j(one) / one.steps, one.clock_mhz, one.waited_s / one.steps) for one in same]
        return cls(power, seen.rest_w, Clocks.of(*np.array(each).T) or Clocks.told(stretches, exponent))

    def knows(self, stretch: Stretch) -> bool:
        """Whether the meter has seen a stretch to its end."""
        after_ns = round(stretch.pause_s * NS_PER_S)
        return bool(len(self.power)) and stretch.end_ns + after_ns <= int(self.power.edges_ns[-1])

    def energy_j(self, stretch: Stretch) -> float:
        """What a stretch drew, as if at the usual clocks."""
        power = 0.0 if self.clocks is None else self.clocks.power
        return self._drawn_j(stretch) * float(self._slower(stretch) ** power)

    def doubt_j(self, stretch: Stretch) -> float:
        """How much of that hangs on how well it is known how energy goes with clocks."""
        if self.clocks is None:
            return 0.0
        return self.energy_j(stretch) * float(np.log(self._slower(stretch))) * self.clocks.half

    def _slower(self, stretch: Stretch) -> float:
        """The usual clocks, relative to the stretch's."""
        if self.clocks is None or not stretch.clock_mhz:
            return 1.0
        return self.clocks.usual_mhz / stretch.clock_mhz

    def _drawn_j(self, stretch: Stretch) -> float:
        rested_j = self._between_rests_j(stretch)
        if rested_j is not None:
            return rested_j
        power, watts = self.power, None
        if stretch.seconds < LONG_PERIODS * power.period_s * max(stretch.steps, 1):
            watts = level_power_w(power, stretch.start_ns, stretch.end_ns)
        if watts is None:
            return power.energy_between(stretch.start_ns, stretch.end_ns)
        return watts * stretch.seconds

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
