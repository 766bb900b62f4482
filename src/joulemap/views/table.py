"""Tables in the terminal: aligned and coloured where people look, plain where programs read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from joulemap.accounting.account import Account
from joulemap.units import fmt, fmt_pm, fmt_seconds, fmt_share
from joulemap.views.question import SPANS, Answer, Line

_BLOCKS = " ▏▎▍▌▋▊▉█"
_NARROW, _WIDE, _WIDER = 60, 100, 132
_HEAT = ((0.30, "bold red"), (0.10, "yellow"), (0.03, "green"), (0.0, "dim"))


@dataclass(frozen=True, slots=True)
class Heading:
    """What stands above a table: the recording's name and what is known of it."""

    title: str
    facts: Sequence[str] = ()


def render(answer: Answer, heading: Heading | None, console: Console) -> None:
    """Print an answer: heading, lines, the sum that must add up, the meters, warnings; or the lines alone."""
    people = console.is_terminal
    table = _table(answer, console.width, people)
    if heading is None:
        console.print(table)
        return
    console.print(
        Text(printable(heading.title), style="bold"), Text("  " + " · ".join(heading.facts), style="dim")
    )
    console.print()
    console.print(table)
    console.print()
    for line in _sums(answer):
        console.print(line, soft_wrap=not people, highlight=False)
    for note in (*_footnotes(answer), *answer.footprint.notes):
        console.print(Text(note, style="dim"), soft_wrap=not people)
    for warning in answer.footprint.warnings:
        console.print(Text(f"warning: {printable(warning)}", style="yellow"), soft_wrap=not people)


def _table(answer: Answer, room: int, people: bool) -> Table:
    """The columns that fit: energy and share always, phases and times where there is room."""
    width = room if people else _WIDER
    phases = answer.phases if width >= _WIDE and answer.question.by not in ("phase", *SPANS) else ()
    with_times = width >= _WIDER or answer.question.power
    with_bars = people and width >= _NARROW
    lines = (*answer.lines, *answer.idle)
    largest = max((line.share for line in lines), default=0.0)
    energy = "net energy" if answer.question.baseline_w is not None else "energy"
    columns: list[Column] = [
        (energy, [fmt_pm(line.energy_j, "J", line.half_width_j) for line in lines]),
        ("share", [Text(fmt_share(line.share), style=_heat(line.share) if people else "") for line in lines]),
    ]
    if with_bars:
        columns.append(("", [_bar(line.share / largest if largest else 0.0, line.share) for line in lines]))
    if answer.footprint.beside_j is not None and answer.question.by not in SPANS:
        columns.insert(1, ("by time", [_joules(line.time_based_j) for line in lines]))
    if any(line.each_j is not None for line in lines):
        columns.insert(1, ("each", [_each(line) for line in lines]))
    columns += [(phase, [_joules(line.phases.get(phase)) for line in lines]) for phase in phases]
    if with_times and lines:
        columns += zip(
            ("power", "time", "calls"), map(list, zip(*map(_times, lines), strict=True)), strict=True
        )
    tree = _branches(lines) if people else ["  " * line.depth for line in lines]
    names = [_label(prefix, line) for prefix, line in zip(tree, lines, strict=True)]
    return laid_out(answer.question.by, names, columns, room)


Column = tuple[str, list[str | Text]]
"""A heading, and what stands under it; without a heading, bars."""


def laid_out(
    by: str,
    names: list[Text],
    columns: list[Column],
    width: int,
    left: Sequence[str] = ("",),
    gap: int = 1,
) -> Table:
    """A long name gives way in its middle, since names may differ at both ends; numbers never do."""
    widths = [needed_width(column) for column in columns]
    room = max(width - sum(widths) - gap * len(widths) - 1, 8)
    table = Table(box=None, padding=(0, gap, 0, 0), pad_edge=False, header_style="dim")
    table.add_column(by, no_wrap=True, overflow="ellipsis", max_width=room)
    for (header, _), needed in zip(columns, widths, strict=True):
        table.add_column(
            header, justify="left" if header in left else "right", no_wrap=True, min_width=needed
        )
    for number, name in enumerate(names):
        table.add_row(_fitted(name, room), *(cells[number] for _, cells in columns))
    return table


def _fitted(name: Text, room: int) -> Text:
    """Without some of its middle where it has too many characters."""
    end = room // 3
    return name if len(name) <= room else Text.assemble(name[: room - end - 1], "…", name[-end:])


def needed_width(column: Column) -> int:
    """How wide a column is."""
    header, cells = column
    return max(cell_len(str(cell)) for cell in (header, *cells)) if header else 8


def _label(prefix: str, line: Line) -> Text:
    style = "dim italic" if line.more else "bold" if line.depth == 0 else ""
    return Text.assemble((prefix, "dim"), (f"… {line.label}" if line.more else printable(line.label), style))


def printable(text: str) -> str:
    """A name as it can be shown: what would move the cursor, colour or turn the text is spelled out."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def _joules(energy_j: float | None) -> str:
    return fmt(energy_j, "J") if energy_j else ""


def _each(line: Line) -> str:
    if line.each_j is None:
        return ""
    half_j = None if line.half_width_j is None else line.half_width_j / line.count
    return f"{fmt_pm(line.each_j, 'J', half_j)}/{printable(line.unit)}"


def _times(line: Line) -> list[str]:
    power = "" if line.power_w is None else fmt(line.power_w, "W")
    time = "" if line.active_s is None else fmt_seconds(line.active_s)
    return [power, time, "" if line.calls is None else f"{line.calls:,}"]


def _bar(part: float, share: float) -> Text:
    eighths = round(max(part, 0.0) * 64)
    bar = "█" * (eighths // 8) + _BLOCKS[eighths % 8].strip()
    return Text(bar, style=_heat(share))


def _heat(share: float) -> str:
    return next(style for limit, style in _HEAT if share >= limit or limit == 0.0)


def _branches(lines: Sequence[Line]) -> list[str]:
    """The lines' tree glyphs: ``├─`` where a sibling follows, ``└─`` where none does."""
    prefixes = []
    open_at: set[int] = set()
    for line in reversed(lines):
        open_at = {depth for depth in open_at if depth <= line.depth}
        inner = "".join("│  " if depth in open_at else "   " for depth in range(1, line.depth))
        own = "" if line.depth == 0 else "├─ " if line.depth in open_at else "└─ "
        prefixes.append(inner + own)
        open_at.add(line.depth)
    return prefixes[::-1]


def _sums(answer: Answer) -> list[Text]:
    """The sum, with nothing missing: measured = attributed + idle + other processes + outside."""
    footprint = answer.footprint
    parts = [("attributed", footprint.attributed_j), ("idle", footprint.idle_j)]
    parts += [
        ("other processes", footprint.other_processes_j),
        ("outside the recording", footprint.outside_j),
    ]
    baseline = sum(account.baseline_j for account in footprint.accounts)
    parts += [("idle baseline", baseline)] if baseline else []
    words = sorted({account.domain.provenance for account in footprint.accounts}, reverse=True) or [
        "measured"
    ]
    total = Text(f"{' and '.join(words)} {fmt(footprint.measured_j, 'J', digits=4)}", "bold")
    total.append(" = ", "not bold")
    for number, (name, energy) in enumerate(parts):
        total.append(" + " if number else "", "not bold")
        total.append(f"{name} {fmt(energy, 'J', digits=4)}", "not bold")
    return [total, *(_account(account) for account in footprint.accounts)]


def _account(account: Account) -> Text:
    domain = account.domain
    line = Text.assemble(
        ("  " + domain.name, "bold"), f"  {fmt(account.measured_j, 'J', digits=4)} {domain.provenance}"
    )
    details = [
        detail for detail in (domain.sensor, f"updates every {fmt_seconds(account.period_s)}") if detail
    ]
    line.append(f" ({', '.join(details)})", "dim")
    return line


def _footnotes(answer: Answer) -> list[str]:
    made_of = ["spread over steps", "what the meter resolves at the edges"]
    made_of += ["how far costs are off"] if answer.footprint.rule == "calibrated" else []
    made_of = made_of[1:2] if answer.question.by in SPANS else made_of
    notes = [
        f"± is the 95 % interval: {', and '.join(filter(None, (', '.join(made_of[:-1]), made_of[-1])))}."
    ]
    if answer.question.by != "step":
        notes.append("Shares are of what was drawn while recording: attributed and idle.")
    if answer.footprint.beside_j is not None and answer.question.by not in SPANS:
        notes.append("by time: what the same energy would be, shared out by time alone (--rule exact).")
    if answer.question.by != "step":
        notes += _unsure(answer.lines, answer.footprint.rule)
    notes += _mixed(answer)
    words = {line.provenance for line in answer.lines if not line.more}
    periods = [account.period_s for account in answer.footprint.accounts if account.period_s]
    update = f" (within one update, {fmt_seconds(max(periods))}, all get the same power)" if periods else ""
    meaning = {
        "apportioned": f"apportioned: measured by the meter, shared out by time{update}.",
        "calibrated": "calibrated: measured by the meter, shared out by each operation's own energy.",
        "projected": "projected: measured in every step, shared out as in the traced steps.",
        "estimated": "estimated: not read off a meter, and rough: the level may be off by half.",
    }
    return notes + [meaning[word] for word in meaning if word in words]


def _mixed(answer: Answer) -> list[str]:
    """How many operations are too short for the meter, where they were shared out by time."""
    periods = [one.period_s for one in answer.footprint.accounts if one.domain.provenance == "measured"]
    if (
        answer.question.by not in ("tensor", "op")
        or answer.footprint.beside_j is not None
        or not any(periods)
    ):
        return []
    short = sum((line.calls or 0) * max(periods) > (line.active_s or 0) for line in answer.lines)
    if not short:
        return []
    each = f"run for less than one update of the meter ({fmt_seconds(max(periods))}) at a time"
    return [
        f"{short} of {len(answer.lines)} lines {each}: neighbours' power is in them, and no ± holds that."
    ]


def _unsure(lines: Sequence[Line], rule: str) -> list[str]:
    """How many lines have no interval, or one without the spread over steps, and why."""
    unknown = sum(not line.interval for line in lines)
    alone = sum(line.interval and not line.spread for line in lines)
    notes = []
    if unknown:
        notes.append(f"{unknown} of {len(lines)} lines have no ±: one traced step stands for all of them.")
    if alone:
        of = "± of meter and costs" if rule == "calibrated" else "meter's ±"
        notes.append(f"{alone} of {len(lines)} lines have the {of} alone: seen in one step at most.")
    return notes
