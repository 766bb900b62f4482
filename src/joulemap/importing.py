"""Bring your own traces: an event trace and a power log, joined into a recording."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from joulemap import __version__
from joulemap.errors import InputError
from joulemap.frameworks import read_trace
from joulemap.frameworks.imported import ImportedTrace
from joulemap.powerlog import check_overlap, constant_power, read_power
from joulemap.recording import RecordingInfo, RecordingWriter
from joulemap.traces import PowerTrace
from joulemap.units import NS_PER_S, fmt, fmt_seconds

LONGEST_SHIFT_S = 100 * 365 * 86_400
_CONSTANT = re.compile(r"[^=/\\]+=[^=]+$")


@dataclass(frozen=True, eq=False)
class Imported:
    """What was understood, in words and in numbers."""

    output: Path
    trace: ImportedTrace
    power: list[PowerTrace]

    @property
    def notes(self) -> list[str]:
        return [
            f"events: {self.trace.framework}",
            *self.trace.notes,
            *(_described(one) for one in self.power),
        ]

    def to_json(self) -> dict[str, Any]:
        """What ``import --json`` prints."""
        span = self.trace.events.span_ns
        return {
            "format": 1,
            "recording": str(self.output),
            "framework": self.trace.framework,
            "events": len(self.trace.events),
            "steps": len(self.trace.steps),
            "window_ns": list(span) if span else None,
            "domains": [
                {
                    "name": one.domain.name,
                    "device": one.domain.device,
                    "provenance": one.domain.provenance,
                    "intervals": len(one),
                    "measured_j": one.total_j,
                }
                for one in self.power
            ],
            "notes": self.trace.notes,
        }


def import_traces(
    events: Sequence[Path],
    power: Sequence[str | os.PathLike[str]],
    output: Path,
    *,
    shift_s: float = 0.0,
    overwrite: bool = False,
    progress: Callable[[float], None] | None = None,
) -> Imported:
    """Read traces and power, check that they belong together, and write the recording.

    ``power`` holds files, or assumed constants such as ``CPU:0=65W``. ``shift_s`` is added to the times of
    power files.
    """
    trace = read_trace(events, progress)
    span = trace.events.span_ns
    if span is None:
        raise InputError(
            f"{events[0]} has no events that take any time.", "Was the profiler on while the program ran?"
        )
    traces = [one for spec in power for one in _read(spec, span, shift_s)]
    check_overlap(trace.events, traces)
    info = RecordingInfo(
        command=["joulemap", "import", *(str(path) for path in events)],
        source="import",
        host={"imported_on": platform.node(), "system": platform.platform()},
        versions={"joulemap": __version__, "python": platform.python_version(), "framework": trace.framework},
        window_ns=span,
        domains=[one.domain for one in traces],
    )
    with RecordingWriter.create(output, info, overwrite=overwrite) as writer:
        writer.put_events(trace.events)
        if len(trace.steps):
            writer.put_steps(trace.steps)
        for one in traces:
            writer.put_power(one)
        writer.put_program(trace.program)
    return Imported(output, trace, traces)


def _read(spec: str | os.PathLike[str], span_ns: tuple[int, int], shift_s: float) -> list[PowerTrace]:
    if isinstance(spec, str) and _CONSTANT.match(spec) and not Path(spec).exists():
        return [constant_power(spec, span_ns)]
    traces = read_power(Path(spec))
    if abs(shift_s) > LONGEST_SHIFT_S:
        raise InputError(f"A clock is not off by {shift_s:g} s.", "Shift by seconds: 2s, -150ms.")
    shift_ns = np.int64(round(shift_s * NS_PER_S))
    if not shift_ns:
        return traces
    return [PowerTrace(one.domain, one.edges_ns + shift_ns, one.energy_j, one.gap) for one in traces]


def _described(one: PowerTrace) -> str:
    seconds = float(one.edges_ns[-1] - one.edges_ns[0]) / NS_PER_S
    return (
        f"power: {one.domain.name} on {one.domain.device}, {one.domain.provenance}, "
        f"{fmt(one.total_j, 'J', digits=4)} in {fmt_seconds(seconds)} "
        f"({len(one):,} intervals of {fmt_seconds(one.period_s)}, mean {fmt(one.total_j / seconds, 'W')})"
    )
