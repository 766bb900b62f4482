"""What the accounting says that the targets take of a plain step, by time and by calibrated costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from joulemap.accounting import Footprint, Rule, attribute
from joulemap.calibration.recorded import calibrated
from joulemap.labels import Labels
from joulemap.recording import Recording
from joulemap.traces import Steps
from joulemap.validating.stretch import Stretch, plain
from joulemap.validating.target import Name, Target


@dataclass(frozen=True, slots=True)
class Charge:
    """Joules a step with their 95 % interval."""

    energy_j: float
    low_j: float
    high_j: float


def charged(
    recording: Recording,
    rule: Rule,
    targets: Sequence[Target],
    stretches: Sequence[Stretch],
    label: str,
    domain: str,
) -> dict[int, Charge]:
    """By number of the target. The traced steps are accounted, and the plain ones that they stand for;
    whatever else was run is left out."""
    steps = recording.steps()
    if steps is None:
        return {}
    chosen = _only_plain(steps, plain(stretches), label)
    power = [one for one in recording.power() if one.domain.name == domain]
    shares = {name: one for name, one in recording.shares().items() if name == domain}
    weights = _weights(recording) if rule == "calibrated" else {}
    window = recording.info.window_ns
    footprint = attribute(
        recording.events(), power, rule, steps=chosen, window_ns=window, shares=shares, **weights
    )
    return per_step(footprint, targets, int((chosen.label.codes == chosen.label.code(label)).sum()))


def _weights(recording: Recording) -> dict[str, Any]:
    found = calibrated(recording)
    return {
        "weights": found.weights.watts,
        "idle_weight": {found.calibration.device: found.calibration.idle_w},
        "cost_rms": found.weights.cost_rms,
    }


def _only_plain(steps: Steps, base: Sequence[Stretch], label: str) -> Steps:
    """The same steps, where only those that were traced or lie in a plain stretch have their label."""
    inside = np.zeros(len(steps), bool)
    for one in base:
        inside |= (steps.start_ns >= one.start_ns) & (steps.end_ns <= one.end_ns)
    inside |= steps.traced
    inside &= steps.label.codes == steps.label.code(label)
    words = [label if chosen else f"{label} (other)" for chosen in inside.tolist()]
    return replace(steps, label=Labels.of(words, len(words)))


def per_step(footprint: Footprint, targets: Sequence[Target], steps: int) -> dict[int, Charge]:
    """Rows added up by target; a module and the operations in it count each in their own sum."""
    names = list(zip(footprint.name, footprint.phase, strict=True))
    return {one.number: _charge(footprint, names, one, steps) for one in targets}


def _charge(footprint: Footprint, names: Sequence[Name], target: Target, steps: int) -> Charge:
    here = np.array([name in target.rows for name in names], bool)
    if not here.any():
        return Charge(0.0, 0.0, 0.0)
    own = footprint.take(here)
    whole = own.rollup(Labels.of(target.name, len(own)), keep=("domain",))
    each = (whole.energy_j.sum(), whole.low_j.sum(), whole.high_j.sum())
    return Charge(*(float(one) / steps for one in each))
