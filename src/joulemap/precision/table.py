"""Precision in the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from joulemap.comparing.outline import percent
from joulemap.comparing.similarity import Matrix
from joulemap.precision.coverage import Covered
from joulemap.precision.overhead import Cost, Overhead
from joulemap.precision.report import Report
from joulemap.units import fmt_seconds, fmt_share

STRONG = 0.7
"""What is generally called a strong correlation."""

_PROMISED = (0.93, 0.97)


def render(report: Report, console: Console) -> None:
    """Print a report, part by part; what could not be told says why."""
    what = report.of if report.runs != 1 else "stretch of steps"
    of = f"{report.runs} {what}" + (f", {report.together} together" if report.together > 1 else "")
    _title("sampling (ASSS): the footprint with a slower meter, against the one with all readings", console)
    rows = [(fmt_seconds(one.period_s), f"{one.factor} ×", _pcc(one.similarity)) for one in report.asss]
    _table(("period", "", "PCC"), rows, "the meter shows too few values to be thinned", console)
    _title(f"repeats (ASSW): the first against more of them ({of})", console)
    _table(
        ("experiments", "PCC"),
        [(str(one.experiments), _pcc(one.similarity)) for one in report.assw],
        "there is only one: record more runs, or more steps",
        console,
    )
    _title(f"stability: each against each ({of})", console)
    _matrix(report.stability, console)
    if report.overhead is not None:
        _overhead(report.overhead, console)


def render_coverage(found: Sequence[Covered], runs: int, console: Console) -> None:
    """Print how often 95 % intervals held the truth."""
    _title(f"coverage: how often a 95 % interval held the truth, in {runs:,} synthetic runs", console)
    table = _plain_table(("name", "held", "off by"))
    for one in found:
        style = "green" if _PROMISED[0] <= one.share <= _PROMISED[1] else "bold red"
        table.add_row(one.name, Text(fmt_share(one.share), style=style), percent(one.bias))
    console.print(table)


def _title(text: str, console: Console) -> None:
    console.print(Text(text, style="bold"), soft_wrap=not console.is_terminal)


def _plain_table(headers: Sequence[str]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for header in headers:
        table.add_column(header, justify="right" if header != "name" else "left", no_wrap=True)
    return table


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]], why_not: str, console: Console) -> None:
    if rows:
        table = _plain_table(headers)
        for row in rows:
            table.add_row(*row)
        console.print(table)
    else:
        console.print(Text(f"  not known: {why_not}", style="yellow"))
    console.print()


def _matrix(matrix: Matrix, console: Console) -> None:
    letters = [_letter(number) for number in range(len(matrix))]
    rows = [(letter, *(_pcc(cell) for cell in cells)) for letter, cells in zip(letters, matrix, strict=True)]
    between = [cell for row, cells in enumerate(matrix) for cell in cells[:row] if cell is not None]
    _table(("", *letters), rows if between else (), "there is only one experiment", console)
    if between:
        lowest = min(between)
        word = "strong" if lowest > STRONG else "weak"
        console.print(
            f"the least alike two have a PCC of {lowest:.4f} ({word}: the usual bound is {STRONG})\n"
        )


def _letter(number: int) -> str:
    return chr(ord("a") + number) if number < 26 else str(number + 1)


def _pcc(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def _overhead(overhead: Overhead, console: Console) -> None:
    _title(f"overhead: with recording against without, {len(overhead.pairs)} pairs in turns", console)
    for what, cost in (("time", overhead.time), ("energy", overhead.energy)):
        console.print(f"  {what:<7}{_cost(cost)}", markup=False)
    console.print()


def _cost(cost: Cost) -> str:
    if cost.low is None:
        return f"{percent(cost.relative)} (one pair: no interval)"
    return f"{percent(cost.relative)} ({percent(cost.low)} … {percent(cost.high)})"
