"""Gross and net: what a device draws when nothing runs, and energy above it.

Gross energy includes the baseline, net energy does not. The baseline is given (measured by
``joulemap calibrate --idle``) or read off the recording's own quiet intervals.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from joulemap.accounting.account import Account
from joulemap.accounting.footprint import Footprint
from joulemap.accounting.student import NORMAL_975
from joulemap.devices import Device
from joulemap.errors import InputError
from joulemap.traces import EventTrace, Int64, PowerTrace, Steps
from joulemap.units import NS_PER_S

FEWEST_INTERVALS = 5
_MEDIAN = (np.pi / 2) ** 0.5
"""The error of a median against that of a mean, of readings that scatter normally."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """The idle power of a domain with its 95 % interval, and how long it was seen for."""

    domain: str
    power_w: float
    low_w: float
    high_w: float
    seconds: float


def quiet_baseline(
    power: PowerTrace,
    events: EventTrace,
    steps: Steps | None = None,
    window_ns: tuple[int, int] | None = None,
) -> Baseline | None:
    """The median power of the intervals in which nothing ran on the domain's device, and one interval
    away from any event, since sensors lag. None where the recording has too few of them.

    Only time that was traced can be known to be quiet: not what lies outside the window (by default, the
    span of the events), nor steps that were only metered.
    """
    quiet = _quiet(power, events, steps, window_ns or events.span_ns)
    readings = power.power_w[quiet]
    if len(readings) < FEWEST_INTERVALS:
        return None
    half = NORMAL_975 * _MEDIAN * readings.std(ddof=1) / len(readings) ** 0.5
    middle = float(np.median(readings))
    seconds = float(np.diff(power.edges_ns)[quiet].sum()) / NS_PER_S
    return Baseline(power.domain.name, middle, max(middle - half, 0.0), middle + half, seconds)


def _quiet(
    power: PowerTrace, events: EventTrace, steps: Steps | None, window_ns: tuple[int, int] | None
) -> NDArray[np.bool_]:
    device = Device.parse(power.domain.device)
    here = np.array([device.runs(Device.parse(word)) for word in events.device.words] or [False])
    mine = here[events.device.codes]
    start, end = events.start_ns[mine], events.end_ns[mine]
    if steps is not None:
        start = np.concatenate((start, steps.start_ns[~steps.traced]))
        end = np.concatenate((end, steps.end_ns[~steps.traced]))
    busy = _touched(power.edges_ns, start, end) | power.gap
    if window_ns is not None:
        busy |= (power.edges_ns[:-1] < window_ns[0]) | (power.edges_ns[1:] > window_ns[1])
    near: NDArray[np.bool_] = busy.copy()
    near[1:] |= busy[:-1]
    near[:-1] |= busy[1:]
    return np.logical_not(near)


def net_footprint(footprint: Footprint, baseline_w: Mapping[str, float]) -> Footprint:
    """Each row less the baseline power over the time that fell to it; the same for idle."""
    missing = [a.domain.name for a in footprint.accounts if a.domain.name not in baseline_w]
    if missing:
        raise InputError(
            f"There is no idle baseline of {missing[0]}.",
            "Give one, or record some idle time before and after the program.",
        )
    for account in footprint.accounts:
        _check_baseline(account, baseline_w[account.domain.name])
    watts = np.array([baseline_w.get(word, 0.0) for word in footprint.domain.words] or [0.0])
    baseline_j = watts[footprint.domain.codes] * footprint.share_s
    accounts = tuple(_net_account(footprint, account, baseline_w) for account in footprint.accounts)
    kept = np.divide(
        footprint.energy_j - baseline_j,
        footprint.energy_j,
        out=np.zeros(len(footprint)),
        where=footprint.energy_j > 0,
    )
    return replace(
        footprint,
        energy_j=footprint.energy_j - baseline_j,
        projected_j=footprint.projected_j * kept,
        time_based_j=footprint.time_based_j - baseline_j,
        baseline_j=baseline_j,
        accounts=accounts,
    ).check()


def _check_baseline(account: Account, watts: float) -> None:
    """A baseline is a power that the device could draw when idle."""
    drawn_j = account.measured_j - account.outside_j
    mean_w = drawn_j / account.covered_s if account.covered_s else float("inf")
    if not 0 <= watts <= 2 * mean_w:
        raise InputError(
            f"{watts:g} W cannot be the idle baseline of {account.domain.name}, which drew {mean_w:.4g} W.",
            "Give the power that it draws when nothing runs, in watts.",
        )


def _net_account(footprint: Footprint, account: Account, baseline_w: Mapping[str, float]) -> Account:
    name = account.domain.name
    watts = baseline_w[name]
    rows_s = float(footprint.share_s[footprint.domain.codes == footprint.domain.code(name)].sum())
    return replace(
        account,
        idle_j=account.idle_j - watts * account.idle_s,
        idle_time_based_j=account.idle_time_based_j - watts * account.idle_s,
        step_j=account.step_j - watts * account.step_s,
        baseline_j=watts * (rows_s + account.idle_s),
    )


def _touched(edges: Int64, start: Int64, end: Int64) -> NDArray[np.bool_]:
    """Whether any event overlaps each interval: more have started before its end than ended by its start."""
    started = np.searchsorted(np.sort(start), edges[1:], side="left")
    ended = np.searchsorted(np.sort(end), edges[:-1], side="right")
    return np.asarray(started > ended)
