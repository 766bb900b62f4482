"""A report in the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from joulemap.units import fmt, fmt_pm, fmt_seconds, fmt_share
from joulemap.validating.report import CALIBRATED, TIME, Report, Row
from joulemap.validating.rules import Charge

_WORDS = {TIME: "by time", CALIBRATED: "calibrated"}
_KINDS = {"operation": "operation", "module": "module (forward)"}


def print_report(report: Report, out: Console) -> None:
    """Tables of operations and modules, then what they come to, then what is missing and why."""
    for kind in _KINDS:
        rows = [row for row in report.rows if row.kind == kind]
        if rows:
            out.print(_table(report, rows, kind))
            out.print()
    for line in sentences(report):
        out.print(line, soft_wrap=True, markup=False, highlight=False)
    if report.not_validated:
        out.print("\nNot validated:", markup=False)
    for one in report.not_validated:
        said = f"  {fmt_share(one.share):>7}  {one.name}: {one.why}"
        out.print(said, soft_wrap=True, markup=False, highlight=False)


def sentences(report: Report) -> Iterator[str]:
    """What the rows come to."""
    drawn = f"A plain step draws {fmt(report.step_j, 'J')} in {fmt_seconds(report.step_s)}"
    drawn = drawn if report.steps else "No plain step was seen, with which blocks could be compared"
    yield f"{drawn} ({report.domain.name}, {report.domain.provenance})."
    for kind in _KINDS:
        for rule, word in _WORDS.items():
            found = report.errors(kind, rule)
            if found is not None:
                yield (
                    f"{kind}s {word}: off by {fmt_share(found.mean)} on the mean of {found.rows}, "
                    f"{fmt_share(found.weighted)} by energy; {fmt_share(found.held)} of the intervals hold "
                    "the truth."
                )
    if report.of("operation") and report.step_j:
        yield _sums(report)
    without = sum(not one.costed for row in report.rows for one in row.charges.values())
    if without:
        yield f"In brackets: {without} without a cost, which weigh what their like do."
    blocks, steps = _counted(report.blocks, "block"), _counted(report.steps, "plain step")
    yield f"{blocks} among {steps}; {report.reached}."
    if report.domain.provenance == "estimated":
        yield "This machine has no meter: all of it is validated against an estimate, which proves nothing."
    yield from report.notes


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _sums(report: Report) -> str:
    said = f"These operations add up to {fmt_share(report.sum_j('operation') / report.step_j)} of a step"
    for rule, word in _WORDS.items():
        found = report.errors("operation", rule)
        if found is not None:
            said += f", {word} to {fmt_share(found.sum_j / report.step_j)}"
    return f"{said}."


def _table(report: Report, rows: list[Row], kind: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column(_KINDS[kind], overflow="fold")
    rules = [rule for rule in _WORDS if any(rule in row.charges for row in rows)]
    heads = ["a step", "share", "truth", *(head for rule in rules for head in (_WORDS[rule], "off"))]
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    for row in rows:
        cells = [f"× {row.truth.executions:.3g}", _share(row, report), _truth(row)]
        for rule in rules:
            cells += [_charge(row.charges.get(rule)), _off(row, rule)]
        table.add_row(row.name, *cells, style=None if report.counts(row) else "dim")
    return table


def _share(row: Row, report: Report) -> str:
    return fmt_share(row.truth_j / report.step_j) if report.step_j else ""


def _truth(row: Row) -> str:
    known = row.half_j < float("inf")
    return fmt_pm(row.truth_j, "J", row.half_j) if known else f"{fmt(row.truth_j, 'J')} (one block)"


def _charge(charge: Charge | None) -> str:
    if charge is None:
        return ""
    said = fmt_pm(charge.energy_j, "J", (charge.high_j - charge.low_j) / 2)
    return said if charge.costed else f"({said})"


def _off(row: Row, rule: str) -> str:
    error = row.error(rule)
    if error is None:
        return ""
    return f"{100 * error:+.1f} %{'' if row.holds(rule) else ' !'}"
