"""Energy against size: a straight line, how sure it is, and whether it is straight at all.

An ordinary least-squares line with 95 % intervals of its slope and its offset. Whether it bends is asked by a
parabola through the same points: it does where the curved part is surely not zero *and* takes the middle of
the line off by more than a twentieth of its rise. A bend that is smaller is of no use to anybody.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from joulemap.accounting.student import student_975
from joulemap.errors import InputError
from joulemap.traces import Float64

Shape = Literal["proportional", "linear", "not linear", "flat", "not known"]
"""``proportional``: a line through zero. ``linear``: a line with an offset. ``flat``: it does not grow with
size, as far as can be seen. ``not known``: fewer than three sizes, or no spread to judge by."""

BEND = 0.05
"""How far a parabola may take the middle of a line off, over its rise, before it is no line."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def may_be_zero(self) -> bool:
        return self.low <= 0 <= self.high


@dataclass(frozen=True, slots=True)
class Fit:
    """``energy = offset_j + slope_j * size``. ``bend`` is the parabola's way off the line, over its rise;
    ``r`` is Pearson's correlation, not a number (NaN) where nothing varies."""

    count: int
    sizes: int
    slope_j: Estimate
    offset_j: Estimate
    bend: Estimate
    r: float
    shape: Shape


def fit(size: ArrayLike, energy_j: ArrayLike) -> Fit:
    """The line through points, of which there must be two or more sizes."""
    sizes, energy = np.asarray(size, np.float64), np.asarray(energy_j, np.float64)
    if len(sizes) != len(energy) or len(np.unique(sizes)) < 2:
        raise InputError("A line needs two or more sizes, each with its energy.", "Give more sizes.")
    line, line_error = _least_squares(np.column_stack((np.ones(len(sizes)), sizes)), energy)
    offset, slope = (_estimate(v, e, len(sizes) - 2) for v, e in zip(line, line_error, strict=True))
    bend = _bend(sizes, energy, abs(slope.value) * float(np.ptp(sizes)))
    distinct = len(np.unique(sizes))
    shape = _shape(slope, offset, bend) if distinct > 2 and len(sizes) > 3 else "not known"
    return Fit(len(sizes), distinct, slope, offset, bend, pearson(sizes, energy), shape)


def pearson(x: ArrayLike, y: ArrayLike) -> float:
    """The correlation of two columns; not a number where one of them does not vary."""
    a, b = np.asarray(x, np.float64), np.asarray(y, np.float64)
    a, b = a - a.mean(), b - b.mean()
    both = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / both if both > 0 else float("nan")


def _shape(slope: Estimate, offset: Estimate, bend: Estimate) -> Shape:
    if slope.may_be_zero:
        return "flat"
    if not bend.may_be_zero and abs(bend.value) > BEND:
        return "not linear"
    return "proportional" if offset.may_be_zero else "linear"


def _bend(sizes: Float64, energy: Float64, rise_j: float) -> Estimate:
    """How far the middle of a parabola lies below its chord: above zero where energy grows ever faster."""
    middle, half = float(sizes.min() + sizes.max()) / 2, float(np.ptp(sizes)) / 2
    place = (sizes - middle) / half
    if len(np.unique(sizes)) < 3 or len(sizes) < 4 or rise_j <= 0:
        return Estimate(0.0, -np.inf, np.inf)
    curve, error = _least_squares(np.column_stack((np.ones(len(place)), place, place**2)), energy)
    found = _estimate(curve[2], error[2], len(place) - 3)
    return Estimate(found.value / rise_j, found.low / rise_j, found.high / rise_j)


def _least_squares(columns: Float64, energy: Float64) -> tuple[list[float], list[float]]:
    """The coefficients and their standard errors; columns are scaled, for sizes may be in the millions."""
    scale = np.abs(columns).max(axis=0)
    scaled = columns / np.where(scale > 0, scale, 1.0)
    inverse = np.linalg.pinv(scaled.T @ scaled)
    found = inverse @ scaled.T @ energy
    freedom = len(energy) - columns.shape[1]
    left = energy - scaled @ found
    variance = float(left @ left) / freedom if freedom > 0 else np.inf
    error = np.sqrt(np.diag(inverse) * variance) / scale
    return (found / scale).tolist(), error.tolist()


def _estimate(value: float, error: float, freedom: int) -> Estimate:
    half = student_975(freedom) * error if freedom > 0 else np.inf
    return Estimate(float(value), float(value - half), float(value + half))
