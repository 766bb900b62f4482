"""All that the page shows of one recording, as plain data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from joulemap.accounting.footprint import Footprint
from joulemap.recording import Recording
from joulemap.report.activity import MOST, activity
from joulemap.report.calls import call_sites
from joulemap.report.nodes import largest, nodes, phases
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
    advance: Callable[[float], None] | None = None,
) -> dict[str, Any]:
    """One recording, accounted, as the page holds it; ``advance`` hears how much of it is done."""
    info = recording.info
    tree = nodes(footprint, recording.program(), baseline_w)
    parts: dict[str, Callable[[], Any]] = {
        "about": lambda: _about(recording),
        "summary": lambda: summary(
            footprint, recording.power(), info.window_ns, baseline_w, intensity_g_per_kwh
        ),
        "phases": lambda: phases(footprint),
        "nodes": lambda: tree,
        "tensors": lambda: tensors(footprint),
        "timeline": lambda: _timeline(recording, footprint, largest(tree, MOST)),
        "calls": lambda: call_sites(recording, baseline_w),
    }
    page: dict[str, Any] = {"format": FORMAT, "name": recording.path.name}
    for number, (name, make) in enumerate(parts.items()):
        page[name] = make()
        if advance is not None:
            advance(0.5 + 0.5 * (number + 1) / len(parts))
    return page


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


def _timeline(recording: Recording, footprint: Footprint, modules: list[str]) -> dict[str, Any]:
    power, window_ns = recording.power(), recording.info.window_ns
    span = span_ns(power, window_ns)
    start_ns, end_ns = window_ns or span
    return {
        "span_s": (span[1] - span[0]) / NS_PER_S,
        "window_s": [(start_ns - span[0]) / NS_PER_S, (end_ns - span[0]) / NS_PER_S],
        "power": [power_line(trace, span[0]) for trace in power if len(trace)],
        "steps": steps(recording.steps(), footprint, span[0]),
        "activity": activity(recording.events(), span, modules),
    }
