"""What replays drew of a device that other processes use, too.

The monitor tells once a second what part of it was the program's. A replay may take half of that, and what is
before or after it, at rest, has none of it: so replays read off themselves how much processor time they and
everybody had by when, and the parts are told apart there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from joulemap.accounting.supply import supply
from joulemap.calibration.recorded import own_power
from joulemap.devices import Device
from joulemap.processes import ProcessShares
from joulemap.recording import Recording
from joulemap.traces import Float64, PowerTrace

SPENT = "spent"
"""Of a line of the replays: readings, each a time (epoch ns), own seconds and everybody's."""


def own_power_of_replays(
    recording: Recording, power: PowerTrace, lines: Sequence[Mapping[str, Any]]
) -> PowerTrace:
    """What a domain drew for the replays, with the meter's own edges; of a device that nobody shares, all."""
    readings, share = _readings(lines), recording.shares().get(power.domain.name)
    if share is None or not len(share) or not len(readings) or not len(power):
        return own_power(recording, power)
    devices = (Device.parse(one.domain.device) for one in recording.power())
    sockets = {one.index for one in devices if one.kind == "CPU" and one.index is not None}
    apart = told_apart(share, readings, is_all=len(sockets) < 2)
    own = supply(power, shares={power.domain.name: apart}).energy
    return PowerTrace(power.domain, power.edges_ns, own.increments(power.edges_ns), power.gap)


def told_apart(shares: ProcessShares, readings: Float64, is_all: bool) -> ProcessShares:
    """The same shares, cut wherever there is a reading, and what it was between two. Readings are of all
    processors: where a device is not all of them, they say how what was seen of it was spread."""
    begin_ns = int(shares.edges_ns[0])
    edges_ns = np.union1d(shares.edges_ns, readings[:, 0].astype(np.int64))
    at_ns = (edges_ns - begin_ns).astype(np.float64)
    own_s, all_s = (
        np.diff(np.interp(at_ns, readings[:, 0] - begin_ns, readings[:, column])) for column in (1, 2)
    )
    middle = edges_ns[:-1] + np.diff(edges_ns) // 2
    here, share = _part(own_s, all_s), shares.at(middle)
    whole = np.clip(np.searchsorted(shares.edges_ns, middle, side="right") - 1, 0, len(shares) - 1)
    own_in_it_s, all_in_it_s = (np.bincount(whole, one, len(shares)) for one in (own_s, all_s))
    seen = _part(np.asarray(own_in_it_s, np.float64), np.asarray(all_in_it_s, np.float64))[whole]
    spread = np.divide(share * here, seen, out=share.copy(), where=seen > 0)
    found = here if is_all else np.minimum(spread, 1.0)
    share = np.where(np.isfinite(here), found, share)
    return ProcessShares.from_columns(shares.domain, edges_ns, share)


def part_of_others(lines: Sequence[Mapping[str, Any]]) -> float:
    """What part of the processors' time others had while operations were replayed; 0 where nobody looked."""
    own_s = all_s = 0.0
    for one in lines:
        readings = one.get(SPENT, ())
        if one.get("key") and readings:
            (_, begin_s, every_begin_s), (_, end_s, every_end_s) = readings[0], readings[-1]
            own_s, all_s = own_s + end_s - begin_s, all_s + every_end_s - every_begin_s
    return max(1 - own_s / all_s, 0.0) if all_s > 0 else 0.0


def _part(own_s: Float64, all_s: Float64) -> Float64:
    """NaN where nobody did anything; everybody's time is in ticks, and may seem to be less than the own."""
    part = np.full(len(own_s), np.nan)
    np.divide(own_s, np.maximum(own_s, all_s), out=part, where=all_s > 0)
    return part


def _readings(lines: Sequence[Mapping[str, Any]]) -> Float64:
    """In order of time, each time once."""
    every = {one[0]: one for line in lines for one in line.get(SPENT, ())}
    return np.array([every[t_ns] for t_ns in sorted(every)], np.float64).reshape(-1, 3)
