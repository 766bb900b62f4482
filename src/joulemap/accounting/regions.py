"""The energy of the parts of a program that were given a name with ``joulemap.measure``, and of its kinds of
steps.

A region is a stretch of time, whatever runs in it: the program's part of each domain's energy in that time,
idle included. Regions may nest and overlap, so they do not add up to anything. Where they border on something
else inside of an update of the meter, what is open at a time makes it one of several kinds of time, whose
powers are told apart (``unmixed``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from joulemap.accounting.student import NORMAL_975
from joulemap.accounting.sums import running
from joulemap.accounting.supply import Curve, Supply, supply
from joulemap.accounting.uncertainty import EDGE_RMS
from joulemap.accounting.unmixed import Mixture, unmixed
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
    count: float = 0.0
    unit: str = ""
    """So many of a unit were done in it, as the program has counted."""

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
    """Each name's energy in each domain, to what updates of the meter tell, and what it resolves at the edges
    of stretches. Those of one name ``in_a_row`` have edges only where another name begins, or none for longer
    than the meter takes to update."""
    if not len(names):
        return []
    words, code = np.unique(np.asarray(names, object).astype(str), return_inverse=True)
    length_s = (end_ns - start_ns) / NS_PER_S
    open_at = _Open.of(code, start_ns, end_ns, len(words))
    found = []
    for trace in power:
        sorted_out = supply(trace, shares=shares, loading_apart=False)
        told = unmixed(open_at.mixture(trace, sorted_out))
        row = _rows(code, start_ns, end_ns, trace.period_s) if in_a_row else np.arange(len(code))
        edges_j = _edges_j(row, code, _between(sorted_out.energy, start_ns, end_ns), length_s, trace.period_s)
        found += [
            Region(
                name=word,
                domain=trace.domain,
                energy_j=told.energy_of(open_at.times[number]),
                rms_j=float(np.hypot(told.rms_of(open_at.times[number]), edges_j[number])),
                seconds=float(length_s[code == number].sum()),
                calls=int((code == number).sum()),
            )
            for number, word in enumerate(words.tolist())
        ]
    return found


def with_counts(found: Sequence[Region], rows: Sequence[Mapping[str, Any]]) -> list[Region]:
    """The regions with what was counted in the stretches of their names, where all of a name's count the same
    unit: else their energy is not that of what was counted."""
    units: dict[str, set[str]] = {}
    counts: dict[str, float] = {}
    for row in rows:
        units.setdefault(row["name"], set()).add(row.get("unit") or "")
        counts[row["name"]] = counts.get(row["name"], 0.0) + (row.get("count") or 0.0)
    one_unit = {name: unit for name, (unit, *others) in units.items() if unit and not others}
    return [
        replace(one, count=counts[one.name], unit=one_unit[one.name]) if one.name in one_unit else one
        for one in found
    ]


@dataclass(frozen=True, eq=False)
class _Open:
    """What is open when: before the first border, between each two, and after the last, one of several kinds
    of time. ``times[n, k]`` is how many stretches of name ``n`` are open in time of kind ``k``."""

    borders_ns: Int64
    kind: Int64
    times: Float64

    @classmethod
    def of(cls, code: Int64, start_ns: Int64, end_ns: Int64, names: int) -> _Open:
        """Each name has a number of its own, and a kind of time the sum of those that are open."""
        number = np.random.default_rng(0).integers(1, 1 << 63, names, np.uint64)[code]
        borders_ns, place = np.unique(np.concatenate((start_ns, end_ns)), return_inverse=True)
        opened = np.zeros(len(borders_ns) + 1, np.uint64)
        np.add.at(opened[1:], place, np.concatenate((number, -number)))
        _, example, kind = np.unique(np.cumsum(opened), return_index=True, return_inverse=True)
        at_ns = np.concatenate((borders_ns[:1] - 1, borders_ns))[example]
        times = [_open_of(start_ns[code == one], end_ns[code == one], at_ns) for one in range(names)]
        return cls(borders_ns, np.asarray(kind, np.int64), np.array(times).reshape(names, len(example)))

    def mixture(self, trace: PowerTrace, sorted_out: Supply) -> Mixture:
        """The seconds of each kind in the meter's updates, as far as they are the program's."""
        edges_ns = trace.edges_ns
        cut_ns = np.unique(np.concatenate((edges_ns, self.borders_ns)))
        update = np.searchsorted(edges_ns, cut_ns[:-1], side="right") - 1
        inside = np.flatnonzero((update >= 0) & (update < len(trace)))
        return Mixture.of(
            update[inside],
            self.kind[np.searchsorted(self.borders_ns, cut_ns[inside], side="right")],
            _between(sorted_out.seconds, cut_ns[inside], cut_ns[inside + 1]),
            _between(sorted_out.energy, edges_ns[:-1], edges_ns[1:]),
            self.times.shape[1],
        )


def _open_of(start_ns: Int64, end_ns: Int64, at_ns: Int64) -> Float64:
    begun, over = (np.searchsorted(np.sort(one), at_ns, side="right") for one in (start_ns, end_ns))
    return np.asarray(begun - over, np.float64)


def _edges_j(row: Int64, code: Int64, energy_j: Float64, length_s: Float64, period_s: float) -> Float64:
    """What the meter does not resolve at the edges of each name's rows, as an rms."""
    row_j, row_s, of_row = (
        np.bincount(row, energy_j),
        np.bincount(row, length_s),
        np.zeros(row.max() + 1, int),
    )
    of_row[row] = code
    return np.sqrt(np.bincount(of_row, (EDGE_RMS * period_s * row_j / np.maximum(row_s, 1e-9)) ** 2))


def _rows(code: Int64, start_ns: Int64, end_ns: Int64, period_s: float) -> Int64:
    """The number of the row that each stretch is in; they are in order of time."""
    apart = (np.diff(code) != 0) | (start_ns[1:] - end_ns[:-1] > period_s * NS_PER_S)
    return np.concatenate(([0], np.cumsum(apart)))


def _between(curve: Curve, start_ns: Int64, end_ns: Int64) -> Float64:
    """What flows from each start to its end."""
    if not len(curve.amount):
        return np.zeros(len(start_ns))
    until, origin_ns = running(curve.amount), curve.edges_ns[0]
    at = [np.interp(t_ns - origin_ns, curve.edges_ns - origin_ns, until) for t_ns in (start_ns, end_ns)]
    return np.asarray(np.maximum(at[1] - at[0], 0.0), np.float64)
