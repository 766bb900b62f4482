"""Calibrated costs as weights of events: an event weighs the watts that its cost makes over its time here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from joulemap.accounting.rows import BY_TIME_RMS
from joulemap.calibration.cost import TRANSFER_RMS, Cost
from joulemap.calibration.operation import Operation, Place, on_device, own_seconds
from joulemap.errors import InputError
from joulemap.traces import PHASES, EventTrace, Float64

TOGETHER_RMS = 0.05
"""How far all costs of a program are off together: they added up to 102 to 107 % on an H200."""
LEAST_REST = 0.5
"""What has no cost draws at least so much of what the others do, and at most twice as much."""
MOSTLY = 0.5
"""Where less than this share of a place's time has a cost, it is apportioned rather than calibrated."""


@dataclass(frozen=True, eq=False)
class Weights:
    """Of every event, in watts, and how far off each may be (relative, as an rms; NaN: not calibrated).

    ``covered`` is the share of the device's busy time that is calibrated; ``known_j`` and ``unknown_j`` are
    what the costs say the traced work took.
    """

    watts: Float64
    cost_rms: Float64
    covered: float
    known_j: float
    unknown_j: float


def weigh(
    events: EventTrace,
    device: str,
    here: Sequence[Place],
    costs: Mapping[Operation, Cost],
    rest: float = 1.0,
) -> Weights:
    """Weights for the events on ``device``. What has no cost, and the calls of a place that have none, weigh
    ``rest`` times as much as the others do on the mean."""
    chosen = on_device(events, device)
    seconds = own_seconds(events)
    watts, rms = np.full(len(events), np.nan), np.full(len(events), np.nan)
    share = np.zeros(len(events))
    for place, known in known_parts(here, costs):
        rows = chosen & (events.name.codes == events.name.code(place.name))
        rows &= events.phase.codes == PHASES.index(place.phase)
        part = known.seconds / place.busy_s
        watts[rows], share[rows] = known.energy_j / known.seconds, part
        rms[rows] = np.hypot(part * np.hypot(known.rms, TRANSFER_RMS), (1 - part) * BY_TIME_RMS)
    known_s, all_s = float((share * seconds).sum()), float(seconds[chosen].sum())
    if not known_s:
        raise InputError(
            f"No operation on {device} has a calibrated cost.", "joulemap calibrate REC measures them."
        )
    known_j = float(np.nansum(watts * share * seconds))
    mean_w = rest * known_j / known_s
    mixed = np.where(share > 0, np.nan_to_num(watts) * share + mean_w * (1 - share), mean_w)
    rms[share < MOSTLY] = np.nan
    return Weights(
        np.where(chosen, mixed, 1.0), rms, known_s / all_s, known_j, unknown_j=mean_w * (all_s - known_s)
    )


def what_is_left(known_j: float, unknown_j: float, measured_j: float) -> float:
    """What the operations without a cost weigh, as a part of what they would on the mean, so that all adds up
    to what was measured: as far as they are less sure than the costs are. Large products come first where
    a budget is short, and draw more than what is left."""
    known_rms, unknown_rms = TOGETHER_RMS * known_j, BY_TIME_RMS * unknown_j
    if not unknown_j:
        return 1.0
    missing_j = measured_j - known_j - unknown_j
    part = unknown_rms**2 / (known_rms**2 + unknown_rms**2)
    return float(np.clip(1 + part * missing_j / unknown_j, LEAST_REST, 1 / LEAST_REST))


def known_parts(here: Sequence[Place], costs: Mapping[Operation, Cost]) -> Iterator[tuple[Place, Known]]:
    """The places of which something has a cost, with that."""
    for place in here:
        known = _known(place, costs)
        if known is not None:
            yield place, known


@dataclass(frozen=True, slots=True)
class Known:
    """Of a place's busy time, the part whose cost is known."""

    energy_j: float
    seconds: float
    rms: float


def _known(place: Place, costs: Mapping[Operation, Cost]) -> Known | None:
    """What the calls of a place with a known cost took; None where there are none. Where others have none,
    theirs is the time that is left when the known ones have taken what they take by themselves."""
    each = {operation: costs[operation] for operation in place.calls if operation in costs}
    if not each or place.busy_s <= 0:
        return None
    runs = place.part * place.executions / sum(place.calls.values())
    energy_j = sum(cost.energy_j * place.calls[one] * runs for one, cost in each.items())
    alone_s = sum(cost.seconds * place.calls[one] * runs for one, cost in each.items())
    seconds = place.busy_s if len(each) == len(place.calls) else min(alone_s, place.busy_s)
    return Known(energy_j, seconds, max(cost.rms for cost in each.values()))
