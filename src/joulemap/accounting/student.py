"""Student's t distribution, as far as intervals of means and their comparison need it."""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from joulemap.traces import Float64

_TERMS = 300
_MOST_STEPS = 100
_TINY = 1e-300
_NORMAL_FROM = 1e7
_LOG_GAMMA = np.vectorize(math.lgamma, otypes=[float])


NORMAL_975 = 1.959964
"""How many standard errors make a 95 % interval where the spread is known."""


@cache
def student_975(freedom: int) -> float:
    """How many standard errors make a 95 % interval where the spread is known to some degrees of freedom."""
    return float(two_sided_t(np.array([0.05]), np.array([float(freedom)]))[0]) if freedom > 0 else math.inf


def two_sided_p(t: Float64, freedom: Float64) -> Float64:
    """The chance of a value at least as far from zero; ``freedom`` may be infinite."""
    freedom = np.minimum(freedom, _NORMAL_FROM)
    x = freedom / (freedom + np.asarray(t, np.float64) ** 2)
    return _incomplete_beta(freedom / 2, np.full_like(x, 0.5), x)


def two_sided_t(p: Float64, freedom: Float64) -> Float64:
    """The value that is exceeded, on either side, with chance ``p``: 1.96 for 0.05 and infinite freedom.

    Newton's way from below: the chance falls ever more slowly, so no step goes too far.
    """
    t = np.zeros_like(freedom)
    for _ in range(_MOST_STEPS):
        step = (two_sided_p(t, freedom) - p) / (2 * _density(t, freedom))
        t = t + step
        if (np.abs(step) <= 1e-10 * t).all():
            break
    return t


def _density(t: Float64, freedom: Float64) -> Float64:
    freedom = np.minimum(freedom, _NORMAL_FROM)
    front = _LOG_GAMMA((freedom + 1) / 2) - _LOG_GAMMA(freedom / 2) - np.log(freedom * math.pi) / 2
    return np.asarray(np.exp(front - (freedom + 1) / 2 * np.log1p(t**2 / freedom)), np.float64)


def _incomplete_beta(a: Float64, b: Float64, x: Float64) -> Float64:
    """The regularised incomplete beta function, by its continued fraction from the side where it is short."""
    turned = x > (a + 1) / (a + b + 2)
    first, second = np.where(turned, b, a), np.where(turned, a, b)
    part = np.where(turned, 1 - x, x)
    value = _front(first, second, part) * _fraction(first, second, part)
    return np.clip(np.where(turned, 1 - value, value), 0.0, 1.0)


def _front(a: Float64, b: Float64, x: Float64) -> Float64:
    with np.errstate(divide="ignore"):
        logarithm = a * np.log(x) + b * np.log1p(-x)
    return np.asarray(np.exp(_LOG_GAMMA(a + b) - _LOG_GAMMA(a) - _LOG_GAMMA(b) + logarithm) / a, np.float64)


def _fraction(a: Float64, b: Float64, x: Float64) -> Float64:
    """Lentz's way through the fraction, all values side by side."""
    c, d = np.ones_like(x), 1 / _off_zero(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, _TERMS):
        for factor in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d, c = 1 / _off_zero(1 + factor * d), _off_zero(1 + factor / c)
            value = value * d * c
        if np.abs(d * c - 1).max(initial=0.0) < 1e-14:
            break
    return value


def _off_zero(value: Float64) -> Float64:
    return np.where(np.abs(value) < _TINY, _TINY, value)
