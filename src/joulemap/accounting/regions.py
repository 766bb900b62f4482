"""The energy of the parts of a program that were given a name with ``joulemap.measure``.

A region is a stretch of time, whatever runs in it: the program's part of each domain's energy in that time,
idle included. Regions may nest and overlap, so they do not add up to anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from joulemap.accounting.student import NORMAL_975
from joulemap.accounting.supply import supply
from joulemap.accounting.uncertainty import EDGE_RMS
from joulemap.devices import Domain
from joulemap.processes import ProcessShares
from joulemap.traces import Float64, Int64, PowerTrace
from joulemap.units import NS_PER_S


@dataclass(frozen=True, slots=True)
class Region:
    """All stretches of one name, in one domain."""

    name: str
    domain: Domain
    energy_j: float
    rms_j: float
    seconds: float
    calls: int

    @property
    def low_j(self) -> float:
        return max(self.energy_j - NORMAL_975 * self.rms_j, 0.0)

    @property
    def high_j(self) -> float:
        return self.energy_j + NORMAL_975 * self.rms_j


def regions(
    names: Sequence[str],
    start_ns: Int64,
    end_ns: Int64,
    power: Sequence[PowerTrace],
    shares: Mapping[str, ProcessShares] | None = None,
    *,
    in_a_row: bool = False,
) -> list[Region]:
    """Each name's energy in each domain, to what the meter resolves at the edges of its stretches. Those of
    one name ``in_a_row`` have edges only where another name begins, or none for longer than the meter takes
    to update."""
    words, code = np.unique(np.asarray(names, object).astype(str), return_inverse=True)
    found = []
    for trace in power:
        energy_j = _energy_between(trace, start_ns, end_ns, shares)
        length_s = (end_ns - start_ns) / NS_PER_S
        row = _rows(code, start_ns, end_ns, trace.period_s) if in_a_row else np.arange(len(code))
        row_j, row_s = np.bincount(row, energy_j), np.bincount(row, length_s)
        row_rms_j, of_row = (
            EDGE_RMS * trace.period_s * row_j / np.maximum(row_s, 1e-9),
            np.zeros(len(row_j), int),
        )
        of_row[row] = code
        for number, word in enumerate(words.tolist()):
            of = code == number
            found.append(
                Region(
                    name=word,
                    domain=trace.domain,
                    energy_j=float(energy_j[of].sum()),
                    rms_j=float(np.sqrt(np.square(row_rms_j[of_row == number]).sum())),
                    seconds=float(length_s[of].sum()),
                    calls=int(of.sum()),
                )
            )
    return found


def _rows(code: Int64, start_ns: Int64, end_ns: Int64, period_s: float) -> Int64:
    """The number of the row that each stretch is in; they are in order of time."""
    apart = (np.diff(code) != 0) | (start_ns[1:] - end_ns[:-1] > period_s * NS_PER_S)
    return np.concatenate(([0], np.cumsum(apart)))


def _energy_between(
    trace: PowerTrace, start_ns: Int64, end_ns: Int64, shares: Mapping[str, ProcessShares] | None
) -> Float64:
    curve = supply(trace, shares=shares, loading_apart=False).energy
    if not len(curve.amount):
        return np.zeros(len(start_ns))
    until_j = np.concatenate(([0.0], np.cumsum(curve.amount)))
    origin_ns = curve.edges_ns[0]
    at = [np.interp(t_ns - origin_ns, curve.edges_ns - origin_ns, until_j) for t_ns in (start_ns, end_ns)]
    return np.asarray(np.maximum(at[1] - at[0], 0.0), np.float64)
