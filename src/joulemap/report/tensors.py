"""The tensors that cost most, layers of a kind together: by energy (STEF) and by power (STPF)."""

from __future__ import annotations

from typing import Any

from joulemap.accounting.footprint import Footprint
from joulemap.program import SEPARATOR
from joulemap.report.numbers import short
from joulemap.views.question import Line, Question
from joulemap.views.show import SMALL, answer

TOP = 20


def tensors(footprint: Footprint) -> dict[str, Any]:
    """The lines of ``show --by tensor --summarised`` with the most energy; and of those that count, the lines
    with the most power. What ran for a few microseconds has any power, and it says nothing."""
    lines = answer(footprint, Question(by="tensor", summarised=True)).lines
    counting = [line for line in lines if line.share >= SMALL and line.active_s and not _is_bucket(line.path)]
    hottest = sorted(counting, key=lambda line: -(line.power_w or 0.0))
    return {
        "least_share": SMALL,
        "energy": [_tensor(line) for line in lines[:TOP]],
        "power": [_tensor(line) for line in hottest[:TOP]],
    }


def _tensor(line: Line) -> dict[str, Any]:
    return {
        "name": line.path,
        "energy_j": short(line.energy_j),
        "low_j": short(line.low_j),
        "high_j": short(line.high_j),
        "share": short(line.share),
        "active_s": short(line.active_s or 0.0),
        "calls": line.calls,
        "phases": {phase: short(energy) for phase, energy in line.phases.items()},
        "provenance": line.provenance,
        "spread": line.spread,
        "interval": line.interval,
    }


def _is_bucket(name: str) -> bool:
    """``(start-up)`` and its like are time, not tensors."""
    return name.startswith("(") and SEPARATOR not in name
