"""From the steps that were traced to the steps that were only metered.

Tracing costs, so a few steps are traced and every step is metered. The measured energy of an untraced
step goes to operations and idle in the proportions of the traced steps of the same label (``train``,
``test``), or of their costs where these are calibrated; where none was traced, it stays *untraced*. Every
joule is measured; only who it goes to is projected, and marked so.

A tracer makes the program slower, not an accelerator's work: a GPU waits longer in a step that is traced.
So the waiting in an untraced step is what it took less the work of the traced ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joulemap.program import SLICE
from joulemap.traces import Float64, Int64, Steps
from joulemap.units import NS_PER_S, fmt_seconds

NEAR, FEWEST = 3, 10
"""Steps on each side of a traced one that tell how long it would have taken, and of how many it is asked."""
UNLIKE = 2.0
"""Steps that take so many times as long as others do something else; by less a busy host varies."""
SOME = 0.1
"""So many of them, and not just one that was held up, or the first ones, which are never traced."""
_OFF = "what is projected from these may be off. joulemap run --steps traces others."


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


def unlike(steps: Steps, ended_ns: Int64) -> list[str]:
    """What to say where traced steps are unlike those that they stand for: these were slow then, while the
    program warmed up, or are of several kinds, of which the long ones were not traced. ``ended_ns`` is when
    all that began in each step was over."""
    said = []
    for code in np.unique(steps.label.codes[steps.traced]).tolist():
        alike = steps.label.codes == code
        others, traced = np.flatnonzero(alike & ~steps.traced), np.flatnonzero(alike & steps.traced)
        if len(others) < FEWEST or steps.label.words[code] == SLICE:  # whose lengths say nothing
            continue
        lasted_s = (steps.end_ns - steps.start_ns)[others] / NS_PER_S
        near_s, usual_s = _near_s(lasted_s, np.searchsorted(others, traced)), float(np.median(lasted_s))
        took_s, mean_s = float((ended_ns - steps.start_ns)[traced].max()) / NS_PER_S, float(lasted_s.mean())
        name = steps.label.words[code]
        longer = float((lasted_s > UNLIKE * took_s).mean())
        if mean_s > UNLIKE * took_s and longer > SOME:
            took = f"Steps of {name} that were traced took {fmt_seconds(took_s)} at most, and all of them "
            said.append(f"{took}{fmt_seconds(mean_s)} on the mean: {_OFF}")
        elif near_s > UNLIKE * usual_s:
            took = f"Steps of {name} took {fmt_seconds(near_s)} when they were traced, and mostly "
            said.append(f"{took}{fmt_seconds(usual_s)}: {_OFF}")
    return said


def _near_s(lasted_s: Float64, following: Int64) -> float:
    """How long traced steps, which are slower, would have taken: as a few before them do, or after them,
    whichever are shorter."""
    next_one = following[:, None]
    before, after = next_one - 1 - np.arange(NEAR), next_one + np.arange(NEAR)
    sides = (one[(one >= 0) & (one < len(lasted_s))] for one in (before, after))
    return min(float(np.median(lasted_s[side])) for side in sides if len(side))
