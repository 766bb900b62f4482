"""Power over time, thinned so that no peak is lost, with the steps under it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from joulemap.accounting.footprint import Footprint
from joulemap.report.numbers import column, short
from joulemap.traces import Float64, Int64, PowerTrace, Steps
from joulemap.units import NS_PER_S

MOST_INTERVALS = 6000
"""Longer traces are thinned to half as many intervals, each with its lowest, mean and highest power."""

MOST_STEPS = 2000


def span_ns(power: list[PowerTrace], window_ns: tuple[int, int] | None) -> tuple[int, int]:
    """What the picture shows: all that was metered, and the recording."""
    edges = [int(edge) for trace in power if len(trace) for edge in (trace.edges_ns[0], trace.edges_ns[-1])]
    edges += window_ns or ()
    return min(edges, default=0), max(edges, default=0)


def power_line(trace: PowerTrace, origin_ns: int) -> dict[str, Any]:
    """A domain's power: ``mean_w`` between ``edges_s``, and where it was thinned ``low_w`` and ``high_w``.

    None is a gap, in which the meter was not read.
    """
    thin = len(trace) > MOST_INTERVALS
    edges_ns, mean, low, high = _thinned(trace, MOST_INTERVALS // 2) if thin else _as_it_is(trace)
    line: dict[str, Any] = {
        "domain": trace.domain.name,
        "device": trace.domain.device,
        "provenance": trace.domain.provenance,
        "part_of": trace.domain.parent,
        "edges_s": _seconds(edges_ns, origin_ns),
        "mean_w": _watts(mean),
    }
    return line | ({"low_w": _watts(low), "high_w": _watts(high)} if thin else {})


def _as_it_is(trace: PowerTrace) -> tuple[Int64, Float64, Float64, Float64]:
    known = np.where(trace.gap & (trace.energy_j == 0), np.nan, trace.power_w)
    return trace.edges_ns, known, known, known


def _thinned(trace: PowerTrace, count: int) -> tuple[Int64, Float64, Float64, Float64]:
    """Equal stretches of time: mean power by energy, lowest and highest of the intervals that touch each."""
    first, last = int(trace.edges_ns[0]), int(trace.edges_ns[-1])
    edges = first + np.arange(count + 1) * (last - first) // count
    mean = np.diff(trace.energy_until(edges)) / np.maximum(np.diff(edges) / NS_PER_S, 1e-9)
    power = _as_it_is(trace)[1]
    begin = np.searchsorted(trace.edges_ns, edges[:-1], side="right") - 1
    end = np.minimum(np.searchsorted(trace.edges_ns, edges[1:], side="left"), len(power))
    between = np.stack((begin, np.maximum(end, begin + 1)), axis=1).ravel()
    low = _reduced(np.fmin, power, between)
    high = _reduced(np.fmax, power, between)
    return edges, np.where(np.isnan(high), np.nan, mean), low, high


def _reduced(function: np.ufunc, values: Float64, between: NDArray[np.int64]) -> Float64:
    """A function over ``values[between[0]:between[1]]``, ``values[between[2]:between[3]]``, and so on."""
    with_end = np.append(values, np.nan)  # reduceat takes no index behind the last value
    return np.asarray(function.reduceat(with_end, between)[::2], np.float64)


def _seconds(t_ns: Int64, origin_ns: int) -> list[float]:
    return [round(second, 6) for second in ((t_ns - origin_ns) / NS_PER_S).tolist()]


def _watts(values: Float64) -> list[float | None]:
    return [None if np.isnan(watts) else short(watts) for watts in values.tolist()]


def steps(recorded: Steps | None, footprint: Footprint, origin_ns: int) -> dict[str, Any] | None:
    """The steps: begin, end, energy with idle, whether they were traced; of many, some in a row as one."""
    if recorded is None or not len(recorded):
        return None
    together = -(-len(recorded) // MOST_STEPS)
    first = np.arange(0, len(recorded), together)
    last = np.minimum(first + together, len(recorded)) - 1
    energy = sum(
        (account.step_j for account in footprint.accounts if len(account.step_j)), np.zeros(len(recorded))
    )
    return {
        "together": together,
        "count": len(recorded),
        "traced_count": int(recorded.traced.sum()),
        "start_s": _seconds(recorded.start_ns[first], origin_ns),
        "end_s": _seconds(recorded.end_ns[last], origin_ns),
        "energy_j": column(np.add.reduceat(energy, first)),
        "traced": np.logical_or.reduceat(recorded.traced, first).astype(int).tolist(),
        "label": [recorded.label.words[code] for code in recorded.label.codes[first].tolist()],
    }
