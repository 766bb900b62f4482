"""All that the page shows of one recording, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from joulemap.accounting.footprint import Footprint
from joulemap.recording import Recording
from joulemap.report.activity import MOST, activity
from joulemap.report.calls import call_sites
from joulemap.report.nodes import nodes, phases
from joulemap.report.summary import summary
from joulemap.report.tensors import tensors
from joulemap.report.timeline import power_line, span_ns, steps
from joulemap.units import NS_PER_S

FORMAT = 1
"""The version of the page's data."""


def contents(
    recording: Recording,
    footprint: Footprint,
    baseline_w: Mapping[str, float] | None = None,
    intensity_g_per_kwh: float | None = None,
) -> dict[str, Any]:
    """One recording, accounted, as the page holds it."""
    info = recording.info
    return {
        "format": FORMAT,
        "name": recording.path.name,
        "about": _about(recording),
        "summary": summary(footprint, recording.power(), info.window_ns, baseline_w, intensity_g_per_kwh),
        "phases": phases(footprint),
        "nodes": nodes(footprint, recording.program()),
        "tensors": tensors(footprint),
        "timeline": _timeline(recording, footprint),
        "calls": call_sites(recording),
    }


def _about(recording: Recording) -> dict[str, Any]:
    info = recording.info
    return {
        "command": info.command,
        "source": info.source,
        "status": info.status,
        "host": {key: str(value) for key, value in info.host.items()},
        "versions": info.versions,
        "created_ns": info.created_ns,
        "seconds": None if info.window_ns is None else (info.window_ns[1] - info.window_ns[0]) / NS_PER_S,
        "events": len(recording.events()),
    }


def _timeline(recording: Recording, footprint: Footprint) -> dict[str, Any]:
    power, window_ns = recording.power(), recording.info.window_ns
    span = span_ns(power, window_ns)
    start_ns, end_ns = window_ns or span
    return {
        "span_s": (span[1] - span[0]) / NS_PER_S,
        "window_s": [(start_ns - span[0]) / NS_PER_S, (end_ns - span[0]) / NS_PER_S],
        "power": [power_line(trace, span[0]) for trace in power if len(trace)],
        "steps": steps(recording.steps(), footprint, span[0]),
        "activity": activity(recording.events(), span, _largest_modules(footprint)),
    }


def _largest_modules(footprint: Footprint) -> list[str]:
    tree = footprint.tree()
    ordered = sorted((node for _, node in tree.walk()), key=lambda node: -node.energy_j)
    return [node.path for node in ordered[:MOST]]
