"""The two verbs of the Python interface: load a recording, account it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulemap.accounting import Footprint, Rule, attribute
from joulemap.accounting.fusions import left_whole
from joulemap.accounting.watching import watched
from joulemap.errors import InputError
from joulemap.recorder.recover import recovered
from joulemap.recording import Recording
from joulemap.recording.folder import EVENTS
from joulemap.traces import PowerTrace, Steps

if TYPE_CHECKING:
    from joulemap.calibration.recorded import Calibrated


def load(path: str | os.PathLike[str], *, salvage: bool = False, whole_fusions: bool = False) -> Recording:
    """Open a recording, finishing it first where its recorder was killed. ``salvage`` goes on with what is
    left of a damaged one. ``whole_fusions`` does not split fusions over their layers, where there are any:
    each is one event, where its result was computed."""
    opened = recovered(Path(path), salvage)
    return _whole(opened) if whole_fusions and opened.program().fusions else opened


def account(
    recording: Recording | str | os.PathLike[str], rule: Rule = "exact", *, whole_fusions: bool = False
) -> Footprint:
    """Account a recording, or the recording at a path; conservation is checked. ``whole_fusions`` does not
    split fusions over their layers: each goes where its result was computed."""
    opened = recording if isinstance(recording, Recording) else load(recording)
    if whole_fusions:
        require_fusions([opened])
        opened = _whole(opened)
    events, power = opened.events(), opened.power()
    found = _calibrated(opened) if rule == "calibrated" else None
    footprint = attribute(
        events,
        power,
        rule,
        steps=_unknown(power) if EVENTS in opened.lost else opened.steps(),
        window_ns=opened.info.window_ns,
        shares=opened.shares(),
        **(_weights(found) if found else {}),
    )
    warnings = (*opened.info.warnings, *opened.notes, *footprint.warnings)
    if found is None:
        return replace(footprint, warnings=warnings)
    return replace(footprint, warnings=(*warnings, *found.warnings()), notes=tuple(found.notes()))


def require_fusions(recordings: Sequence[Recording]) -> None:
    """Whoever asks for whole fusions means some: one recording at least has them, or it is a mistake."""
    if not any(one.program().fusions for one in recordings):
        raise InputError(
            f"{', '.join(str(one.path) for one in recordings)}: no fusions that were split over layers.",
            "Those of JAX programs are; leave out --whole-fusions.",
        )


def _whole(recording: Recording) -> Recording:
    return recording.seen(lambda events: left_whole(events, recording.program().fusions))


def _calibrated(recording: Recording) -> Calibrated:
    from joulemap.calibration.recorded import calibrated

    with watched(None):  # it is no part of what is told of the accounting
        return calibrated(recording)


def _weights(found: Calibrated) -> dict[str, Any]:
    """What calibration adds to the accounting."""
    return {
        "weights": found.weights.watts,
        "idle_weight": found.calibration.idle_weight,
        "cost_rms": found.weights.cost_rms,
    }


def _unknown(power: list[PowerTrace]) -> Steps:
    """Where the events are lost, nothing is known to have been idle: all time is one untraced step."""
    edges = [int(edge) for trace in power if len(trace) for edge in (trace.edges_ns[0], trace.edges_ns[-1])]
    return Steps.from_columns(start_ns=[min(edges, default=0)], end_ns=[max(edges, default=0)], traced=False)
