"""Calibrated costs as weights of events: an event weighs the watts that its cost makes over its time here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from joulemap.calibration.cost import TRANSFER_RMS, Cost
from joulemap.calibration.operation import Operation, Place, on_device, own_seconds
from joulemap.errors import InputError
from joulemap.traces import PHASES, EventTrace, Float64


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


def weigh(events: EventTrace, device: str, here: Sequence[Place], costs: Mapping[Operation, Cost]) -> Weights:
    """Weights for the events on ``device``. What has no cost weighs as much as the others do on the mean."""
    chosen = on_device(events, device)
    seconds = own_seconds(events)
    watts, rms = np.ones(len(events)), np.full(len(events), np.nan)
    known = np.zeros(len(events), bool)
    for place in here:
        cost = _mean(place, costs)
        if cost is None or place.busy_s <= 0:
            continue
        rows = chosen & (events.name.codes == events.name.code(place.name))
        rows &= events.phase.codes == PHASES.index(place.phase)
        watts[rows] = cost.energy_j * place.executions / place.busy_s
        rms[rows] = np.hypot(cost.rms, TRANSFER_RMS)
        known |= rows
    known_s, all_s = float(seconds[known].sum()), float(seconds[chosen].sum())
    if not known_s:
        raise InputError(
            f"No operation on {device} has a calibrated cost.", "joulemap calibrate REC measures them."
        )
    known_j = float((watts * seconds)[known].sum())
    watts[chosen & ~known] = known_j / known_s
    unknown_j = known_j / known_s * (all_s - known_s)
    return Weights(watts, rms, known_s / all_s, known_j, unknown_j)


def _mean(place: Place, costs: Mapping[Operation, Cost]) -> Cost | None:
    """The mean cost of a place's executions; None unless all that it was called with is known."""
    if not all(operation in costs for operation in place.calls):
        return None
    calls = np.array(list(place.calls.values()), np.float64)
    each = [costs[operation] for operation in place.calls]
    energy_j = np.average([one.energy_j for one in each], weights=calls)
    seconds = np.average([one.seconds for one in each], weights=calls)
    return Cost(
        float(energy_j), float(seconds), max(one.rms for one in each), min(one.passes for one in each)
    )
