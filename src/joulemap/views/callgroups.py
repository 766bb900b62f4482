"""Calls put together: by the API they call and the site that calls it, in one run or over several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

import numpy as np

from joulemap.accounting.calls import NO_CALL, CallFootprint
from joulemap.accounting.student import NORMAL_975, student_975
from joulemap.accounting.sums import sums_by
from joulemap.calls.table import Calls
from joulemap.traces import Float64
from joulemap.units import NS_PER_S


@dataclass(frozen=True, slots=True)
class Place:
    """An API at a site in the source: what is kept apart over runs."""

    api: str
    file: str
    line: int
    column: int

    @property
    def where(self) -> str:
        """``train.py:31``."""
        return f"{PurePath(self.file).name}:{self.line}"


@dataclass(frozen=True, slots=True)
class Group:
    """All calls of an API at a site. Without ``net_j`` no baseline is known; ``runs`` is how many recordings
    the figures are means over, and ``low_j`` and ``high_j`` then come from their spread."""

    place: Place
    calls: float
    raised: float
    seconds: float
    energy_j: float
    low_j: float
    high_j: float
    inclusive_j: float
    net_j: float | None
    lag_j: float | None
    timed_out: float = 0
    runs: int = 1
    deviation_j: float | None = None

    @property
    def half_width_j(self) -> float:
        return max(self.high_j - self.energy_j, self.energy_j - self.low_j)


def groups(calls: Calls, found: CallFootprint) -> list[Group]:
    """The sites of one recording, most energy first."""
    places, of = _places(calls)
    count = len(places)

    def added(amounts: Float64) -> list[float]:
        total: list[float] = sums_by(of, amounts, count).tolist()
        return total

    energy, half = added(found.energy_j), [NORMAL_975 * rms**0.5 for rms in added(found.rms_j**2)]
    net = None if found.net_j is None else added(found.net_j)
    lag = None if found.lag_j is None else added(found.lag_j)
    inclusive = added(np.where(_outermost_of_its_kind(calls, found), found.inclusive_j, 0.0))
    seconds = added((calls.end_ns - calls.start_ns) / NS_PER_S)
    raised = added((calls.outcome.codes == calls.outcome.code("raised")).astype(np.float64))
    late = added((calls.gate_outcome.codes == calls.gate_outcome.code("timed out")).astype(np.float64))
    number = added(np.ones(len(calls)))
    made = [
        Group(
            place=place,
            calls=number[row],
            raised=raised[row],
            seconds=seconds[row],
            energy_j=energy[row],
            low_j=max(energy[row] - half[row], 0.0),
            high_j=energy[row] + half[row],
            inclusive_j=inclusive[row],
            net_j=None if net is None else net[row],
            lag_j=None if lag is None else lag[row],
            timed_out=late[row],
        )
        for row, place in enumerate(places)
    ]
    return sorted(made, key=lambda group: -group.energy_j)


def over_runs(runs: Sequence[Sequence[Group]]) -> list[Group]:
    """Every site's mean over runs, with the 95 % interval that their spread gives; a run in which a site was
    not called counts as nothing for it."""
    places = dict.fromkeys(group.place for run in runs for group in run)
    by_place = [{group.place: group for group in run} for run in runs]
    made = [_mean(place, [run.get(place) for run in by_place]) for place in places]
    return sorted(made, key=lambda group: -group.energy_j)


def by_api(found: Sequence[Group]) -> list[tuple[Group, list[Group]]]:
    """Each API with its sites. Spreads add as squares; a site inside another of its API counts once."""
    apis: dict[str, list[Group]] = {}
    for group in found:
        apis.setdefault(group.place.api, []).append(group)
    made = [(_joined(api, sites), sites) for api, sites in apis.items()]
    return sorted(made, key=lambda pair: -pair[0].energy_j)


def _places(calls: Calls) -> tuple[list[Place], np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """The distinct places, and which of them each call is at."""
    sites, rows = calls.sites, calls.sites.rows(calls.site)
    key = rows * np.int64(max(len(calls.api.words), 1)) + calls.api.codes
    distinct, of = np.unique(key, return_inverse=True)
    width = max(len(calls.api.words), 1)
    places = [
        Place(
            calls.api.words[number % width],
            sites.file.words[sites.file.codes[number // width]],
            int(sites.line[number // width]),
            int(sites.column[number // width]),
        )
        for number in distinct.tolist()
    ]
    return places, of.astype(np.int64)


def _outermost_of_its_kind(calls: Calls, found: CallFootprint) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Whether no call around it is of the same API: else its energy would count twice for that API."""
    parent, api = found.calls.parent, calls.api.codes
    outermost = np.ones(len(calls), bool)
    rows, around = np.arange(len(calls)), parent
    while True:
        inside = around != NO_CALL
        rows, around = rows[inside], around[inside]
        if not len(rows):
            return outermost
        outermost[rows] &= api[rows] != api[around]
        around = parent[around]


def _mean(place: Place, found: Sequence[Group | None]) -> Group:
    there = [group for group in found if group is not None]
    runs = len(found)
    energy = np.array([0.0 if group is None else group.energy_j for group in found])
    mean = float(energy.mean())
    deviation = float(energy.std(ddof=1)) if runs > 1 else None
    half = max((group.half_width_j for group in there), default=0.0)
    if deviation is not None:
        half = student_975(runs - 1) * deviation / runs**0.5

    def average(values: Sequence[float]) -> float:
        return sum(values) / runs

    def average_known(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return average(known) if len(known) == len(there) else None

    return Group(
        place=place,
        calls=average([group.calls for group in there]),
        raised=average([group.raised for group in there]),
        seconds=average([group.seconds for group in there]),
        energy_j=mean,
        low_j=max(mean - half, 0.0),
        high_j=mean + half,
        inclusive_j=average([group.inclusive_j for group in there]),
        net_j=average_known([group.net_j for group in there]),
        lag_j=average_known([group.lag_j for group in there]),
        timed_out=average([group.timed_out for group in there]),
        runs=runs,
        deviation_j=deviation,
    )


def _joined(api: str, sites: Sequence[Group]) -> Group:
    energy = sum(site.energy_j for site in sites)
    half = sum(site.half_width_j**2 for site in sites) ** 0.5
    nets = [site.net_j for site in sites if site.net_j is not None]
    lags = [site.lag_j for site in sites if site.lag_j is not None]
    only = sites[0].place if len(sites) == 1 else Place(api, "", 0, 0)
    return Group(
        place=only,
        calls=sum(site.calls for site in sites),
        raised=sum(site.raised for site in sites),
        seconds=sum(site.seconds for site in sites),
        energy_j=energy,
        low_j=max(energy - half, 0.0),
        high_j=energy + half,
        inclusive_j=sum(site.inclusive_j for site in sites),
        net_j=sum(nets) if len(nets) == len(sites) else None,
        lag_j=sum(lags) if len(lags) == len(sites) else None,
        timed_out=sum(site.timed_out for site in sites),
        runs=sites[0].runs,
        deviation_j=None,
    )
