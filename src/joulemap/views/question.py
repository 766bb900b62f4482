"""What the user asked, and the lines that answer it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from joulemap.accounting.footprint import Footprint
from joulemap.accounting.regions import Region

By = Literal["module", "tensor", "op", "phase", "device", "step", "kind", "region"]
BYS: tuple[By, ...] = ("module", "tensor", "op", "phase", "device", "step", "kind", "region")
SPANS = ("step", "kind", "region")
"""Lines that stand for stretches of time, whatever runs in them."""


@dataclass(frozen=True, slots=True)
class Question:
    """What the user asked for; ``regions`` are those of the program, or the kinds of its steps."""

    by: By = "module"
    depth: int | None = None
    top: int | None = None
    summarised: bool = False
    rules: Sequence[str] = ()
    power: bool = False
    everything: bool = False
    baseline_w: Mapping[str, float] | None = None
    regions: Sequence[Region] = ()


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a table. ``share`` is of what the program drew, idle included; None is unknown.

    ``time_based_j`` is what sharing by time alone gives, where that is not the rule. ``count`` is what was
    done of a ``unit`` meanwhile, where the program has counted that."""

    label: str
    path: str
    depth: int
    energy_j: float
    low_j: float
    high_j: float
    share: float
    active_s: float | None
    calls: int | None
    phases: Mapping[str, float] = field(default_factory=dict)
    provenance: str = "apportioned"
    spread: bool = True
    interval: bool = True
    time_based_j: float | None = None
    more: int = 0
    count: float = 0.0
    unit: str = ""

    @property
    def half_width_j(self) -> float | None:
        """The longer side of the interval (below, zero may cut it short); None where it is not known."""
        return max(self.high_j - self.energy_j, self.energy_j - self.low_j) if self.interval else None

    @property
    def each_j(self) -> float | None:
        """Of one unit; None where nothing was counted."""
        return self.energy_j / self.count if self.unit and self.count else None

    @property
    def power_w(self) -> float | None:
        """Mean power while it ran (the STPF's quantity)."""
        return self.energy_j / self.active_s if self.active_s else None


@dataclass(frozen=True, slots=True)
class Answer:
    """A table's lines, those of idle, and what stands beside them."""

    question: Question
    footprint: Footprint
    lines: tuple[Line, ...]
    idle: tuple[Line, ...]
    phases: tuple[str, ...]


def drawn_j(footprint: Footprint) -> float:
    """What the program drew while it was recorded: the whole that shares are of."""
    return footprint.attributed_j + footprint.idle_j
