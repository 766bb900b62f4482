"""ASSS, accounting similarity with sample sparsing: what the footprint would be with a slower meter.

The power trace is thinned to longer and longer periods, accounted again, and the footprint correlated with
the one from all readings. Where the curve is flat, a faster meter would change little either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from joulemap.accounting import Footprint, attribute
from joulemap.comparing.similarity import pcc
from joulemap.precision.footprints import stef_of, vectors
from joulemap.recording import Recording
from joulemap.traces import PowerTrace

FEWEST_INTERVALS = 8
"""A meter that shows fewer values than this in a recording is no meter of it."""


@dataclass(frozen=True, slots=True)
class Sparsed:
    """The similarity to the footprint from all readings, had meters been read ``factor`` times as rarely."""

    factor: int
    period_s: float
    similarity: float | None


def thinned(trace: PowerTrace, factor: int) -> PowerTrace:
    """As if the counter had been read at every ``factor``-th of its updates."""
    if not len(trace):
        return trace
    starts = np.arange(0, len(trace), factor)
    period_s = trace.domain.update_period_s
    domain = replace(trace.domain, update_period_s=None if period_s is None else period_s * factor)
    return PowerTrace(
        domain,
        np.append(trace.edges_ns[starts], trace.edges_ns[-1]),
        np.add.reduceat(trace.energy_j, starts),
        np.logical_or.reduceat(trace.gap, starts),
    )


def sparsing(recording: Recording, advance: Callable[[float], None] | None = None) -> list[Sparsed]:
    """From the meter's own period on, doubling it as long as enough intervals are left."""
    power = recording.power()
    factors = list(_factors(min((len(trace) for trace in power), default=0)))
    found = []
    for number, factor in enumerate(factors, 1):
        slower = [thinned(trace, factor) for trace in power]
        found.append((factor, _period_s(slower), stef_of(_accounted(recording, slower))))
        if advance is not None:
            advance(number / len(factors))
    full = found[0][2] if found else {}
    return [Sparsed(factor, period_s, pcc(*vectors([full, stef]))) for factor, period_s, stef in found]


def _factors(intervals: int) -> Iterator[int]:
    factor = 1
    while intervals // factor >= FEWEST_INTERVALS:
        yield factor
        factor *= 2


def _period_s(power: list[PowerTrace]) -> float:
    return max(trace.period_s for trace in power)


def _accounted(recording: Recording, power: list[PowerTrace]) -> Footprint:
    return attribute(
        recording.events(),
        power,
        steps=recording.steps(),
        window_ns=recording.info.window_ns,
        shares=recording.shares(),
    )
