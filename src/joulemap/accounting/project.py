"""From the steps that were traced to the steps that were only metered.

Tracing costs, so a few steps are traced and every step is metered. The measured energy of an untraced
step goes to operations and idle in the proportions of the traced steps of the same label (``train``,
``test``); where none of these was traced, it stays *untraced*. Every joule is measured; only who it goes
to is projected, and marked so.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from joulemap.traces import Float64, Steps


@dataclass(frozen=True, eq=False)
class Projection:
    """What each traced step stands for beside itself: per step, the extra energy, time and executions
    as multiples of its own. ``unplaced_j`` has no traced step to go by."""

    energy: Float64
    seconds: Float64
    calls: Float64
    unplaced_j: float
    unplaced_s: float

    @classmethod
    def none(cls) -> Projection:
        """Without steps there is nothing to project."""
        return cls(np.zeros(0), np.zeros(0), np.zeros(0), 0.0, 0.0)


def project(
    steps: Steps, traced_j: Float64, traced_s: Float64, untraced_j: Float64, untraced_s: Float64
) -> Projection:
    """``traced_j[i]`` and ``traced_s[i]`` are what step ``i`` was found to cost (attributed and idle)."""
    ones = np.ones(len(steps))
    energy, unplaced_j = _extra(steps, traced_j, untraced_j)
    seconds, unplaced_s = _extra(steps, traced_s, untraced_s)
    calls, _ = _extra(steps, ones, ones)
    return Projection(energy, seconds, calls, unplaced_j, unplaced_s)


def _extra(steps: Steps, basis: Float64, amount: Float64) -> tuple[Float64, float]:
    extra, unplaced = np.zeros(len(steps)), 0.0
    for code in np.unique(steps.label.codes):
        alike = steps.label.codes == code
        missing = float(amount[alike & ~steps.traced].sum())
        if not missing:
            continue
        models = steps.traced & alike
        known = basis[models].sum()
        if known > 0:
            extra[models] += missing / known
        else:
            unplaced += missing
    return extra, unplaced
