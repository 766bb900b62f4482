"""Sums by group, and running sums: the two additions that all of accounting is made of."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from joulemap.traces import Float64


def sums_by(group: NDArray[np.integer], amounts: Float64, count: int) -> Float64:
    """The sum of the amounts of each group, groups being numbered from 0 to ``count``."""
    return np.asarray(np.bincount(group, amounts, count), np.float64)


def running(amounts: Float64) -> Float64:
    """The running sum at each border: one more than there are amounts, from zero."""
    total = np.empty(len(amounts) + 1)
    total[0] = 0.0
    np.cumsum(amounts, out=total[1:])
    return total
