"""Columns as they come from outside, checked once and then read-only.

Whatever cannot be right is refused here, with the row that is wrong, so that nobody has to ask again.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from joulemap.errors import InputError

Scalar = TypeVar("Scalar", bound=np.generic)

LATEST_NS = 1 << 62
"""Times must be nearer to 1970 than this (to the year 2116), so that differences do not overflow."""


def times_ns(values: ArrayLike, what: str) -> NDArray[np.int64]:
    """Epoch nanoseconds; floats are cut to whole ones."""
    column = _numbers(values, what, "nanoseconds since 1970")
    if len(column) and not (float(column.min()) > -LATEST_NS and float(column.max()) < LATEST_NS):
        far = ~(np.abs(column.astype(np.float64)) < LATEST_NS)
        refuse(what, far, "are no times in nanoseconds since 1970", "Check the clock and the unit.")
    return _frozen(column.astype(np.int64, copy=False), values)


def amounts(values: ArrayLike, what: str) -> NDArray[np.float64]:
    """Finite numbers: joules, watts, shares."""
    column = _numbers(values, what, "numbers")
    refuse(what, ~np.isfinite(column), "are not finite", "Leave out readings that failed.")
    return _frozen(column.astype(np.float64, copy=False), values)


def step_numbers(values: ArrayLike, what: str) -> NDArray[np.int32]:
    """Whole numbers from 0, or -1 for none."""
    column = _numbers(values, what, "numbers of steps")
    bad = ~((column >= -1) & (column == np.rint(column)))
    refuse(what, bad, "are no steps", "Steps are numbered from 0; -1 is none.")
    return _frozen(column.astype(np.int32, copy=False), values)


def refuse(what: str, bad: NDArray[np.bool_], how: str, hint: str) -> None:
    """Raise where any value is bad, naming the first."""
    if bad.any():
        count = int(bad.sum())
        raise InputError(f"{count:,} of {what} {how}, first in row {int(np.argmax(bad))}.", hint)


def _numbers(values: ArrayLike, what: str, meaning: str) -> NDArray[Any]:
    column = np.asarray(values)
    if column.ndim != 1:
        raise InputError(f"{what} must be a column.", f"Give a list or an array of {meaning}.")
    if not len(column):
        return np.zeros(0)
    if column.dtype.kind not in "iuf":
        raise InputError(f"{what} must be {meaning}, not {column.dtype}.", "Convert the column to numbers.")
    if column.dtype.kind == "f":
        refuse(what, np.isnan(column), "are not finite", "Leave out readings that failed.")
    return column


def _frozen(column: NDArray[Scalar], given: ArrayLike) -> NDArray[Scalar]:
    """Nobody else's to change: what the caller can still write to is copied."""
    if isinstance(given, np.ndarray) and given.flags.writeable and np.may_share_memory(column, given):
        column = column.copy()
    column = column.view()
    column.flags.writeable = False
    return column
