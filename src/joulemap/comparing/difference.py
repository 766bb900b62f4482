"""What changed between two variants, name by name: the difference, its interval, and a verdict.

Costs that both were shared by are off alike, so of these only the difference is off; other costs are each off
by themselves.

With repeats on both sides the interval is Welch's: what counts is how much runs differ. With repeats on one
side, the other is taken to spread alike. With one recording each, only what is known within a recording is
left, and the verdict says nothing about how runs differ.

Verdicts hold together: Holm's correction makes the chance that any *more* or *less* of a table is wrong at
most 5 %, however its rows depend on each other; and they do, since modules nest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from joulemap.accounting.student import two_sided_p, two_sided_t
from joulemap.comparing.variant import Amount
from joulemap.traces import Float64

Verdict = Literal["more", "less", "no difference seen", "cannot tell"]

CHANCE = 0.05

_ANY_CHANGE = 100.0
"""As a logarithm: what may have grown by that much may have done anything."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One name in two variants: means, their difference with a 95 % interval, absolute and relative, and
    the verdict. The interval is of this row alone; ``p_corrected`` and the verdict of all rows together.
    Without ``spread`` the row was seen in one step only: the interval is that of the meters, and no verdict
    stands on it. The last two are the means that sharing by time alone gives."""

    name: str
    base_j: float
    variant_j: float
    low_j: float
    high_j: float
    relative_low: float | None
    relative_high: float | None
    p_corrected: float
    verdict: Verdict
    spread: bool
    base_time_based_j: float
    variant_time_based_j: float

    @property
    def difference_j(self) -> float:
        """What is left of rounding is no difference."""
        same = math.isclose(self.variant_j, self.base_j, rel_tol=1e-12)
        return 0.0 if same else self.variant_j - self.base_j

    @property
    def relative(self) -> float | None:
        """The change as a part of the base; None where that drew nothing."""
        return self.difference_j / self.base_j if self.base_j > 0 else None

    @property
    def time_based_relative(self) -> float | None:
        """The change that sharing by time alone sees."""
        base_j = self.base_time_based_j
        return (self.variant_time_based_j - base_j) / base_j if base_j > 0 else None


@dataclass(frozen=True, eq=False)
class _Estimate:
    """Means, standard errors of the difference and of the ratio's logarithm, and degrees of freedom."""

    base_j: Float64
    variant_j: Float64
    error_j: Float64
    log_error: Float64
    freedom: Float64
    known: NDArray[np.bool_]


def differences(
    names: Sequence[str],
    base: Sequence[dict[str, Amount]],
    variant: Sequence[dict[str, Amount]],
    margin: float,
    chance: float = CHANCE,
) -> list[Difference]:
    """Compare the names that both have. ``margin`` is the relative change below which none is worth naming:
    an interval that lies inside it says *no difference seen*, one that does not, *cannot tell*."""
    if not names:
        return []
    samples = _Sample.of(names, base), _Sample.of(names, variant)
    found = _estimate(*samples)
    half_t = two_sided_t(np.full(len(names), chance), found.freedom)
    difference, half_j = found.variant_j - found.base_j, half_t * found.error_j
    corrected = holm(_p(difference, found))
    sure = found.known & (corrected <= chance)
    small = found.known & (np.abs(difference) + half_j <= margin * found.base_j)
    relative = _relative(found, half_t)
    return [
        Difference(
            name,
            float(found.base_j[row]),
            float(found.variant_j[row]),
            float(difference[row] - half_j[row]),
            float(difference[row] + half_j[row]),
            relative[row][0],
            relative[row][1],
            float(corrected[row]),
            _verdict(float(difference[row]), bool(sure[row]), bool(small[row])),
            bool(found.known[row]),
            *(float(sample.time_based_j[row]) for sample in samples),
        )
        for row, name in enumerate(names)
    ]


def _verdict(difference_j: float, sure: bool, small: bool) -> Verdict:
    if sure:
        return "more" if difference_j > 0 else "less"
    return "no difference seen" if small else "cannot tell"


@dataclass(frozen=True, eq=False)
class _Sample:
    """Energies and errors, a row for each name and a column for each recording; whether the errors are known,
    the mean that sharing by time alone gives, how far off costs are on the mean, and which these are. What a
    recording does not have, got nothing in it."""

    energy_j: Float64
    error_j: Float64
    known: NDArray[np.bool_]
    time_based_j: Float64
    cost_j: Float64
    costs: list[set[frozenset[str]]]

    @classmethod
    def of(cls, names: Sequence[str], runs: Sequence[dict[str, Amount]]) -> _Sample:
        nothing = Amount(0.0, 0.0, True, 0.0)
        amounts = [[run.get(name, nothing) for run in runs] for name in names]
        return cls(
            np.array([[amount.energy_j for amount in row] for row in amounts]),
            np.array([[amount.error_j for amount in row] for row in amounts]),
            np.array([all(amount.known for amount in row) for row in amounts]),
            np.array([np.mean([amount.time_based_j for amount in row]) for row in amounts]),
            np.array([np.mean([amount.cost_j for amount in row]) for row in amounts]),
            [{amount.costs for amount in row} for row in amounts],
        )

    @property
    def runs(self) -> int:
        return int(self.energy_j.shape[1])


def _estimate(base: _Sample, variant: _Sample) -> _Estimate:
    means = base.energy_j.mean(axis=1), variant.energy_j.mean(axis=1)
    if max(base.runs, variant.runs) == 1:
        squares = base.error_j[:, 0] ** 2, variant.error_j[:, 0] ** 2
        freedom, known = np.full(len(means[0]), np.inf), base.known & variant.known
    else:
        squares, freedom = _between_runs(base.energy_j, variant.energy_j)
        known = np.ones(len(means[0]), bool)
    scale = [np.where(mean > 0, mean, np.nan) for mean in means]
    alike = np.array(
        [one == other and len(one) == 1 for one, other in zip(base.costs, variant.costs, strict=True)]
    )
    off = [np.nan_to_num(one.cost_j / mean) for one, mean in zip((base, variant), scale, strict=True)]
    alike_j = np.maximum(*off) * np.abs(means[1] - means[0])
    cost_j = np.where(alike, alike_j, np.hypot(base.cost_j, variant.cost_j))
    log_cost = np.where(alike, 0.0, np.hypot(*off))
    log_error = np.sqrt(squares[0] / scale[0] ** 2 + squares[1] / scale[1] ** 2 + log_cost**2)
    error_j = np.sqrt(squares[0] + squares[1] + cost_j**2)
    return _Estimate(*means, error_j, log_error, freedom, known)


def _between_runs(base: Float64, variant: Float64) -> tuple[tuple[Float64, Float64], Float64]:
    """The squared errors of the two means, and Welch's degrees of freedom for their difference: at most those
    of the smaller side twice, beyond which few runs against many would be too sure of themselves."""
    variances = [one.var(axis=1, ddof=1) if one.shape[1] > 1 else None for one in (base, variant)]
    assumed = next(one for one in variances if one is not None)
    squares = [
        (assumed if one is None else one) / runs.shape[1]
        for one, runs in zip(variances, (base, variant), strict=True)
    ]
    if any(one is None for one in variances):
        return (squares[0], squares[1]), np.full(len(base), max(base.shape[1], variant.shape[1]) - 1.0)
    terms = [square**2 / (runs.shape[1] - 1) for square, runs in zip(squares, (base, variant), strict=True)]
    total = (squares[0] + squares[1]) ** 2
    below = terms[0] + terms[1]
    most = 2 * (min(base.shape[1], variant.shape[1]) - 1.0)
    freedom = np.divide(total, below, out=np.full(len(base), most), where=below > 0)
    return (squares[0], squares[1]), np.minimum(freedom, most)


def _p(difference: Float64, found: _Estimate) -> Float64:
    """The chance of such a difference where there is none; without an error there is one or there is not."""
    sure = np.where(difference == 0, 0.0, np.inf)
    t = np.divide(np.abs(difference), found.error_j, out=sure, where=found.error_j > 0)
    p = two_sided_p(np.where(np.isinf(t), 0.0, t), found.freedom)
    return np.where(np.isinf(t), 0.0, p)


def _relative(found: _Estimate, half_t: Float64) -> list[tuple[float, float] | tuple[None, None]]:
    """The interval of the relative change, from the logarithm of the ratio, which both errors widen; None
    where an error is not known, or so large that any change is inside it."""
    positive = (found.base_j > 0) & (found.variant_j > 0) & (half_t * found.log_error < _ANY_CHANGE)
    positive &= found.known
    ratio = np.divide(found.variant_j, found.base_j, out=np.ones(len(positive)), where=positive)
    half = np.where(positive, half_t * found.log_error, 0.0)
    low, high = np.expm1(np.log(ratio) - half).tolist(), np.expm1(np.log(ratio) + half).tolist()
    return [(low[row], high[row]) if there else (None, None) for row, there in enumerate(positive.tolist())]


def holm(p: Float64) -> Float64:
    """Corrected for many comparisons, step by step down from the smallest (Holm 1979)."""
    order = np.argsort(p, kind="stable")
    stepped = np.minimum(p[order] * np.arange(len(p), 0, -1), 1.0)
    corrected = np.empty_like(stepped)
    corrected[order] = np.maximum.accumulate(stepped)
    return corrected
