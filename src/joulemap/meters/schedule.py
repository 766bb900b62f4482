"""When to read a sensor.

A cheap sensor is read at a fixed rate. NVML's energy counter blocks for about 4 ms a call and changes only
every 100 ms, so its schedule learns when it changes: ``Updates``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joulemap.units import NS_PER_S

Float64 = NDArray[np.float64]

GUESSES = 600
TAKEN = (0.25, 0.6)
"""Where in a call its value is taken, as a share of the call: of all hypotheses only these agree with the
published recordings of an H200, in which calls took 2 to 33 ms."""
PERIOD_SPREAD = 0.002
"""How far the declared period may be off, relative, one standard deviation."""
WANDER_S = 1e-4
"""How far the phase wanders by itself in one second."""
PERIOD_WANDER = 3e-6
"""How far the period wanders by itself in one second, relative."""
MISSED = 0.01
"""How often an update does not come, or comes at a time that the model does not explain."""
TAIL = 0.02
GAP_S = 2e-4
SHORTEST_PACE_S = 1e-3
LATEST_S = 5e-3
SURPRISES = 3
VERNIER = 0.9
"""Where calls must be saved before the updates are learnt: steps of less than a period, in periods, slide
along the updates and meet every phase."""


@dataclass(frozen=True, slots=True)
class Every:
    """At a fixed rate, on a grid of absolute times: a late reading does not delay those after it."""

    period_s: float

    def next_ns(self, now_ns: int) -> int:
        """The next point of the grid."""
        period_ns = round(self.period_s * NS_PER_S)
        return (now_ns // period_ns + 1) * period_ns

    def saw(self, before_ns: int, after_ns: int, changed: bool) -> None:
        """A fixed rate does not depend on what is read."""


class Updates:
    """Close to the updates of a slow counter, so that each is seen, and stamped with the time it happened.

    The counter is driven by a clock of its own: its updates lie on a line, edge k at ``phase + k period``,
    and what looks like jitter is the polling. Six hundred guesses of that line (a particle filter) are
    weighed by every reading: a changed value says that an edge lies between the two readings, an unchanged
    one that none does. A reading counts as taken somewhere around the middle of its call.

    Two readings see two updates and pin an edge at no extra cost: the last thing before an edge, which sees
    the update before it, and the first thing after. Spare calls go to a third: with one reading right at the
    expected edge, its answer halves the guesses. An update's stamp is the middle guess of its edge.
    """

    def __init__(self, period_s: float, share_of_core: float = 0.045, burst_s: float = 0.16) -> None:
        self.period_s = period_s
        self.share_of_core = share_of_core
        self.burst_s = burst_s
        self._random = np.random.default_rng(0)
        self._origin_ns: int | None = None
        self._after_s = self._duration_s = self._late_s = 0.0
        self._credit_s = burst_s
        self._surprises = 0
        self._planned_ns = self._last_ns = self._this_ns = 0
        self._forget(0.0)

    def next_ns(self, now_ns: int) -> int:
        """The planned reading, or at once where it is overdue or the clock was set back."""
        set_back = self._planned_ns - now_ns > max(10 * self.period_s, 1.0) * NS_PER_S
        return now_ns + 1 if set_back else max(self._planned_ns, now_ns + 1)

    def saw(self, before_ns: int, after_ns: int, changed: bool) -> None:
        """Weigh the guesses by a reading, then plan the next one."""
        if self._origin_ns is None or before_ns < self._origin_ns + round(self._after_s * NS_PER_S):
            self._start(before_ns, after_ns)
        else:
            before, after = self._relative(before_ns), self._relative(after_ns)
            self._note_lateness((before_ns - self._planned_ns) / NS_PER_S)
            self._spend(before, after)
            self._weigh(self._moments(before, after), changed)
            self._after_s = after
        self._last_ns, self._this_ns = self._this_ns, _taken_by(before_ns, after_ns)
        self._planned_ns = after_ns + max(round((self._plan() - self._after_s) * NS_PER_S), 1)

    def stamp_ns(self, before_ns: int, after_ns: int) -> int:
        """When the value changed that the last reading saw: after ``saw`` for the same reading, later than
        the stamps of readings before it, and not later than the reading."""
        latest_ns = _taken_by(before_ns, after_ns)
        if self._origin_ns is None:
            return latest_ns
        edge_ns = self._origin_ns + round(self._quantile(self._edge, 0.5) * NS_PER_S)
        return min(max(edge_ns, self._last_ns + 1), latest_ns)

    @property
    def spread_s(self) -> float:
        """How well the time of an update is known: the range of nearly all guesses."""
        ahead = self._edge + self._period
        return self._quantile(ahead, 1 - TAIL) - self._quantile(ahead, TAIL)

    def _relative(self, t_ns: int) -> float:
        return (t_ns - (self._origin_ns or 0)) / NS_PER_S

    def _start(self, before_ns: int, after_ns: int) -> None:
        """The first reading, or the clock went backwards: nothing is known."""
        self._origin_ns = self._this_ns = before_ns
        self._after_s = self._duration_s = self._relative(after_ns)
        self._forget(self._after_s / 2)

    def _forget(self, now_s: float) -> None:
        """Guess anew: any phase, the declared period give or take a little."""
        self._period = self.period_s * (1 + PERIOD_SPREAD * self._random.standard_normal(GUESSES))
        self._edge = now_s - self._period * self._random.random(GUESSES)
        self._read_at = np.full(GUESSES, now_s)
        self._weight = np.full(GUESSES, 1 / GUESSES)
        self._surprises = 0

    def _spend(self, before_s: float, after_s: float) -> None:
        """Keep account of the time that calls take; what is saved counts up to one burst."""
        took = after_s - before_s
        self._duration_s += 0.1 * (min(took, 3 * self._duration_s) - self._duration_s)
        earned = self.share_of_core * (after_s - self._after_s)
        self._credit_s = min(self._credit_s + earned, self.burst_s) - took

    def _note_lateness(self, late_s: float) -> None:
        """How long after its plan a reading usually starts, on a busy machine; rare long waits aside."""
        self._late_s += 0.1 * (min(max(late_s, 0.0), LATEST_S) - self._late_s)

    def _moments(self, before_s: float, after_s: float) -> Float64:
        """When the value was taken, as each guess has it."""
        return before_s + (after_s - before_s) * self._random.uniform(*TAKEN, GUESSES)

    def _weigh(self, moment: Float64, changed: bool) -> None:
        elapsed = float(np.mean(moment - self._read_at))
        self._wander(elapsed)
        passed = np.floor((moment - self._edge) / self._period)
        self._edge += passed * self._period
        self._read_at = moment
        agrees = (passed >= 1) == changed
        expected = float(self._weight[agrees].sum())
        self._weight *= np.where(agrees, 1 - MISSED, MISSED)
        self._weight /= self._weight.sum()
        self._judge(expected)
        if 1 / float(np.square(self._weight).sum()) < GUESSES / 2:
            self._resample()

    def _wander(self, elapsed_s: float) -> None:
        step = max(elapsed_s, 0.0) ** 0.5
        self._edge += WANDER_S * step * self._random.standard_normal(GUESSES)
        self._period *= 1 + PERIOD_WANDER * step * self._random.standard_normal(GUESSES)

    def _judge(self, expected: float) -> None:
        """A reading that hardly any guess explains widens them; several in a row start over."""
        if expected > 0.05:
            self._surprises = max(self._surprises - 1, 0) if expected > 0.95 else self._surprises
            return
        self._surprises += 2
        self._edge += 0.01 * self.period_s * self._random.standard_normal(GUESSES)
        if self._surprises > 2 * SURPRISES and self._credit_s > 0:
            self._forget(float(self._read_at.mean()))

    def _resample(self) -> None:
        """Likely guesses multiply, unlikely ones go; a little noise keeps copies apart."""
        ladder = (self._random.random() + np.arange(GUESSES)) / GUESSES
        chosen = np.minimum(np.searchsorted(np.cumsum(self._weight), ladder), GUESSES - 1)
        noise = 0.1 * self._random.standard_normal((2, GUESSES))
        self._edge, self._period, self._read_at = (
            self._edge[chosen],
            self._period[chosen],
            self._read_at[chosen],
        )
        self._edge += noise[0] * float(np.std(self._edge))
        self._period += noise[1] * float(np.std(self._period))
        self._weight = np.full(GUESSES, 1 / GUESSES)

    def _quantile(self, values: Float64, share: float) -> float:
        order = np.argsort(values)
        place = int(np.searchsorted(np.cumsum(self._weight[order]), share))
        return float(values[order[min(place, GUESSES - 1)]])

    def _plan(self) -> float:
        """The next time to read, in seconds since the first reading."""
        ahead = self._edge + self._period
        low, high = self._quantile(ahead, TAIL), self._quantile(ahead, 1 - TAIL)
        pace = max(self._duration_s, SHORTEST_PACE_S) + GAP_S
        last = self._after_s - self._duration_s
        if high - low > self.period_s / 4:
            return last + (max(pace, self.period_s / 20) if self._credit_s > 0 else VERNIER * self.period_s)
        if low < self._after_s + pace:
            return last + pace
        return self._before(self._quantile(ahead, 0.5), high - low, pace) + self.period_s

    def _before(self, edge: float, spread: float, pace: float) -> float:
        """When to start the reading before an edge: half a pace before it, so that the pair straddles it, or
        where calls were saved up, a whole pace, so that the second reading halves the guesses."""
        saved = self._credit_s > self.burst_s / 2 or (self._credit_s > 0 and spread > pace)
        taken = (TAKEN[0] + TAKEN[1]) / 2 * self._duration_s
        early = max(pace, spread / 2) if saved else pace / 2
        return edge - early - taken - self._late_s


def _taken_by(before_ns: int, after_ns: int) -> int:
    """By when a call has taken its value."""
    return before_ns + round(TAKEN[1] * (after_ns - before_ns))
