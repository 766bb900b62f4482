"""What the costs of a recording's operations add up to, beside what was measured of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np

from joulemap.accounting.alike import told_apart
from joulemap.calibration.book import Calibration
from joulemap.calibration.operation import all_on_device, own_seconds
from joulemap.calibration.weights import Weights
from joulemap.traces import EventTrace, PowerTrace, Steps
from joulemap.units import NS_PER_S, fmt_share

_SOUND = (0.9, 1.1)
"""Outside of this the costs do not add up to what was measured."""
_WORTH_SAYING = 0.005
"""What adds less than that to the sum is not told apart."""


@dataclass(frozen=True, slots=True)
class Closure:
    """What costs, waiting, and guesses of what has no cost are, as parts of what was measured."""

    costs: float
    waiting: float
    guessed: float

    @property
    def total(self) -> float:
        return self.costs + self.waiting + self.guessed

    @property
    def is_told(self) -> bool:
        """Whether it is costs that add up, rather than guesses."""
        return self.costs > self.guessed

    @property
    def is_sound(self) -> bool:
        return _SOUND[0] <= self.total <= _SOUND[1]

    def said(self, provenance: str) -> str:
        """In words, with what it is made of."""
        if not self.is_told:
            return (
                f"No closure: costs are {fmt_share(self.costs)} of what was {provenance}, waiting "
                f"{fmt_share(self.waiting)}, and the rest has no cost."
            )
        guessed = self.guessed > _WORTH_SAYING
        more = f", {fmt_share(self.guessed)} of it guessed for what has no cost" * guessed
        return f"Closure: costs and waiting add up to {fmt_share(self.total)} of what was {provenance}{more}."


@dataclass(frozen=True, slots=True)
class Sums:
    """What costs say of all steps, of work and of waiting, and what was measured of them."""

    work_j: float
    waiting_j: float
    measured_j: float

    @classmethod
    def of(
        cls,
        events: EventTrace,
        steps: Steps | None,
        drawn: Sequence[tuple[Calibration, PowerTrace | None]],
        weights: Weights,
    ) -> Sums | None:
        """Of all devices together; None where no step was traced, or of one it is not known what it drew."""
        metered = [(one, power) for one, power in drawn if power is not None]
        if steps is None or not steps.traced.any() or len(metered) < len(drawn):
            return None
        every = [_of_device(events, told_apart(steps), power, weights, one) for one, power in metered]
        whole = cls(*(sum(column) for column in zip(*map(astuple, every), strict=True)))
        return whole if whole.measured_j > 0 else None


def _of_device(
    events: EventTrace, steps: Steps, power: PowerTrace, weights: Weights, calibration: Calibration
) -> Sums:
    """A traced step stands for those of its label, and what a step takes longer than its work is waiting. A
    CPU is slower while it is traced, in all that it does: work takes as much of a step then as otherwise."""
    step = np.where(events.step >= 0, events.step, steps.at(events.start_ns))
    rows = all_on_device(events, calibration.device) & (step >= 0)
    own_s = own_seconds(events)
    work_j = np.bincount(step[rows], (weights.watts * own_s)[rows], minlength=len(steps))
    work_s = np.bincount(step[rows], own_s[rows], minlength=len(steps))
    length_s = (steps.end_ns - steps.start_ns) / NS_PER_S
    all_j = all_waiting_j = measured_j = 0.0
    for label in np.unique(steps.label.codes[steps.traced]).tolist():
        alike = steps.label.codes == label
        models = alike & steps.traced
        slower = length_s[models].mean() / length_s[alike].mean() if calibration.is_of_cpu else 1.0
        waiting_s = np.maximum(slower * length_s[alike] - work_s[models].mean(), 0.0).sum() / slower
        all_j += float(alike.sum() * work_j[models].mean() / slower)
        all_waiting_j += float(calibration.idle_w * waiting_s)
        spans = zip(steps.start_ns[alike].tolist(), steps.end_ns[alike].tolist(), strict=True)
        measured_j += sum(power.energy_between(start, end) for start, end in spans)
    return Sums(all_j, all_waiting_j, measured_j)
