"""Wait until a machine is idle, and measure what it draws then.

The channels are read all the time by their own schedules; what a counter shows is cut into samples of half
a second on one timeline, so that no sample gains or loses an update. The gate (``stability.py``) judges the
last samples; once it opens, the baseline is measured, which counts if the gate is still open afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from joulemap.accounting.baseline import Baseline
from joulemap.accounting.student import NORMAL_975, student_975
from joulemap.accounting.uncertainty import EDGE_RMS
from joulemap.devices import Domain
from joulemap.errors import JoulemapError
from joulemap.meters.meter import Channel
from joulemap.meters.readings import Watcher
from joulemap.stability import GateSettings, Verdict, by_device, judge
from joulemap.traces import Float64, Int64, PowerTrace
from joulemap.units import NS_PER_S

SAMPLE_S = 0.5

Facts = Callable[[], Mapping[str, float]]
"""Reads facts such as ``GPU:0 temperature_c`` and ``CPU load_percent``, as meters know them."""


@dataclass(frozen=True)
class Idle:
    """The idle baseline of every domain, and what the gate could not judge."""

    baselines: Mapping[Domain, Baseline]
    notes: Sequence[str]


class NotIdle(JoulemapError):
    """The machine did not come to rest in time."""


def samples_w(trace: PowerTrace, sample_s: float) -> Float64:
    """A trace cut into samples of equal length, ending with its last update; one of which less than half is
    known is left out."""
    if len(trace) < 2:
        return np.zeros(0)
    first, last = int(trace.edges_ns[1]), int(trace.edges_ns[-1])
    count = int((last - first) / (sample_s * NS_PER_S))
    grid = last - np.rint(np.arange(count, -1, -1) * sample_s * NS_PER_S).astype(np.int64)
    known_s = np.diff(_known_until_s(trace, grid))
    enough = known_s > sample_s / 2
    return np.asarray(np.diff(trace.energy_until(grid))[enough] / known_s[enough])


def _known_until_s(trace: PowerTrace, t_ns: Int64) -> Float64:
    """Time from the start of the trace, without the gaps between power samples, of which nothing is known."""
    start = trace.edges_ns[0]
    unknown = trace.gap & (trace.energy_j == 0)
    known_s = np.where(unknown, 0.0, np.diff(trace.edges_ns) / NS_PER_S)
    until_s = np.concatenate(([0.0], np.cumsum(known_s)))
    return np.asarray(np.interp(t_ns - start, trace.edges_ns - start, until_s), np.float64)


def measure_idle(
    channels: Sequence[Channel],
    *,
    seconds: float = 10.0,
    timeout_s: float = 120.0,
    idle_w: Mapping[str, float] | None = None,
    facts: Facts = dict,
    settings: GateSettings | None = None,
    sample_s: float | None = None,
    on_wait: Callable[[Verdict], None] = lambda _: None,
) -> Idle:
    """The idle baseline of every domain, once the machine is stable; ``NotIdle`` where it is not in time.

    ``idle_w`` is an earlier baseline by domain, which the level must be near to.
    """
    sample_s = SAMPLE_S if sample_s is None else sample_s
    watcher, deadline = Watcher(channels), time.monotonic() + timeout_s
    gate = _Gate(idle_w or {}, facts, settings or GateSettings())
    while True:
        watcher.go_on(sample_s)
        verdict = gate.judge(_samples_w(watcher, sample_s))
        if verdict.stable:
            watcher.go_on(seconds)
            verdict = gate.judge(_samples_w(watcher, sample_s))
            if verdict.stable:
                traces = [readings.to_trace() for readings in watcher.readings()]
                found = {trace.domain: baseline_of(trace, seconds, sample_s) for trace in traces}
                return Idle(found, verdict.notes)
        on_wait(verdict)
        if time.monotonic() >= deadline:
            raise NotIdle(
                f"The machine was not idle within {timeout_s:g} s: {'; '.join(verdict.reasons)}.",
                "Stop what else runs, let it cool, or allow more time with --timeout. If it draws more than "
                "it used to when idle, forget the old baseline with --clear.",
            )


@dataclass(frozen=True)
class _Gate:
    """What the samples are judged by."""

    idle_w: Mapping[str, float]
    facts: Facts
    limits: GateSettings

    def judge(self, samples: Mapping[Domain, Float64]) -> Verdict:
        known = self.facts()
        load = by_device(known, "load_percent", "utilisation_percent")
        return judge(samples, self.idle_w, by_device(known, "temperature_c"), self.limits, load)


def _samples_w(watcher: Watcher, sample_s: float) -> dict[Domain, Float64]:
    return {one.domain: samples_w(one.to_trace(), sample_s) for one in watcher.readings()}


def baseline_of(trace: PowerTrace, seconds: float, sample_s: float = SAMPLE_S) -> Baseline:
    """The mean power of the last seconds of a trace, and its 95 % interval."""
    samples = samples_w(trace, sample_s)[-max(round(seconds / sample_s), 2) :]
    taken_s = len(samples) * sample_s
    mean, half = mean_and_half_width(samples)
    meter = NORMAL_975 * EDGE_RMS * mean * trace.period_s / taken_s
    half = float(np.hypot(half, meter))
    return Baseline(trace.domain.name, mean, max(mean - half, 0.0), mean + half, taken_s)


def mean_and_half_width(samples: Float64) -> tuple[float, float]:
    """The mean and half of its 95 % interval. Samples in a row are alike, so it comes from the means of up to
    ten stretches, not from single samples."""
    stretches = np.array_split(samples, min(max(len(samples) // 2, 2), 10))
    means = np.array([stretch.mean() for stretch in stretches if len(stretch)])
    if len(means) < 2:
        return float(samples.mean()), 0.0
    student = student_975(len(means) - 1)
    return float(samples.mean()), float(student * means.std(ddof=1) / len(means) ** 0.5)
