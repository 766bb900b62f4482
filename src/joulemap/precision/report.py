"""Everything that ``joulemap precision`` says, as plain data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from joulemap.accounting import Footprint
from joulemap.comparing.similarity import Matrix
from joulemap.precision.footprints import stef_of, stefs_by_stretch
from joulemap.precision.overhead import Cost, Overhead
from joulemap.precision.repeats import Widened, stability, widening
from joulemap.precision.sampling import Sparsed, sparsing
from joulemap.recording import Recording

FORMAT = 1
"""The version of ``precision --json``."""

MOST_STRETCHES = 12
"""Stretches of steps are joined until there are at most so many: a matrix that can be read."""

FEW_RUNS, USUAL_RUNS = 10, 5


@dataclass(frozen=True, slots=True)
class Report:
    """What was found. ``of`` says what a run is: a recording, or a stretch of one recording's steps."""

    of: Literal["recordings", "stretches of steps"]
    runs: int
    together: int
    asss: tuple[Sparsed, ...]
    assw: tuple[Widened, ...]
    stability: Matrix
    overhead: Overhead | None = None


def examine(
    recordings: Sequence[Recording],
    footprints: Sequence[Footprint],
    together: int | None = None,
    overhead: Overhead | None = None,
    advance: Callable[[float], None] | None = None,
) -> Report:
    """Sampling precision of the first recording, and what repeats say: of recordings, or of one's steps."""
    several = len(recordings) > 1
    stefs = [stef_of(one) for one in footprints] if several else stefs_by_stretch(footprints[0])
    size = together or _usual(len(stefs), several)
    return Report(
        of="recordings" if several else "stretches of steps",
        runs=len(stefs),
        together=size,
        asss=tuple(sparsing(recordings[0], advance)),
        assw=tuple(widening(stefs, size)),
        stability=stability(stefs, size),
        overhead=overhead,
    )


def _usual(runs: int, several: bool) -> int:
    """Five recordings are an experiment, as in the paper, where there are ten of them or more."""
    if several:
        return USUAL_RUNS if runs >= FEW_RUNS else 1
    return max(-(-runs // MOST_STRETCHES), 1)


def to_json(report: Report) -> dict[str, Any]:
    """The contract of ``precision --json``, format 1."""
    return {
        "format": FORMAT,
        "of": report.of,
        "runs": report.runs,
        "together": report.together,
        "asss": [
            {"factor": one.factor, "period_s": one.period_s, "pcc": one.similarity} for one in report.asss
        ],
        "assw": [{"experiments": one.experiments, "pcc": one.similarity} for one in report.assw],
        "stability_pcc": report.stability,
        "overhead": None if report.overhead is None else _overhead(report.overhead),
    }


def _overhead(overhead: Overhead) -> dict[str, Any]:
    return {
        "time": _cost(overhead.time),
        "energy": _cost(overhead.energy),
        "pairs": [
            {
                "plain_s": plain.seconds,
                "recorded_s": recorded.seconds,
                "plain_j": plain.energy_j,
                "recorded_j": recorded.energy_j,
            }
            for plain, recorded in overhead.pairs
        ],
    }


def _cost(cost: Cost) -> dict[str, float | None]:
    return {"relative": cost.relative, "low": cost.low, "high": cost.high}
