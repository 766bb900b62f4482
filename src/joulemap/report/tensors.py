"""The tensors that cost most, layers of a kind together: by energy (STEF) and by power (STPF)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from joulemap.accounting.footprint import Footprint
from joulemap.program import SEPARATOR
from joulemap.report.numbers import short
from joulemap.views.question import Line, Question
from joulemap.views.show import SMALL, answer

TOP = 20


def tensors(footprint: Footprint) -> dict[str, Any]:
    """The lines of ``show --by tensor --summarised`` with the most energy; and of those that count, the lines
    with the most power. What ran for a few microseconds has any power, and it says nothing. Where the rule is
    not time alone, also the lines that it has changed most."""
    lines = answer(footprint, Question(by="tensor", summarised=True)).lines
    counting = [line for line in lines if line.share >= SMALL and line.active_s and not _is_bucket(line.path)]
    hottest = sorted(counting, key=lambda line: -(line.power_w or 0.0))
    return {
        "least_share": SMALL,
        "energy": [_tensor(line) for line in lines[:TOP]],
        "power": [_tensor(line) for line in hottest[:TOP]],
        "changed": None if footprint.beside_j is None else [_tensor(line) for line in _changed(lines)],
    }


def _changed(lines: Sequence[Line]) -> list[Line]:
    """Those with the largest difference to what sharing by time alone gives."""
    return sorted(lines, key=lambda line: -abs(line.energy_j - (line.time_based_j or 0.0)))[:TOP]


def _tensor(line: Line) -> dict[str, Any]:
    beside = {} if line.time_based_j is None else {"time_based_j": short(line.time_based_j)}
    return beside | {
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
