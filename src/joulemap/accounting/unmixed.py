"""What each kind of time drew, where updates of the meter are of several kinds at once.

An update says what was drawn in all. Spread evenly over its time, each kind gives a part of its power to
those beside it, at every border and always to the same side: the more, the shorter its stretches are. But
updates have other parts of each kind, and so they tell what each draws: a mean power of each is fitted to
them, and what even spreading gave away is taken back. That moves energy from kind to kind inside of updates,
and changes no sum.

It is as sure as the updates let it be. Where kinds take turns so evenly that all updates are alike, nothing
is told, and each may have drawn what the readings allow. What the fit does not explain of an update may all
be of one kind, and of the same one each time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from joulemap.accounting.student import NORMAL_975
from joulemap.accounting.sums import sums_by
from joulemap.traces import Float64, Int64

MOST_KINDS = 256
"""Of more, each keeps what even spreading gives it, and no update is explained."""
MOST_TIMES = 10.0
"""How many times as much as the most that the meter saw may be drawn by what is shorter than its updates."""
TIMED = 0.05
"""How well steps and updates are timed against each other, in updates: a host is ahead of its device."""
VARIES = 0.3
"""How much the power of one kind varies, as far as one update tells; many updates tell it themselves."""
_TIMES = 3
"""How often the fit is made, each with what the one before has left unexplained."""
_CELLS = 1 << 21


@dataclass(frozen=True, eq=False)
class Mixture:
    """``seconds[i]`` of ``kind[i]`` are in ``update[i]``; each update took ``update_s`` and ``update_j``."""

    update: Int64
    kind: Int64
    seconds: Float64
    update_s: Float64
    update_j: Float64
    kinds: int

    @classmethod
    def of(cls, update: Int64, kind: Int64, seconds: Float64, update_j: Float64, kinds: int) -> Mixture:
        """Of pieces of time, those of an update after those of the one before. Updates without time are
        left out."""
        update_s = sums_by(update, seconds, len(update_j))
        known = update_s > 0
        number = np.cumsum(known) - 1
        cell, place = np.unique((number[update] * kinds + kind)[known[update]], return_inverse=True)
        inside_s = sums_by(place, seconds[known[update]], len(cell))
        return cls(cell // kinds, cell % kinds, inside_s, update_s[known], update_j[known], kinds)

    @property
    def part(self) -> Float64:
        """What of its update's time each kind has."""
        return self.seconds / self.update_s[self.update]

    def of_kinds(self, amounts: Float64) -> Float64:
        """The sum over updates of what each kind has there."""
        return sums_by(self.kind, amounts, self.kinds)

    def together(self, weights: Float64, update_weight: Float64) -> Float64:
        """The sum over updates of the products of each two kinds' weights there."""
        sums = np.zeros((self.kinds, self.kinds))
        rows = max(_CELLS // self.kinds, 1)
        for first in range(0, len(self.update_s), rows):
            begin, end = np.searchsorted(self.update, [first, first + rows])
            dense = np.zeros((min(rows, len(self.update_s) - first), self.kinds))
            dense[self.update[begin:end] - first, self.kind[begin:end]] = weights[begin:end]
            sums += dense.T @ (dense * update_weight[first : first + rows, None])
        return sums


@dataclass(frozen=True, eq=False)
class Unmixed:
    """What each kind drew; how far off that may be by its mean power (a covariance); and what of each update
    the mean powers do not explain."""

    mixture: Mixture
    energy_j: Float64
    covariance: Float64 | None
    unexplained_j: Float64

    def energy_of(self, times: Float64) -> float:
        """Of some kinds together, each so many times."""
        return float(times @ self.energy_j)

    def rms_of(self, times: Float64) -> float:
        """How far off that may be. What is not explained counts as far as it may be of these or of others,
        and adds up over updates."""
        mixture = self.mixture
        within = sums_by(
            mixture.update, np.minimum(times, 1)[mixture.kind] * mixture.part, len(mixture.update_s)
        )
        either = np.sqrt(np.clip(within * (1 - within), 0.0, None))
        fitted = 0.0 if self.covariance is None else max(float(times @ self.covariance @ times), 0.0)
        return float(np.hypot(np.sqrt(fitted), np.abs(self.unexplained_j) @ either))


def unmixed(mixture: Mixture) -> Unmixed:
    """Fit a mean power of each kind to the updates, and take back what even spreading gave to others."""
    evenly_j = mixture.of_kinds(mixture.part * mixture.update_j[mixture.update])
    if not mixture.update_j.any() or mixture.kinds > MOST_KINDS:
        return Unmixed(mixture, evenly_j, None, mixture.update_j)
    shared_s = mixture.together(mixture.seconds, 1 / mixture.update_s)
    given_s = np.diag(shared_s.sum(axis=1)) - shared_s  # seconds of each that count at another's power
    power_w, power_2, unexplained_j = _fitted(mixture, shared_s, evenly_j)
    moved_j, covariance = _above_zero(evenly_j, given_s @ power_w), given_s @ power_2 @ given_s.T
    found = Unmixed(mixture, evenly_j + moved_j, covariance, unexplained_j)
    rms_j = np.array([found.rms_of(one) for one in np.eye(mixture.kinds)])
    if (np.abs(moved_j) > NORMAL_975 * rms_j).any():
        return found
    # Where nothing is told, it stays where time alone says, as that of single steps does.
    return Unmixed(mixture, evenly_j, covariance + np.outer(moved_j, moved_j), unexplained_j)


def _fitted(mixture: Mixture, shared_s: Float64, evenly_j: Float64) -> tuple[Float64, Float64, Float64]:
    """The mean power of each kind, its covariance, and what that leaves unexplained of each update. As far as
    updates do not tell, powers are held to what is known before."""
    mean_w, unsure_w = _before(mixture)
    untimed_s, variance = _untimed(mixture), (VARIES * mean_w) ** 2 * mixture.update_s.mean()
    least, freedom = variance, max(len(mixture.update_s) - mixture.kinds, 0) + 1
    for _ in range(_TIMES):
        held = np.diag(variance / unsure_w**2) + untimed_s
        inverse = np.linalg.inv(shared_s + held)
        power_w = mean_w + inverse @ (evenly_j - mean_w * shared_s.sum(axis=1))
        modelled_j = sums_by(mixture.update, mixture.seconds * power_w[mixture.kind], len(mixture.update_s))
        unexplained_j = mixture.update_j - modelled_j
        variance = (float((unexplained_j**2 / mixture.update_s).sum()) + least) / freedom
    spread = variance * shared_s + held @ np.diag(unsure_w**2) @ held.T
    return power_w, inverse @ spread @ inverse, unexplained_j


def _before(mixture: Mixture) -> tuple[float, Float64]:
    """What is known of each kind's power before it is fitted: it is the mean, or anything from zero to what
    the updates that it is in allow; half of how far that is away."""
    mean_w = float(mixture.update_j.sum() / mixture.update_s.sum())
    touched_j = mixture.of_kinds(np.where(mixture.seconds > 0, mixture.update_j[mixture.update], 0.0))
    allowed_w = touched_j / np.maximum(mixture.of_kinds(mixture.seconds), 1e-9)
    most_w = np.minimum(allowed_w, MOST_TIMES * float((mixture.update_j / mixture.update_s).max()))
    return mean_w, np.maximum(np.maximum(mean_w, most_w - mean_w) / 2, 1e-9)


def _untimed(mixture: Mixture) -> Float64:
    """What differences between updates there are that may be of their timing alone, and tell nothing: of each
    two kinds that are in one together, in the seconds of ``together``. What is there for less differs by no
    more than it is there."""
    differs = np.minimum(mixture.part / TIMED, 1.0)
    square_s = TIMED**2 * mixture.update_s
    count = sums_by(mixture.update, differs, len(square_s))
    of_each = mixture.of_kinds(differs * square_s[mixture.update])
    return np.asarray(np.diag(of_each) - mixture.together(differs, square_s / count), np.float64)


def _above_zero(energy_j: Float64, moved_j: Float64) -> Float64:
    """As much of what is moved as leaves no kind with less than nothing."""
    short = energy_j + moved_j < 0
    return moved_j * float((energy_j[short] / -moved_j[short]).min(initial=1.0))
