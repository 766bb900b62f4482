"""What a recording comes to: energy gross and net, by device and phase, power, waiting, coverage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from joulemap.accounting.account import Account
from joulemap.accounting.footprint import Footprint
from joulemap.devices import Device
from joulemap.labels import Labels
from joulemap.traces import PowerTrace
from joulemap.units import NS_PER_S, fmt_share
from joulemap.views.question import Question
from joulemap.views.show import to_json

J_PER_KWH = 3.6e6


def summary(
    footprint: Footprint,
    power: list[PowerTrace],
    window_ns: tuple[int, int] | None,
    baseline_w: Mapping[str, float] | None,
    intensity_g_per_kwh: float | None,
) -> dict[str, Any]:
    """The figures of ``show --json``, with what people ask next."""
    shown = to_json(footprint, Question(by="phase"))
    net = None if baseline_w is None else footprint.net(baseline_w)
    drawn_j = footprint.attributed_j + footprint.idle_j
    traces = {trace.domain.name: trace for trace in power}
    return {
        **{key: shown[key] for key in _SUMS},
        "drawn_j": drawn_j,
        "attributed": _interval(footprint),
        "kwh": drawn_j / J_PER_KWH,
        "co2e_g": None if intensity_g_per_kwh is None else drawn_j / J_PER_KWH * intensity_g_per_kwh,
        "intensity_g_per_kwh": intensity_g_per_kwh,
        "net": None if net is None or baseline_w is None else _net(net, baseline_w),
        "projected_j": float(footprint.projected_j.sum()),
        "provenances": sorted({account.domain.provenance for account in footprint.accounts}, reverse=True),
        "waiting": _waiting(footprint),
        "domains": [
            _domain(account, footprint, traces.get(account.domain.name), window_ns)
            | _net_of(net, domain=account.domain.name)
            for account in footprint.accounts
        ],
        "phases": [row | _net_of(net, phase=row["phase"]) for row in shown["rows"]],
        "warnings": shown["warnings"],
        "notes": shown["notes"],
    }


_SUMS = ("rule", "measured_j", "attributed_j", "idle_j", "other_processes_j", "outside_j")


def _interval(footprint: Footprint) -> dict[str, Any]:
    """All attributed energy as one row, with its own interval."""
    whole = footprint.rollup(Labels.of("all", len(footprint)), keep=())
    if not len(whole):
        return {"energy_j": 0.0, "low_j": 0.0, "high_j": 0.0, "interval": True, "provenance": "measured"}
    return {
        "energy_j": float(whole.energy_j[0]),
        "low_j": float(whole.low_j[0]),
        "high_j": float(whole.high_j[0]),
        "interval": bool(whole.has_interval[0]),
        "provenance": whole.provenance[0],
    }


def _net_of(net: Footprint | None, **labels: str) -> dict[str, float]:
    """The net energy of some rows, where it is known."""
    return {} if net is None else {"net_j": net.where(**labels).attributed_j}


def _net(net: Footprint, baseline_w: Mapping[str, float]) -> dict[str, Any]:
    return {
        "baseline_w": dict(baseline_w),
        "baseline_j": sum(account.baseline_j for account in net.accounts),
        "idle_j": net.idle_j,
        "attributed": _interval(net),
    }


def _domain(
    account: Account, footprint: Footprint, trace: PowerTrace | None, window_ns: tuple[int, int] | None
) -> dict[str, Any]:
    low_j, high_j = account.idle_interval_j(footprint.blocks)
    rows = footprint.where(domain=account.domain.name)
    mean_w, peak_w = (None, None) if trace is None else _mean_and_peak_w(trace, window_ns)
    return {
        "name": account.domain.name,
        "device": account.domain.device,
        "sensor": account.domain.sensor,
        "provenance": account.domain.provenance,
        "update_period_s": account.period_s,
        "measured_j": account.measured_j,
        "attributed": _interval(rows),
        "idle_j": account.idle_j,
        "idle_low_j": low_j,
        "idle_high_j": high_j,
        "other_processes_j": account.other_processes_j,
        "outside_j": account.outside_j,
        "mean_w": mean_w,
        "peak_w": peak_w,
    }


def _mean_and_peak_w(
    trace: PowerTrace, window_ns: tuple[int, int] | None
) -> tuple[float | None, float | None]:
    """Of the recording's own time; None where nothing was read in it."""
    if not len(trace):
        return None, None
    begin, end = window_ns or (int(trace.edges_ns[0]), int(trace.edges_ns[-1]))
    begin, end = max(begin, int(trace.edges_ns[0])), min(end, int(trace.edges_ns[-1]))
    inside = (trace.edges_ns[1:] > begin) & (trace.edges_ns[:-1] < end)
    if end <= begin or not inside.any():
        return None, None
    mean_w = trace.energy_between(begin, end) / ((end - begin) / NS_PER_S)
    return mean_w, float(np.max(trace.power_w[inside]))


def _waiting(footprint: Footprint) -> list[str]:
    """In words, of each device: how much of its energy it drew while nothing of the program ran on it. A CPU
    that never waits is not worth a word: it launches what others wait for."""
    idle_j: dict[str, float] = {}
    drawn_j: dict[str, float] = {}
    for account in footprint.accounts:
        device = account.domain.device
        idle_j[device] = idle_j.get(device, 0.0) + account.idle_j
        worked_j = footprint.where(domain=account.domain.name).attributed_j
        drawn_j[device] = drawn_j.get(device, 0.0) + account.idle_j + worked_j
    share = {device: idle_j[device] / drawn_j[device] for device in idle_j if drawn_j[device] > 0}
    return [
        f"{_spoken(device, list(idle_j))} waited for {fmt_share(part)} of its energy."
        for device, part in share.items()
        if part or Device.parse(device).kind != "CPU"
    ]


def _spoken(device: str, devices: list[str]) -> str:
    """``The GPU`` where there is one, else ``GPU:1``."""
    kind = Device.parse(device).kind
    alone = [Device.parse(other).kind for other in devices].count(kind) == 1
    return f"The {kind}" if alone else device
