"""From the steps that were traced to the steps that were only metered.

Tracing costs, so a few steps are traced and every step is metered. The measured energy of an untraced
step goes to operations and idle in the proportions of the traced steps of the same label (``train``,
``test``; ``alike`` may tell more of them apart), or of their costs where these are calibrated; where none
was traced, it stays *untraced*. Every joule is measured; only who it goes to is projected, and marked so.

A tracer makes the program slower, not an accelerator's work: a GPU waits longer in a step that is traced.
So the waiting in an untraced step is what it took less the work of the traced ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joulemap.traces import Float64, Steps
from joulemap.units import NS_PER_S


@dataclass(frozen=True, eq=False)
class Projection:
    """What each traced step stands for beside itself: per step, the extra energy, time and executions
    as multiples of its own; of its idle part only ``idle`` times as much. ``unplaced_j`` has no traced step
    to go by; so many of the domain's seconds went with it, ``unplaced_s``, in steps that ``lasted_s``."""

    energy: Float64
    seconds: Float64
    calls: Float64
    idle: Float64
    unplaced_j: float
    unplaced_s: float
    lasted_s: float

    @classmethod
    def none(cls) -> Projection:
        """Without steps there is nothing to project."""
        return cls(np.zeros(0), np.zeros(0), np.zeros(0), np.zeros(0), 0.0, 0.0, 0.0)


@dataclass(frozen=True, eq=False)
class StepParts:
    """What each step was found to take, in joules or seconds: its work and its idle part; and what an
    untraced one took as a whole."""

    work: Float64
    idle: Float64
    untraced: Float64


def project(steps: Steps, energy: StepParts, seconds: StepParts, waits_for_host: bool) -> Projection:
    """``waits_for_host`` says that the device's own work is as fast in a traced step as in another."""
    ones = np.ones(len(steps))
    idle = _idle(steps, seconds) if waits_for_host else ones
    more_j, left = _extra(steps, energy.work + idle * energy.idle, energy.untraced)
    more_s, left_s = _extra(steps, seconds.work + idle * seconds.idle, seconds.untraced)
    calls, _ = _extra(steps, ones, ones)
    unplaced_j, unplaced_s = float(energy.untraced[left].sum()), float(seconds.untraced[left_s].sum())
    lasted_s = float((steps.end_ns - steps.start_ns)[left].sum()) / NS_PER_S
    return Projection(more_j, more_s, calls, idle, unplaced_j, unplaced_s, lasted_s)


def _idle(steps: Steps, seconds: StepParts) -> Float64:
    """How much of its idle time a traced step would have had, had it not been traced."""
    ratio = np.ones(len(steps))
    for code in np.unique(steps.label.codes):
        alike = steps.label.codes == code
        models, others = alike & steps.traced, alike & ~steps.traced
        idle_s = seconds.idle[models].sum()
        if others.any() and idle_s > 0:
            expected_s = seconds.untraced[others].mean() - seconds.work[models].mean()
            ratio[models] = max(expected_s, 0.0) * models.sum() / idle_s
    return ratio


def _extra(steps: Steps, basis: Float64, amount: Float64) -> tuple[Float64, NDArray[np.bool_]]:
    """As multiples of each traced step's own, and the untraced ones that none stands for."""
    extra, left = np.zeros(len(steps)), np.zeros(len(steps), bool)
    for code in np.unique(steps.label.codes):
        alike = steps.label.codes == code
        others = alike & ~steps.traced
        missing = float(amount[others].sum())
        if not missing:
            continue
        models = steps.traced & alike
        known = basis[models].sum()
        if known > 0:
            extra[models] += missing / known
        else:
            left |= others
    return extra, left
