"""What the accounting says that the targets take of a plain step, by time and by calibrated costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joulemap.accounting import Footprint, Rule, attribute
from joulemap.calibration.recorded import Calibrated, calibrated
from joulemap.labels import Labels
from joulemap.recording import Recording
from joulemap.traces import PowerTrace, Steps
from joulemap.validating.kind import of_kind
from joulemap.validating.stretch import Stretch, plain
from joulemap.validating.target import Name, Target


@dataclass(frozen=True, slots=True)
class Charge:
    """Joules a step with their 95 % interval, and whether most of them are shared by costs, where the rule
    has any."""

    energy_j: float
    low_j: float
    high_j: float
    costed: bool = True


def charged(
    recording: Recording, rule: Rule, targets: Sequence[Target], chosen: Steps, label: str, power: PowerTrace
) -> dict[int, Charge]:
    """By number of the target. The traced steps are accounted, and the plain ones that they stand for;
    whatever else was run is left out. ``power`` is what the device drew for the program."""
    events = recording.events()
    own = of_kind(events, chosen, label)
    weights = _weights(calibrated(recording, chosen, power), own) if rule == "calibrated" else {}
    window = recording.info.window_ns
    footprint = attribute(events.take(own), [power], rule, steps=chosen, window_ns=window, **weights)
    return per_step(footprint, targets, int((chosen.label.codes == chosen.label.code(label)).sum()))


def _weights(found: Calibrated, own: NDArray[np.bool_]) -> dict[str, Any]:
    return {
        "weights": found.weights.watts[own],
        "idle_weight": found.calibration.idle_weight,
        "cost_rms": found.weights.cost_rms[own],
    }


def only_plain(steps: Steps, stretches: Sequence[Stretch], label: str) -> Steps:
    """The same steps, where only those that were traced or lie in a plain stretch have their label. A host
    may be far ahead of its GPU, which has done all of it only at the end of a stretch: so the steps of one
    share its time."""
    alike = steps.label.codes == steps.label.code(label)
    chosen = alike & steps.traced
    start_ns, end_ns = steps.start_ns.copy(), steps.end_ns.copy()
    for one in plain(stretches):
        inside = alike & (steps.start_ns >= one.start_ns) & (steps.end_ns <= one.end_ns)
        edges = np.linspace(one.start_ns, one.end_ns, int(inside.sum()) + 1).astype(np.int64)
        start_ns[inside], end_ns[inside] = edges[:-1], edges[1:]
        chosen |= inside
    words = [label if one else f"{label} (other)" for one in chosen.tolist()]
    return replace(steps, start_ns=start_ns, end_ns=end_ns, label=Labels.of(words, len(words)))


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
    energy_j, low_j, high_j = (float(one) / steps for one in each)
    costed = footprint.rule != "calibrated" or bool(whole.is_calibrated.any())
    return Charge(energy_j, low_j, high_j, costed)
