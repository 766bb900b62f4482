"""Everything that ``joulemap validate`` says, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from joulemap.devices import Domain
from joulemap.validating.easing import Easing
from joulemap.validating.rules import Charge
from joulemap.validating.truth import FEWEST, Truth

FORMAT = 1
"""The version of ``validate --json``."""

TIME, CALIBRATED = "time", "calibrated"


SPENT = "the budget is spent"
"""Why it ended, where a larger one would have had more blocks."""

LEAST = 0.01
"""Of the energy of a step: what takes less is shown, and does not count."""


@dataclass(frozen=True, slots=True)
class Row:
    """A target: joules of a plain step, by truth and by each rule that knows it. ``charges`` are by rule."""

    kind: str
    name: str
    truth: Truth
    charges: Mapping[str, Charge]

    @property
    def truth_j(self) -> float:
        return self.truth.step_j

    @property
    def half_j(self) -> float:
        return self.truth.half_j * self.truth.executions

    @property
    def is_known(self) -> bool:
        """Whether there are blocks enough for an interval to be believed, and it is clear of zero."""
        return self.truth.blocks >= FEWEST and self.half_j < self.truth_j

    def error(self, rule: str) -> float | None:
        """How far a rule is off, as a part of the truth; None where one of the two is not known."""
        charge = self.charges.get(rule)
        return None if charge is None or not self.is_known else charge.energy_j / self.truth_j - 1

    def holds(self, rule: str) -> bool:
        """Whether the rule's interval holds the truth, which has an interval itself: squares add."""
        charge = self.charges[rule]
        off_j = self.truth_j - charge.energy_j
        half_j = charge.high_j - charge.energy_j if off_j > 0 else charge.energy_j - charge.low_j
        return abs(off_j) <= float(np.hypot(half_j, self.half_j))

    def contains(self, rule: str) -> bool:
        """Whether the truth, as if it were known exactly, lies in the rule's interval."""
        return self.charges[rule].low_j <= self.truth_j <= self.charges[rule].high_j

    def to_json(self) -> dict[str, Any]:
        rules = {
            rule: {
                **asdict(charge),
                "error": self.error(rule),
                "holds": self.holds(rule),
                "contains": self.contains(rule),
            }
            for rule, charge in self.charges.items()
        }
        low_j, high_j = self.truth_j - self.half_j, self.truth_j + self.half_j
        return {
            "kind": self.kind,
            "name": self.name,
            "known": self.is_known,
            "executions": self.truth.executions,
            "blocks": self.truth.blocks,
            "each_j": self.truth.energy_j,
            "waiting_j": self.truth.waiting_j,
            "law": self.truth.law,
            "truth": {"energy_j": self.truth_j, "low_j": _number(low_j), "high_j": _number(high_j)},
            **rules,
        }


@dataclass(frozen=True, slots=True)
class Errors:
    """Of a rule over some rows: the mean of the errors' sizes, the same by energy, how many of the intervals
    hold the truth, and what the rows add up to (joules a step)."""

    rows: int
    mean: float
    weighted: float
    held: float
    contained: float
    sum_j: float


@dataclass(frozen=True, slots=True)
class NotValidated:
    """A target without a truth, and why; ``share`` is of the device's busy time."""

    kind: str
    name: str
    share: float
    why: str


@dataclass(frozen=True)
class Report:
    """What was found on one domain: rows most energy first, ``step_j`` is what a plain step draws, of which
    ``steps`` were seen."""

    domain: Domain
    rows: Sequence[Row]
    not_validated: Sequence[NotValidated]
    step_j: float
    step_s: float
    steps: int
    blocks: int
    reached: str
    easing: Easing | None = None
    notes: Sequence[str] = field(default_factory=tuple)

    @property
    def is_spent(self) -> bool:
        return self.reached == SPENT

    def of(self, kind: str) -> list[Row]:
        """Rows that are known, of operations or of modules."""
        return [row for row in self.rows if row.kind == kind and row.is_known]

    def counts(self, row: Row) -> bool:
        """Whether a row is known, and takes a percent of the energy of a step."""
        return row.is_known and row.truth_j >= LEAST * self.step_j

    def errors(self, kind: str, rule: str) -> Errors | None:
        """Over the rows that count; None where the rule says nothing of any."""
        rows = [row for row in self.of(kind) if self.counts(row) and row.error(rule) is not None]
        if not rows:
            return None
        off = np.abs([row.error(rule) or 0.0 for row in rows])
        truth_j = np.array([row.truth_j for row in rows])
        return Errors(
            rows=len(rows),
            mean=float(off.mean()),
            weighted=float(off @ truth_j / truth_j.sum()),
            held=float(np.mean([row.holds(rule) for row in rows])),
            contained=float(np.mean([row.contains(rule) for row in rows])),
            sum_j=sum(row.charges[rule].energy_j for row in rows),
        )

    def sum_j(self, kind: str) -> float:
        """What the truths that count add up to, a step."""
        return sum(row.truth_j for row in self.of(kind) if self.counts(row))

    def to_json(self) -> dict[str, Any]:
        """The documented document."""
        errors = {
            kind: {
                rule: None if found is None else asdict(found)
                for rule in (TIME, CALIBRATED)
                for found in [self.errors(kind, rule)]
            }
            for kind in ("operation", "module")
        }
        return {
            "format": FORMAT,
            "domain": self.domain.name,
            "device": self.domain.device,
            "provenance": self.domain.provenance,
            "reached": self.reached,
            "steps": self.steps,
            "blocks": self.blocks,
            "step_j": self.step_j if self.steps else None,
            "step_s": self.step_s if self.steps else None,
            "easing": None if self.easing is None else asdict(self.easing),
            "truths_j": self.sum_j("operation"),
            "rows": [row.to_json() for row in self.rows],
            "errors": errors,
            "not_validated": [asdict(one) for one in self.not_validated],
            "notes": list(self.notes),
        }


def _number(value: float) -> float | None:
    return value if np.isfinite(value) else None
