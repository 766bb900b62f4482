"""When a counter updates, learnt from readings that saw a new value or the old one.

The counter is driven by a clock of its own: its updates lie on a line, edge k at ``phase + k period``, and
what looks like jitter is the polling. Guesses of that line (a particle filter) are weighed by every reading:
a changed value says that an edge lies between the two readings, an unchanged one that none does.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]

GUESSES = 400
PERIOD_SPREAD = 0.002
"""How far the declared period may be off, relative, one standard deviation."""
WANDER_S = 4e-5
"""How far the phase wanders by itself in one second."""
PERIOD_WANDER = 3e-6
"""How far the period wanders by itself in one second, relative."""
MISSED = 0.001
"""How often an update does not come, or comes at a time that the model does not explain."""
TAIL = 0.02
PLAIN_S = 1.0
PLAIN_MARGIN = 0.1
"""A reading this far from any edge, in periods, and this soon after the last one tells the guesses nothing
new, and is not worth weighing them."""


class Beat:
    """Guesses of the phase and the period. Times are seconds on one clock."""

    def __init__(self, period_s: float) -> None:
        self._declared_s = period_s
        self._random = np.random.default_rng(0)
        self.period_s = period_s
        self.earliest_s = self.next_s = self.latest_s = 0.0
        """The next update: nearly all guesses lie between the first and the last of these."""
        self.forget(0.0)

    def forget(self, now_s: float) -> None:
        """Guess anew: any phase, the declared period give or take a little."""
        self._period = self._declared_s * (1 + PERIOD_SPREAD * self._random.standard_normal(GUESSES))
        self._edge = now_s - self._period * self._random.random(GUESSES)
        self._weight = np.full(GUESSES, 1 / GUESSES)
        self._read_s, self._unweighed_s, self._passed = now_s, 0.0, 0
        self._sum_up()

    @property
    def spread_s(self) -> float:
        """How well the next update is known: the range of nearly all guesses."""
        return self.latest_s - self.earliest_s

    @property
    def last_s(self) -> float:
        """When the counter last updated, before the last reading."""
        return self.next_s - self.period_s

    def saw(self, first_s: float, last_s: float, changed: bool) -> float | None:
        """Weigh the guesses by a reading whose value was taken between two times. The share of them that
        expected what it saw; None where all did, and nothing was learnt."""
        passed = self._passed_for_all(first_s, last_s)
        read_s = (first_s + last_s) / 2
        elapsed_s, self._read_s = max(read_s - self._read_s, 0.0), read_s
        self._unweighed_s += elapsed_s
        if passed is not None and (passed >= 1) == changed and elapsed_s < PLAIN_S:
            self._move_on(passed)
            return None
        expected = self._weigh(self._random.uniform(first_s, last_s, GUESSES), changed)
        self._sum_up()
        return expected

    def widen(self, by_s: float) -> None:
        """Be less sure of the phase."""
        self._edge += by_s * self._random.standard_normal(GUESSES)
        self._sum_up()

    def _passed_for_all(self, first_s: float, last_s: float) -> int | None:
        """How many updates came since the last reading, where all guesses say the same."""
        margin_s = PLAIN_MARGIN * self.period_s
        fewest = math.floor((first_s - self.latest_s - margin_s) / self.period_s)
        most = math.floor((last_s - self.earliest_s + margin_s) / self.period_s)
        return fewest + 1 if fewest == most else None

    def _move_on(self, passed: int) -> None:
        """By so many updates; the guesses follow when they are weighed next."""
        self._passed += passed
        step_s = passed * self.period_s
        self.earliest_s, self.next_s, self.latest_s = (
            self.earliest_s + step_s,
            self.next_s + step_s,
            self.latest_s + step_s,
        )

    def _weigh(self, moment: Float64, changed: bool) -> float:
        self._edge += self._passed * self._period
        self._wander(self._unweighed_s)
        self._passed, self._unweighed_s = 0, 0.0
        passed = np.floor((moment - self._edge) / self._period)
        self._edge += passed * self._period
        agrees = (passed >= 1) == changed
        expected = float(self._weight @ agrees)
        self._weight *= np.where(agrees, 1 - MISSED, MISSED)
        self._weight /= self._weight.sum()
        if 1 / float(self._weight @ self._weight) < GUESSES / 2:
            self._resample()
        return expected

    def _wander(self, elapsed_s: float) -> None:
        noise = math.sqrt(elapsed_s) * self._random.standard_normal((2, GUESSES))
        self._edge += WANDER_S * noise[0]
        self._period *= 1 + PERIOD_WANDER * noise[1]

    def _resample(self) -> None:
        """Likely guesses multiply, unlikely ones go; a little noise keeps copies apart."""
        ladder = (self._random.random() + np.arange(GUESSES)) / GUESSES
        chosen = np.minimum(np.searchsorted(np.cumsum(self._weight), ladder), GUESSES - 1)
        noise = 0.1 * self._random.standard_normal((2, GUESSES))
        self._edge, self._period = self._edge[chosen], self._period[chosen]
        self._edge += noise[0] * float(self._edge.std())
        self._period += noise[1] * float(self._period.std())
        self._weight = np.full(GUESSES, 1 / GUESSES)

    def _sum_up(self) -> None:
        """The guesses in four figures: the period, and when the next update comes."""
        self.period_s = float(self._weight @ self._period)
        ahead = self._edge + self._passed * self._period + self._period
        order = np.argsort(ahead)
        places = np.searchsorted(np.cumsum(self._weight[order]), (TAIL, 0.5, 1 - TAIL))
        chosen = ahead[order[np.minimum(places, GUESSES - 1)]]
        self.earliest_s, self.next_s, self.latest_s = chosen.tolist()
