"""The tables of docs/accuracy.md: ``python -m studies.accuracy.tables docs/accuracy/*.json``.

The reports were written by ``studies.accuracy.live`` on an H200, and their pictures with them; what counts as
known, and the errors, are found anew. ``--pictures`` draws them anew beside the reports, by their names.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from joulemap.devices import Domain
from joulemap.units import fmt, fmt_pm, fmt_share
from joulemap.validating.picture import picture
from joulemap.validating.report import CALIBRATED, TIME, NotValidated, Report, Row
from joulemap.validating.rules import Charge
from joulemap.validating.truth import Truth
from studies.page import markdown

SHOWN = 3
RULES = {TIME: "by time", CALIBRATED: "calibrated"}


def main() -> None:
    """Print what each report says, and draw it beside the report where that is asked for."""
    parser = argparse.ArgumentParser(description=main.__doc__, allow_abbrev=False)
    parser.add_argument("reports", type=Path, nargs="+")
    parser.add_argument("--pictures", action="store_true", help="draw each beside its report")
    asked = parser.parse_args()
    for path in asked.reports:
        report = read(json.loads(path.read_text()))
        if asked.pictures:
            path.with_suffix(".svg").write_text(picture(report, f"Joules a step: {path.stem}"))
        print(
            f"\n## {path.stem}\n", said(report), table(report), summary(report), overview(report), sep="\n\n"
        )


def read(content: Mapping[str, Any]) -> Report:
    """A report as it was written."""
    domain = Domain(content["domain"], content["device"], provenance=content["provenance"])
    return Report(
        domain=domain,
        rows=[_row(one) for one in content["rows"]],
        not_validated=[NotValidated(**one) for one in content["not_validated"]],
        **{name: content[name] for name in ("step_j", "step_s", "steps", "blocks", "reached", "notes")},
    )


def _row(content: Mapping[str, Any]) -> Row:
    charges = {
        rule: Charge(*(content[rule][part] for part in ("energy_j", "low_j", "high_j")))
        for rule in RULES
        if rule in content
    }
    high_j, each = content["truth"]["high_j"], content["executions"]
    half_j = float("inf") if high_j is None else (high_j - content["truth"]["energy_j"]) / each
    known = (content["blocks"], content["waiting_j"], content.get("law", 1.0))
    truth = Truth(content["each_j"], half_j, each, *known)
    return Row(content["kind"], content["name"], truth, charges)


def said(report: Report) -> str:
    """The step, and what was reached."""
    step = f"A plain step draws {fmt(report.step_j, 'J')} in {report.step_s * 1e3:.1f} ms"
    return f"{step}, {report.step_j / report.step_s:.0f} W. {report.blocks} blocks. {' '.join(report.notes)}"


def table(report: Report) -> str:
    """Every target that is known."""
    rows = [
        [
            short(row.name) if row.kind == "operation" else f"module `{row.name}`",
            f"{row.truth.executions:.0f}",
            fmt_pm(row.truth_j, "J", row.half_j),
            *(_off(row, rule) for rule in RULES),
        ]
        for row in [*report.of("operation"), *report.of("module")]
    ]
    return markdown(["", "a step", "truth", *RULES.values()], rows)


def short(name: str) -> str:
    """An operation with its first operands."""
    parts = name.split("], [")
    return name if len(parts) <= SHOWN else f"{'], ['.join(parts[:SHOWN])}], …"


def _off(row: Row, rule: str) -> str:
    error = row.error(rule)
    return "" if error is None else f"{100 * error:+.1f} %{'' if row.holds(rule) else ' !'}"


def summary(report: Report) -> str:
    """The errors of both rules."""
    rows = []
    for kind in ("operation", "module"):
        for rule, words in RULES.items():
            found = report.errors(kind, rule)
            if found is not None:
                shares = (fmt_share(one) for one in (found.mean, found.weighted, found.held))
                rows.append([f"{found.rows} {kind}s, {words}", *shares])
    return markdown(["", "mean error", "weighted by energy", "intervals that hold"], rows)


def overview(report: Report) -> str:
    """One line of the table of all programs: rows that count and what they are of a step, the median of their
    intervals, errors on the mean and by energy, intervals that hold and contain the truth, and closure."""
    counted = [row for row in report.of("operation") if report.counts(row)]
    by_time, found = (report.errors("operation", rule) for rule in RULES)
    modules = report.errors("module", CALIBRATED)
    closure = next((one.split()[7] for one in report.notes if one.startswith("Closure: ")), "")
    if by_time is None or found is None:
        return ""
    cells = [
        str(len(counted)),
        f"{100 * report.sum_j('operation') / report.step_j:.0f} %",
        f"± {100 * median(row.truth.relative for row in counted):.0f} %",
        *(f"{100 * one.mean:.1f} / {100 * one.weighted:.1f} %" for one in (by_time, found)),
        *(f"{100 * part:.0f} %" for part in (found.held, found.contained)),
        f"{closure} %",
        "" if modules is None else f"{100 * modules.mean:.1f} / {100 * modules.weighted:.1f} %",
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
