"""Calibrated costs as weights of events: an event weighs the watts that its cost makes over its time here.

Between others an execution may take longer than by itself, back to back with its like: its first instructions
and operands have further to come. What it does takes the same, and the device draws at least its idle power
meanwhile: so that is what each second more or less costs, of the device's time where others work beside it.

What has no cost is taken to draw what its like does: operations of the same name, or else all names alike.
By time they would be like the large products, which come first where a budget is short and draw the most.

A CPU that takes longer is working: its seconds draw what the operation does by itself, and so does what it
does between operations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from joulemap.accounting.rows import BY_TIME_RMS
from joulemap.calibration.book import Calibration
from joulemap.calibration.busy import counted
from joulemap.calibration.cost import TRANSFER_RMS
from joulemap.calibration.operation import Operation, Place, all_on_device, own_seconds
from joulemap.errors import InputError
from joulemap.program import leaf
from joulemap.traces import EventTrace, Float64, Steps

TOGETHER_RMS = 0.05
"""How far all costs of a program are off together: they added up to 99 to 107 % on an H200."""
LEAST_REST = 0.5
"""What has no cost draws at least so much of what the others do, and at most twice as much."""
UNSEEN_RMS, LARGE = 0.25, 200_000_000
"""How far a cost is off where nobody looked which operands the program has in a cache: in replays then none
is. On an H200 five of eight operations took 18 to 64 % more like that. And the elements from which on that is
no matter, since no cache holds them."""
MOSTLY = 0.5
"""Where less than this share of a place's time has a cost, it is apportioned rather than calibrated."""


@dataclass(frozen=True, eq=False)
class Weights:
    """Of every event, in watts, and how far off each may be (relative, as an rms; NaN: not calibrated).

    ``covered`` is the share of the device's busy time in steps, ``busy_s``, that is calibrated; ``known_j``
    and ``unknown_j`` are what the costs say the traced work took; and whether anybody has ``looked`` into the
    program's cache.
    """

    watts: Float64
    cost_rms: Float64
    covered: float
    known_j: float
    unknown_j: float
    looked: bool = True
    busy_s: float = 1.0

    @classmethod
    def joined(cls, events: EventTrace, parts: Mapping[str, Weights]) -> Weights:
        """Of several devices, by their names."""
        watts, rms = np.ones(len(events)), np.full(len(events), np.nan)
        for device, part in parts.items():
            rows = all_on_device(events, device)
            watts[rows], rms[rows] = part.watts[rows], part.cost_rms[rows]
        every = parts.values()
        busy_s = sum(one.busy_s for one in every)
        covered = sum(one.covered * one.busy_s for one in every) / busy_s
        sums_j = (sum(one.known_j for one in every), sum(one.unknown_j for one in every))
        return cls(watts, rms, covered, *sums_j, any(one.looked for one in every), busy_s)


def weigh(
    events: EventTrace,
    here: Sequence[Place],
    calibration: Calibration,
    rest: float = 1.0,
    steps: Steps | None = None,
) -> Weights:
    """Weights for the events on the device that is calibrated. What has no cost, and the calls of a place
    that have none, weigh ``rest`` times as much as their like. What could be covered is that of the traced
    ones of ``steps``: not start-up, nor what is between them."""
    chosen = all_on_device(events, calibration.device)
    inside = counted(events, calibration.device, steps)
    seconds = own_seconds(events)
    watts, rms = np.full(len(events), np.nan), np.full(len(events), np.nan)
    share = np.zeros(len(events))
    parts = list(known_parts(here, calibration))
    for place, known in parts:
        rows = place.rows
        part = known.seconds / place.busy_s
        watts[rows], share[rows] = known.energy_j / known.seconds, part
        rms[rows] = np.hypot(part * np.hypot(known.rms, known.transfer_rms), (1 - part) * BY_TIME_RMS)
    known_s, all_s = float((share * seconds)[inside].sum()), float(seconds[inside].sum())
    if not known_s:
        raise InputError(
            f"No operation on {calibration.device} has a calibrated cost.",
            "joulemap calibrate REC measures them.",
        )
    known_j = float(np.nansum((watts * share * seconds)[inside]))
    like_w = rest * _likely_w(events.name.words, parts)[events.name.codes]
    unknown_j = float((like_w * (1 - share) * seconds)[inside].sum())
    mixed = np.nan_to_num(watts) * share + like_w * (1 - share)
    rms[share < MOSTLY] = np.nan
    watts = np.where(chosen, mixed, 1.0)
    return Weights(watts, rms, known_s / all_s, known_j, unknown_j, _looked(here), all_s)


def _likely_w(names: Sequence[str], parts: Sequence[tuple[Place, Known]]) -> Float64:
    """What operations draw by their names, as far as others of the same kind are known; else what kinds do on
    the mean."""
    sums: dict[str, tuple[float, float]] = {}
    for place, known in parts:
        joules, seconds = sums.get(kind := leaf(place.name), (0.0, 0.0))
        sums[kind] = joules + known.energy_j, seconds + known.seconds
    watts = {kind: joules / seconds for kind, (joules, seconds) in sums.items()}
    others_w = float(np.mean(list(watts.values())))
    return np.array([watts.get(leaf(name), others_w) for name in names])


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


def known_parts(here: Sequence[Place], calibration: Calibration) -> Iterator[tuple[Place, Known]]:
    """The places of which something has a cost, with that."""
    for place in here:
        known = _known(place, calibration)
        if known is not None:
            yield place, known


def _looked(here: Sequence[Place]) -> bool:
    """Whether anybody has looked which operands are in a cache."""
    return any(operation.cold for place in here for operation in place.calls)


def _transfer_rms(operation: Operation) -> float:
    """How far a cost by itself is from the cost in the program."""
    return TRANSFER_RMS if operation.cold or operation.elements >= LARGE else UNSEEN_RMS


@dataclass(frozen=True, slots=True)
class Known:
    """Of a place's busy time, the part whose cost is known: what that takes here, and by itself; and how far
    off that may be, for what replays vary by and for what they do not have."""

    energy_j: float
    alone_j: float
    seconds: float
    rms: float
    transfer_rms: float


def _known(place: Place, calibration: Calibration) -> Known | None:
    """What the calls of a place with a known cost took; None where there are none. Where others have none,
    theirs is the time that is left when the known ones have taken what they take by themselves."""
    costs = calibration.costs
    each = {operation: costs[operation] for operation in place.calls if operation in costs}
    if not each or place.busy_s <= 0:
        return None
    runs = place.part * place.executions / sum(place.calls.values())
    times = np.array([place.calls[one] * runs for one in each])
    alone_j = float(times @ [cost.energy_j for cost in each.values()])
    alone_s = float(times @ [cost.seconds for cost in each.values()])
    scaled_s = float(times @ [cost.scaled_s or cost.seconds for cost in each.values()])
    seconds = place.busy_s if len(each) == len(place.calls) else min(alone_s, place.busy_s)
    had_s = seconds if place.share_s is None else place.share_s * seconds / place.busy_s
    longer_s = had_s - min(max(had_s, min(alone_s, scaled_s)), max(alone_s, scaled_s))
    longer_w = alone_j / alone_s if calibration.is_of_cpu else calibration.idle_w
    here_j = max(alone_j + longer_w * longer_s, calibration.idle_w * had_s)
    transfer_rms = max(map(_transfer_rms, each))
    return Known(here_j, alone_j, seconds, max(cost.rms for cost in each.values()), transfer_rms)
