"""Variants against a base: what changed, what has no counterpart, how alike they are, what a limit says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from joulemap.comparing.difference import CHANCE, Difference, differences
from joulemap.comparing.names import rename_rules
from joulemap.comparing.similarity import Similarity, similarity
from joulemap.comparing.variant import WHOLE, Amount, By, Variant
from joulemap.errors import InputError
from joulemap.program import SEPARATOR, split

FORMAT = 1
"""The version of ``compare --json``."""

SMALL = 0.002
"""What is below this share of the program in both variants is not tested, unless everything is asked for."""


@dataclass(frozen=True, slots=True)
class Question:
    """What to compare: rows by what, how deep, of the whole run or of a step, and what counts as none."""

    by: By = "module"
    depth: int = 3
    everything: bool = False
    summarised: bool = False
    per_step: bool = False
    margin: float = 0.05
    rename: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Unmatched:
    """A name that only one of two variants has, and what it drew there on average."""

    name: str
    energy_j: float


@dataclass(frozen=True, slots=True)
class Limit:
    """How much more a name may draw than in the base, and what it does."""

    name: str
    limit: float
    found: Difference

    @property
    def verdict(self) -> Literal["exceeded", "holds", "cannot tell"]:
        """Exceeded only where the whole interval lies beyond the limit, held only where none of it does."""
        low, high = self.found.relative_low, self.found.relative_high
        if low is None or high is None or low <= self.limit < high:
            return "cannot tell"
        return "exceeded" if low > self.limit else "holds"

    @property
    def exceeded(self) -> bool:
        return self.verdict == "exceeded"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One variant against the base: the whole program first among the rows, then in order of energy."""

    base: Variant
    variant: Variant
    rows: tuple[Difference, ...]
    only_base: tuple[Unmatched, ...]
    only_variant: tuple[Unmatched, ...]
    notes: tuple[str, ...]

    @property
    def whole(self) -> Difference:
        return self.rows[0]


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that ``joulemap compare`` says."""

    question: Question
    comparisons: tuple[Comparison, ...]
    similarity: Similarity
    limits: tuple[tuple[Comparison, Limit], ...] = ()

    @property
    def exceeded(self) -> bool:
        return any(limit.exceeded for _, limit in self.limits)

    @property
    def rule(self) -> str:
        """How energy was shared out, in all recordings alike."""
        return self.comparisons[0].base.runs[0].footprint.rule


def compare(
    variants: Sequence[Variant],
    question: Question,
    fail_above: float | None = None,
    modules: Sequence[str] = (),
    advance: Callable[[float], None] | None = None,
) -> Report:
    """Compare every variant with the first, and all with each other."""
    base, *others = variants
    rules = rename_rules(question.rename)
    alike = [base, *(other.spelled_like(base, rules) for other in others)]
    if advance is not None:
        advance(0.3)
    shown = [variant.summarised() for variant in alike] if question.summarised else alike
    compared = []
    for number, other in enumerate(shown[1:], 1):
        compared.append(_compared(shown[0], other, question))
        if advance is not None:
            advance(0.3 + 0.6 * number / len(others))
    limits = []
    if fail_above is not None:
        limits = [(one, limit) for one in compared for limit in _limits(one, question, fail_above, modules)]
    return Report(question, tuple(compared), similarity(alike), tuple(limits))


def _compared(base: Variant, variant: Variant, question: Question) -> Comparison:
    before = base.amounts(question.by, question.per_step)
    after = variant.amounts(question.by, question.per_step)
    names = _chosen(before, after, question)
    both = [name for name in names if _in_any(name, before) and _in_any(name, after)]
    rows = differences(both, before, after, question.margin)
    ordered = [rows[0], *sorted(rows[1:], key=lambda row: -max(row.base_j, row.variant_j))]
    return Comparison(
        base,
        variant,
        tuple(ordered),
        _lone([name for name in names if not _in_any(name, after)], before),
        _lone([name for name in names if not _in_any(name, before)], after),
        (*_notes(base, variant, question), *_lone_steps(rows)),
    )


def _lone_steps(rows: Sequence[Difference]) -> list[str]:
    unknown = sum(not row.spread for row in rows)
    if not unknown:
        return []
    return [f"{unknown} of {len(rows)} rows were seen in one step only: how much they vary is not known."]


def _chosen(before: list[dict[str, Amount]], after: list[dict[str, Amount]], question: Question) -> list[str]:
    """The names to be tested: as deep as asked, and large enough to matter in one of the two."""
    names = dict.fromkeys(name for run in (*before, *after) for name in run)
    deepest = question.depth if question.by == "module" else 1 << 30
    least = [0.0 if question.everything else SMALL * _mean(WHOLE, runs) for runs in (before, after)]
    return [
        name
        for name in names
        if name == WHOLE
        or (
            len(split(name)) <= deepest
            and (_mean(name, before) >= least[0] or _mean(name, after) >= least[1])
        )
    ]


def _in_any(name: str, runs: list[dict[str, Amount]]) -> bool:
    return any(name in run for run in runs)


def _mean(name: str, runs: list[dict[str, Amount]]) -> float:
    return sum(run[name].energy_j for run in runs if name in run) / len(runs)


def _lone(names: Sequence[str], runs: list[dict[str, Amount]]) -> tuple[Unmatched, ...]:
    """The outermost of them: what is inside an unmatched module is unmatched with it."""
    chosen = set(names)
    outermost = [name for name in names if not any(above in chosen for above in _above(name))]
    found = [Unmatched(name, _mean(name, runs)) for name in outermost]
    return tuple(sorted(found, key=lambda one: -one.energy_j))


def _above(name: str) -> list[str]:
    parts = split(name)
    return [SEPARATOR.join(parts[:end]) for end in range(1, len(parts))]


def _limits(one: Comparison, question: Question, limit: float, modules: Sequence[str]) -> list[Limit]:
    """Each limit at a chance that is shared out: several of them together are wrong as rarely as one."""
    names = list(modules) or [WHOLE]
    before = one.base.amounts("module", question.per_step)
    after = one.variant.amounts("module", question.per_step)
    for name in names:
        if not (_in_any(name, before) and _in_any(name, after)):
            raise InputError(
                f"There is no {name!r} in both {one.base.label} and {one.variant.label}.",
                "Give a module as joulemap show names it, with / between its parts.",
            )
    found = differences(names, before, after, question.margin, CHANCE / len(names))
    return [Limit(name, limit, row) for name, row in zip(names, found, strict=True)]


def _notes(base: Variant, variant: Variant, question: Question) -> list[str]:
    """What a reader must know before believing the verdicts."""
    said = []
    if len(base) == len(variant) == 1:
        costs = any(run.footprint.cost_rms_j.any() for one in (base, variant) for run in one.runs)
        held = "the spread over steps and what the meters resolve" + ", and what costs are off by" * costs
        more = "Record each variant a few times."
        said.append(f"One recording each: intervals hold {held}, not how runs differ. {more}")
    elif min(len(base), len(variant)) == 1:
        said.append("One recording on one side: its runs are taken to differ as those of the other side do.")
    elif min(len(base), len(variant)) < 4:
        said.append("Few recordings make wide intervals: five on each side tell much more than two.")
    steps = [sum(run.steps for run in one.runs) / len(one) for one in (base, variant)]
    if steps[0] != steps[1] and not question.per_step:
        said.append(f"They ran {steps[0]:g} and {steps[1]:g} steps: --per step compares what a step costs.")
    words = [
        {a.domain.provenance for run in one.runs for a in run.footprint.accounts} for one in (base, variant)
    ]
    if "estimated" in words[0] | words[1]:
        said.append("Energy is estimated, not read off a meter: differences in time show, others may not.")
    meters = [{a.domain.name for run in one.runs for a in run.footprint.accounts} for one in (base, variant)]
    if meters[0] != meters[1]:
        first, second = (", ".join(sorted(names)) or "nothing" for names in meters)
        said.append(f"They were metered differently: {first} and {second}.")
    return said


def to_json(report: Report) -> dict[str, Any]:
    """The contract of ``compare --json``, format 1."""
    alike = report.similarity
    return {
        "format": FORMAT,
        "rule": report.rule,
        "by": report.question.by,
        "per": "step" if report.question.per_step else "run",
        "margin": report.question.margin,
        "correction": "holm",
        "comparisons": [_comparison_json(one) for one in report.comparisons],
        "similarity": {
            "labels": list(alike.labels),
            "tensors": alike.tensors,
            "stef_pcc": alike.stef_pcc,
            "stpf_pcc": alike.stpf_pcc,
            "stef_med_j": alike.stef_med_j,
            "stpf_med_w": alike.stpf_med_w,
        },
        "limits": [
            {
                "variant": one.variant.label,
                "name": limit.name,
                "limit": limit.limit,
                "relative": limit.found.relative,
                "relative_low": limit.found.relative_low,
                "relative_high": limit.found.relative_high,
                "verdict": limit.verdict,
                "exceeded": limit.exceeded,
            }
            for one, limit in report.limits
        ],
    }


def _comparison_json(one: Comparison) -> dict[str, Any]:
    return {
        "base": _variant_json(one.base),
        "variant": _variant_json(one.variant),
        "rows": [
            {
                "name": row.name,
                "base_j": row.base_j,
                "variant_j": row.variant_j,
                "difference_j": row.difference_j,
                "low_j": row.low_j,
                "high_j": row.high_j,
                "relative": row.relative,
                "relative_low": row.relative_low,
                "relative_high": row.relative_high,
                "p_corrected": row.p_corrected,
                "verdict": row.verdict,
                "spread": row.spread,
                "base_time_based_j": row.base_time_based_j,
                "variant_time_based_j": row.variant_time_based_j,
                "time_based_relative": row.time_based_relative,
            }
            for row in one.rows
        ],
        "only_in_base": [{"name": lone.name, "energy_j": lone.energy_j} for lone in one.only_base],
        "only_in_variant": [{"name": lone.name, "energy_j": lone.energy_j} for lone in one.only_variant],
        "notes": list(one.notes),
    }


def _variant_json(variant: Variant) -> dict[str, Any]:
    return {
        "label": variant.label,
        "recordings": [run.name for run in variant.runs],
        "steps": [run.steps for run in variant.runs],
    }
