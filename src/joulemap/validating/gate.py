"""Whether the power of plain steps is level again, so that the next block may begin.

A program that works is not at rest, so that only two things are asked of it: that its steps draw the same
from one to the next, and about what plain steps drew before. Heat and clocks show in both. A GPU that waits
for a busy host never draws the same: there, no more is asked than that it varies as neighbours always do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from joulemap.stability import GateSettings, Verdict, judge
from joulemap.traces import Float64, PowerTrace
from joulemap.units import NS_PER_S

SAMPLES = 4
LEVEL = GateSettings(
    samples=SAMPLES,
    spread={"CPU": 0.05, "DRAM": 0.05, "GPU": 0.03, "other": 0.05},
    above_idle=0.1,
    hottest_c={},
    busiest_percent={},
)
"""Limits for a machine that works: neither heat nor load are judged by themselves."""
PERIODS = 2
"""A sample is as many whole steps as last so many updates of the meter."""
SHORTEST_S = 0.1
DIFFERENCE = 0.954
"""The median difference of two draws from a normal distribution, in its standard deviations."""
ROOM = 2.0

Step = tuple[int, int]
"""Start and end, epoch ns."""


def samples_w(steps: Sequence[Step], power: PowerTrace) -> Float64:
    """The mean power of some steps at a time, as far as it is known."""
    least_ns = round(max(PERIODS * power.period_s, SHORTEST_S) * NS_PER_S)
    known_ns = int(power.edges_ns[-1]) if len(power) else 0
    found: list[float] = []
    begin_ns: int | None = None
    for start_ns, end_ns in steps:
        begin_ns = start_ns if begin_ns is None else begin_ns
        if end_ns > known_ns:
            break
        if end_ns - begin_ns >= least_ns:
            found.append(power.energy_between(begin_ns, end_ns) / ((end_ns - begin_ns) / NS_PER_S))
            begin_ns = None
    return np.array(found, np.float64)


def is_level(samples: Float64, before_w: Float64, power: PowerTrace) -> Verdict:
    """The gate's verdict on the last samples, against the levels of plain steps before."""
    usual = {power.domain.name: float(np.median(before_w))} if len(before_w) else {}
    varies = jitter(samples)
    settings = replace(
        LEVEL,
        spread={kind: max(limit, varies) for kind, limit in LEVEL.spread.items()},
        above_idle=max(LEVEL.above_idle, varies),
    )
    return judge({power.domain: samples}, usual, settings=settings)


def jitter(samples: Float64) -> float:
    """How much neighbours differ, as a standard deviation relative to the level, with some room. What drifts
    has neighbours that are alike."""
    if len(samples) < 2 * SAMPLES:
        return 0.0
    return ROOM * float(np.median(np.abs(np.diff(samples)))) / DIFFERENCE / float(np.median(samples))
