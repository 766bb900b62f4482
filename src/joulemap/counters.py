"""From a sensor's raw readings to intervals: in order, without repeats, with gaps marked."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from joulemap.units import NS_PER_S

FEWEST_UPDATES = 4
"""Changes of a counter from which its update period can be told."""


def in_order(
    t_ns: NDArray[np.int64], values: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Readings in order of time; the last one where two share a timestamp."""
    if (np.diff(t_ns) < 0).any():
        order = np.argsort(t_ns, kind="stable")
        t_ns, values = t_ns[order], values[order]
    last_of_its_time = np.append(np.diff(t_ns) > 0, True) if len(t_ns) else np.zeros(0, bool)
    return t_ns[last_of_its_time], values[last_of_its_time]


def updates(
    t_ns: NDArray[np.int64], increase: NDArray[np.float64], period_s: float | None
) -> NDArray[np.bool_]:
    """Which readings of a counter are edges: all; or, where it is polled faster than it updates, the first,
    those with a new value, and those that stay unchanged for longer than an update takes."""
    if not len(t_ns):
        return np.zeros(0, bool)
    changed = np.concatenate(([True], increase > 0))
    if period_s is None:
        if changed.sum() < FEWEST_UPDATES or changed.mean() > 0.75:
            return np.ones(len(t_ns), bool)
        period_s = float(np.median(np.diff(t_ns[changed]))) / NS_PER_S
    since_change = t_ns - np.maximum.accumulate(np.where(changed, t_ns, t_ns[0]))
    kept = changed | (since_change > 1.5 * period_s * NS_PER_S)
    # A counter that never moved was measured to the end.
    kept[-1] |= not changed[1:].any()
    return np.asarray(kept)


def gaps(edges_ns: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Intervals ten times as long as the usual one: the sensor was not read there."""
    length = np.diff(edges_ns)
    return np.asarray(length > 10 * np.median(length)) if len(length) else np.zeros(0, bool)
