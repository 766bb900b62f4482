"""A comparison in the terminal: the verdict first, then the rows, what has no counterpart, and similarity."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from joulemap.comparing.comparison import Comparison, Limit, Report, Unmatched
from joulemap.comparing.difference import Difference
from joulemap.comparing.outline import change, difference, outline, percent
from joulemap.comparing.similarity import Matrix, Similarity
from joulemap.units import fmt
from joulemap.views.table import Column, laid_out, needed_width, printable

_STYLES = {"more": "bold red", "less": "bold green", "no difference seen": "dim", "cannot tell": "yellow"}
_BY_TIME = " By time: the change that sharing by time alone sees (--rule exact)."
_MOST_UNMATCHED = 8
_WIDE, _NAME, _LONGEST, _GAP = 100, 18, 16, 2


def render(report: Report, console: Console) -> None:
    """Print a report."""
    for one in report.comparisons:
        _comparison(one, report, console)
    _similarity(report.similarity, console)
    for one, limit in report.limits:
        console.print(_limit(one, limit), soft_wrap=not console.is_terminal)


def _comparison(one: Comparison, report: Report, console: Console) -> None:
    per = " of a step" if report.question.per_step else ""
    whole = one.whole
    console.print(
        Text.assemble(
            (printable(one.variant.label), "bold"),
            f" ({len(one.variant)}) against ",
            (printable(one.base.label), "bold"),
            f" ({len(one.base)}): energy{per} {change(whole)}, ",
            (whole.verdict, _STYLES[whole.verdict]),
        ),
        soft_wrap=not console.is_terminal,
    )
    console.print()
    console.print(_rows(one, report, console))
    for label, lone in ((one.base.label, one.only_base), (one.variant.label, one.only_variant)):
        if lone:
            console.print(_unmatched(label, lone), soft_wrap=not console.is_terminal)
    for note in one.notes:
        console.print(Text(f"note: {note}", style="yellow"), soft_wrap=not console.is_terminal)
    console.print(
        Text(
            "± and … are 95 % intervals of each row by itself; verdicts are corrected for all rows (Holm). "
            f"No difference seen: none beyond {100 * report.question.margin:.3g} % of the base."
            f"{_BY_TIME if report.rule == 'calibrated' else ''}",
            style="dim",
        ),
        soft_wrap=not console.is_terminal,
    )
    console.print()


def _rows(one: Comparison, report: Report, console: Console) -> Table:
    """As much as there is room for: the means, the interval of the change, or the change alone."""
    entries = outline(one.rows, report.question.by == "module")
    names = [
        Text("  " * entry.depth + printable(entry.label), style="" if entry.depth else "bold")
        for entry in entries
    ]
    rows = [entry.row for entry in entries]
    by_time: list[Column] = [("by time", [percent(row.time_based_relative) for row in rows])]
    told = [*_told(rows, change), *(by_time if report.rule == "calibrated" else [])]
    width = console.width if console.is_terminal else _WIDE
    for columns in ([*_means(one, rows), *told], told):
        if sum(map(needed_width, columns)) + _GAP * len(columns) + _NAME <= width:
            break
    else:
        columns = [*_told(rows, _percent_alone), *(by_time if report.rule == "calibrated" else [])]
    return laid_out(report.question.by, names, columns, console.width, left=("verdict",), gap=_GAP)


def _means(one: Comparison, rows: Sequence[Difference]) -> list[Column]:
    return [
        (_heading(one.base.label), [fmt(row.base_j, "J") for row in rows]),
        (_heading(one.variant.label), [fmt(row.variant_j, "J") for row in rows]),
    ]


def _told(rows: Sequence[Difference], changed: Callable[[Difference], str]) -> list[Column]:
    return [
        ("difference", [difference(row) for row in rows]),
        ("change", [changed(row) for row in rows]),
        ("verdict", [Text(row.verdict, style=_STYLES[row.verdict]) for row in rows]),
    ]


def _heading(label: str) -> str:
    text = printable(label)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _percent_alone(row: Difference) -> str:
    return percent(row.relative)


def _unmatched(label: str, lone: Sequence[Unmatched]) -> Text:
    shown = [f"{printable(one.name)} {fmt(one.energy_j, 'J')}" for one in lone[:_MOST_UNMATCHED]]
    more = [f"{len(lone) - _MOST_UNMATCHED} more"] if len(lone) > _MOST_UNMATCHED else []
    return Text(f"only in {printable(label)}: {', '.join((*shown, *more))}", style="dim")


def _similarity(alike: Similarity, console: Console) -> None:
    """For two variants a line, for more the matrices of Figure 9."""
    if len(alike.labels) == 2:
        pairs = (("energy", alike.stef_pcc), ("power", alike.stpf_pcc))
        told = ", ".join(f"{what} {_number(matrix[1][0], '.4f')}" for what, matrix in pairs)
        console.print(
            f"accounting similarity over {alike.tensors[1][0]} tensors of both: PCC {told}; "
            f"MED {_signed(alike.stef_med_j[1][0], 'J')}, {_signed(alike.stpf_med_w[1][0], 'W')}",
            soft_wrap=not console.is_terminal,
            markup=False,
        )
        return
    console.print(_matrix("PCC of energy (STEF)", alike.labels, alike.stef_pcc, ".4f"))
    console.print(_matrix("PCC of power (STPF)", alike.labels, alike.stpf_pcc, ".4f"))
    console.print(_matrix("MED of energy, J: row less column", alike.labels, alike.stef_med_j, "+.3g"))
    console.print(_matrix("MED of power, W: row less column", alike.labels, alike.stpf_med_w, "+.3g"))


def _matrix(title: str, labels: Sequence[str], matrix: Matrix, form: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column(title, no_wrap=True)
    for label in labels:
        table.add_column(printable(label), justify="right", overflow="ellipsis", max_width=14)
    for label, cells in zip(labels, matrix, strict=True):
        table.add_row(printable(label), *(_number(cell, form) for cell in cells))
    table.add_row()
    return table


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _signed(value: float | None, unit: str) -> str:
    return "–" if value is None else f"{'+' if value > 0 else ''}{fmt(value, unit)}"


def _limit(one: Comparison, limit: Limit) -> Text:
    styles = {"exceeded": "bold red", "holds": "bold green", "cannot tell": "yellow"}
    return Text.assemble(
        f"limit for {printable(limit.name)} of {printable(one.variant.label)}: at most "
        f"+{100 * limit.limit:.3g} %, found {change(limit.found)}: ",
        (limit.verdict, styles[limit.verdict]),
    )
