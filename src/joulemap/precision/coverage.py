"""Do our own intervals hold what they promise? Thousands of synthetic runs whose truth is known.

Every run is recorded by a synthetic sensor and goes through the whole accounting. Its steps differ in length
and power, as real ones do; the truth is what such a run draws on average. An interval that is worth its name
holds it in 95 of 100 runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from joulemap.accounting import Footprint, attribute
from joulemap.devices import Domain
from joulemap.meters.synthetic import Operation, Sensor, sense, truth_of
from joulemap.traces import Steps

PROGRAM = (
    Operation("model/attention/MatMul", 0.030, 400.0),
    Operation("model/attention/Softmax", 0.012, 260.0),
    Operation("model/output/MatMul", 0.020, 330.0),
    Operation("", 0.008, 100.0),
)
"""One step on average; without a name, a pause."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What is tried: how many steps a run has, how much they differ, and how often the meter updates."""

    steps: int = 10
    spread: float = 0.2
    period_s: float = 0.001
    noise_w: float = 2.0


@dataclass(frozen=True, slots=True)
class Covered:
    """Of a name: in how many of the runs its interval held the truth, and how far off it was on average."""

    name: str
    share: float
    bias: float


def coverage(
    runs: int, trial: Trial | None = None, seed: int = 0, advance: Callable[[float], None] | None = None
) -> list[Covered]:
    """Try it, for operations and for the modules around them."""
    trial, rng = trial or Trial(), np.random.default_rng(seed)
    held: dict[str, list[bool]] = {}
    off: dict[str, list[float]] = {}
    for number in range(runs):
        footprint = _accounted(trial, rng)
        for rows in (footprint.rollup(keep=()), footprint.at(2).rollup(keep=())):
            columns = zip(rows.name, rows.energy_j, rows.low_j, rows.high_j, strict=True)
            for name, energy_j, low_j, high_j in columns:
                true_j = _true_j(name, trial)
                held.setdefault(name, []).append(bool(low_j <= true_j <= high_j))
                off.setdefault(name, []).append(float(energy_j) / true_j - 1)
        if advance is not None and not (number + 1) % 20:
            advance((number + 1) / runs)
    return [Covered(name, float(np.mean(held[name])), float(np.mean(off[name]))) for name in held]


def _true_j(name: str, trial: Trial) -> float:
    inside = [one for one in PROGRAM if one.name == name or one.name.startswith(f"{name}/")]
    return trial.steps * sum(one.seconds * one.power_w for one in inside)


def _accounted(trial: Trial, rng: np.random.Generator) -> Footprint:
    """One run: its operations drawn, sensed, and accounted."""
    operations = []
    for _ in range(trial.steps):
        level = _around_one(rng, trial.spread)
        operations += [
            Operation(one.name, one.seconds * _around_one(rng, trial.spread), one.power_w * level)
            for one in PROGRAM
        ]
    truth = truth_of(operations, Domain("GPU:0", "GPU:0", sensor="synthetic"))
    borders = truth.power.edges_ns[:: len(PROGRAM)]
    sensor = Sensor(
        period_s=trial.period_s,
        noise_w=trial.noise_w,
        phase_s=float(rng.uniform(0, trial.period_s)),
        seed=int(rng.integers(1 << 32)),
    )
    return attribute(
        truth.events,
        sense(truth.power, sensor).to_trace(),
        steps=Steps.from_columns(start_ns=borders[:-1], end_ns=borders[1:]),
        window_ns=(int(borders[0]), int(borders[-1])),
    )


def _around_one(rng: np.random.Generator, spread: float) -> float:
    return max(float(rng.normal(1.0, spread)), 0.1)
