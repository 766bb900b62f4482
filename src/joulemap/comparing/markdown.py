"""A comparison as GitHub-flavoured Markdown, for a pull request or a job's summary."""

from __future__ import annotations

import re
from collections.abc import Iterator

from joulemap.comparing.comparison import Comparison, Report
from joulemap.comparing.outline import Entry, change, difference, outline, percent
from joulemap.units import fmt

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>()#+!|~&-])")
_SIGNS = {
    "more": "🔺 more",
    "less": "🔽 less",
    "no difference seen": "no difference seen",
    "cannot tell": "cannot tell",
}


def markdown(report: Report) -> str:
    """The whole report as Markdown."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Report) -> Iterator[str]:
    for one, limit in report.limits:
        word = {"exceeded": "❌ exceeded", "holds": "✅ holds", "cannot tell": "❔ cannot tell"}[
            limit.verdict
        ]
        yield (
            f"**{word}**: {_plain(limit.name)} of {_plain(one.variant.label)} may draw at most "
            f"{100 * limit.limit:.3g} % more, and draws {change(limit.found)}."
        )
        yield ""
    for one in report.comparisons:
        yield from _comparison(one, report)


def _comparison(one: Comparison, report: Report) -> Iterator[str]:
    base, variant = _plain(one.base.label), _plain(one.variant.label)
    per = " of a step" if report.question.per_step else ""
    yield f"### Energy{per}: {variant} against {base}: {change(one.whole)}, {one.whole.verdict}"
    yield ""
    with_times = report.rule == "calibrated"
    more = (" by time |", "--:|") if with_times else ("", "")
    yield f"| {report.question.by} | {base} | {variant} | difference | change (95 %) | verdict |{more[0]}"
    yield f"|---|--:|--:|--:|--:|---|{more[1]}"
    yield from (_row(entry, with_times) for entry in outline(one.rows, report.question.by == "module"))
    yield ""
    for label, lone in ((base, one.only_base), (variant, one.only_variant)):
        if lone:
            names = ", ".join(f"{_plain(name.name)} ({fmt(name.energy_j, 'J')})" for name in lone)
            yield f"<details><summary>{len(lone)} only in {label}</summary>\n\n{names}\n\n</details>\n"
    yield from (f"> {_plain(note)}\n" for note in one.notes)


def _row(entry: Entry, with_times: bool) -> str:
    row = entry.row
    name = "&nbsp;" * 3 * entry.depth + _plain(entry.label)
    means = f"{fmt(row.base_j, 'J')} | {fmt(row.variant_j, 'J')}"
    cells = [name, means, difference(row), change(row), _SIGNS[row.verdict]]
    cells += [percent(row.time_based_relative)] if with_times else []
    return f"| {' | '.join(cells)} |"


def _plain(text: str) -> str:
    """A name as Markdown shows it as it is; a line break would end the row."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))
