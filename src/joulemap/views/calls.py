"""``joulemap show --by call``: every call as a row, and calls by API and site as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from joulemap.accounting.calls import CallFootprint, DomainCalls
from joulemap.calls.table import Calls
from joulemap.units import NS_PER_S, fmt, fmt_pm, fmt_seconds, fmt_share
from joulemap.views.callgroups import Group, by_api, groups, over_runs
from joulemap.views.table import Heading, printable

FORMAT = 1
DEPTH = 2


@dataclass(frozen=True, eq=False)
class Run:
    """The calls of one recording, accounted."""

    name: str
    calls: Calls
    found: CallFootprint
    warnings: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class CallsAsked:
    """How deep to go (1: APIs, 2: their sites), and how many."""

    depth: int | None = None
    top: int | None = None


def to_json(runs: Sequence[Run], asked: CallsAsked) -> dict[str, Any]:
    """Format 1 of ``show --json``: a row a call; of several recordings a row a site, with means."""
    count = len(runs)
    rows = call_rows(runs[0]) if count == 1 else [_site_row(group) for group in _merged(runs)]
    found = [run.found for run in runs]
    return {
        "format": FORMAT,
        "rule": "exact",
        "by": "call",
        "net": all(one.net_j is not None for one in found),
        "runs": count,
        "measured_j": sum(one.measured_j for one in found) / count,
        "attributed_j": sum(float(one.energy_j.sum()) for one in found) / count,
        "idle_j": sum(sum(one.rest_j().values()) for one in found) / count,
        "other_processes_j": sum(one.other_processes_j for one in found) / count,
        "outside_j": sum(one.outside_j for one in found) / count,
        "baseline_j": 0.0,
        "rest": _rest_rows(found),
        "domains": [_domain(domain) for one in found for domain in one.domains],
        "warnings": list(dict.fromkeys(text for run in runs for text in run.warnings)),
        "rows": rows[: asked.top] if asked.top else rows,
    }


def call_rows(run: Run) -> list[dict[str, Any]]:
    """Every call, most energy first."""
    calls, found = run.calls, run.found
    place, sites = calls.sites.rows(calls.site).tolist(), calls.sites
    files, lines, columns = list(sites.file), sites.line.tolist(), sites.column.tolist()
    low, high = found.interval_j()
    net, lag = found.net_j, found.lag_j
    domains = {one.domain.name: one.energy_j.tolist() for one in found.domains}
    columns_of = {
        "call": calls.call.tolist(),
        "api": list(calls.api),
        "file": [files[row] for row in place],
        "line": [lines[row] for row in place],
        "column": [columns[row] for row in place],
        "parent": [None if parent < 0 else parent for parent in calls.parent.tolist()],
        "thread": calls.thread.tolist(),
        "outcome": list(calls.outcome),
        "start_ns": calls.start_ns.tolist(),
        "end_ns": calls.end_ns.tolist(),
        "energy_j": found.energy_j.tolist(),
        "low_j": low.tolist(),
        "high_j": high.tolist(),
        "inclusive_j": found.inclusive_j.tolist(),
        "net_j": [None] * len(calls) if net is None else net.tolist(),
        "lag_j": [None] * len(calls) if lag is None else lag.tolist(),
        "gate": list(calls.gate_outcome),
        "argument_bytes": [None if size < 0 else size for size in calls.argument_bytes.tolist()],
        "object_bytes": [None if size < 0 else size for size in calls.object_bytes.tolist()],
        **{f"{name} energy_j": joules for name, joules in domains.items()},
    }
    rows = [dict(zip(columns_of, row, strict=True)) for row in zip(*columns_of.values(), strict=True)]
    return sorted(rows, key=lambda row: -row["energy_j"])


def _merged(runs: Sequence[Run]) -> list[Group]:
    found = [groups(run.calls, run.found) for run in runs]
    return found[0] if len(found) == 1 else over_runs(found)


def _site_row(group: Group) -> dict[str, Any]:
    place = group.place
    return {
        "api": place.api,
        "file": place.file,
        "line": place.line,
        "column": place.column,
        "runs": group.runs,
        "calls": group.calls,
        "raised": group.raised,
        "seconds": group.seconds,
        "energy_j": group.energy_j,
        "low_j": group.low_j,
        "high_j": group.high_j,
        "deviation_j": group.deviation_j,
        "inclusive_j": group.inclusive_j,
        "net_j": group.net_j,
        "lag_j": group.lag_j,
    }


def _rest_rows(found: Sequence[CallFootprint]) -> list[dict[str, Any]]:
    """What was drawn while no call ran, by the name of the time."""
    rests, nets = [one.rest_j() for one in found], [one.rest_net_j() for one in found]
    rows = []
    for name in dict.fromkeys(name for rest in rests for name in rest):
        known = [net.get(name, 0.0) for net in nets if net is not None]
        net_j = sum(known) / len(found) if len(known) == len(found) else None
        energy_j = sum(rest.get(name, 0.0) for rest in rests) / len(found)
        rows.append({"name": name, "energy_j": energy_j, "net_j": net_j})
    return rows


def _domain(one: DomainCalls) -> dict[str, Any]:
    return {
        "name": one.domain.name,
        "device": one.domain.device,
        "provenance": one.domain.provenance,
        "sensor": one.domain.sensor,
        "update_period_s": one.period_s,
        "measured_j": one.measured_j,
        "attributed_j": float(one.energy_j.sum()),
        "idle_j": sum(one.rest_j.values()),
        "other_processes_j": one.other_processes_j,
        "outside_j": one.outside_j,
    }


def render(runs: Sequence[Run], asked: CallsAsked, heading: Heading | None, console: Console) -> None:
    """The table, the sum that must add up, and what the words mean."""
    found = [run.found for run in runs]
    if heading is not None:
        title = Text(printable(heading.title), style="bold")
        console.print(title, Text("  " + " · ".join(heading.facts), style="dim"))
        console.print()
    console.print(_table(runs, asked))
    if heading is None:
        return
    console.print()
    for text in (_sum(found), *_notes(runs)):
        console.print(Text(text, style="dim"), soft_wrap=not console.is_terminal)
    for warning in dict.fromkeys(text for run in runs for text in run.warnings):
        console.print(Text(f"warning: {printable(warning)}", style="yellow"), soft_wrap=True)


def _table(runs: Sequence[Run], asked: CallsAsked) -> Table:
    found = [run.found for run in runs]
    whole = sum(float(one.energy_j.sum()) + sum(one.rest_j().values()) for one in found) / len(found)
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("call", no_wrap=True, overflow="ellipsis", ratio=1)
    table.add_column("where", no_wrap=True, overflow="ellipsis")
    beside = _beside(found)
    for header in ("energy", "share", "inclusive", *beside, "time", "calls"):
        table.add_column(header, justify="right", no_wrap=True)
    shown = by_api(_merged(runs))
    for api, sites in shown[: asked.top]:
        several = len(sites) > 1
        table.add_row(
            *_cells(api, api.place.api, f"{len(sites)} sites" if several else None, whole, beside),
            style="bold",
        )
        for site in sites if several and (asked.depth or DEPTH) > 1 else ():
            table.add_row(*_cells(site, "└─", _where(site, sites), whole, beside))
    if asked.top and len(shown) > asked.top:
        rest = sum(api.energy_j for api, _ in shown[asked.top :])
        table.add_row(
            f"… {len(shown) - asked.top} more", "", fmt(rest, "J"), _share(rest, whole), style="dim"
        )
    for row in _rest_rows(found):
        net = "" if row["net_j"] is None else fmt(row["net_j"], "J")
        energy = row["energy_j"]
        table.add_row(row["name"], "", fmt(energy, "J"), _share(energy, whole), "", net, style="dim")
    return table


def _beside(found: Sequence[CallFootprint]) -> list[str]:
    """The columns that not every recording has: net energy, and of isolated calls what came after them."""
    net = all(one.net_j is not None for one in found)
    lag = all(one.lag_j is not None for one in found)
    return [*(["net"] if net else []), *(["lag"] if lag else [])]


def _cells(group: Group, name: str, where: str | None, whole_j: float, beside: Sequence[str]) -> list[str]:
    raised = f" ({group.raised:g} raised)" if group.raised else ""
    known = {"net": group.net_j, "lag": group.lag_j}
    return [
        printable(name),
        printable(group.place.where if where is None else where),
        fmt_pm(group.energy_j, "J", group.half_width_j),
        _share(group.energy_j, whole_j),
        fmt(group.inclusive_j, "J"),
        *(fmt(known[column] or 0.0, "J") for column in beside),
        fmt_seconds(group.seconds),
        f"{group.calls:,.6g}{raised}",
    ]


def _where(site: Group, others: Sequence[Group]) -> str:
    """``train.py:31``, with the column where the line has several."""
    where = site.place.where
    alone = sum(other.place.where == where for other in others) == 1
    return where if alone else f"{where}:{site.place.column}"


def _share(part_j: float, whole_j: float) -> str:
    return fmt_share(part_j / whole_j if whole_j else 0.0)


def _sum(found: Sequence[CallFootprint]) -> str:
    """measured = calls + rest + other processes + outside the recording, with nothing missing."""
    words = sorted({one.domain.provenance for each in found for one in each.domains}, reverse=True)
    count = len(found)
    parts = {
        "calls": sum(float(one.energy_j.sum()) for one in found),
        "the rest": sum(sum(one.rest_j().values()) for one in found),
        "other processes": sum(one.other_processes_j for one in found),
        "outside the recording": sum(one.outside_j for one in found),
    }
    total = sum(one.measured_j for one in found) / count
    said = " + ".join(f"{name} {fmt(joules / count, 'J', digits=4)}" for name, joules in parts.items())
    return f"{' and '.join(words) or 'measured'} {fmt(total, 'J', digits=4)} = {said}"


def _notes(runs: Sequence[Run]) -> list[str]:
    domains = [domain for run in runs for domain in run.found.domains]
    periods = [domain.period_s for domain in domains]
    notes = []
    if len(runs) > 1:
        notes.append(f"Means over {len(runs)} runs. ± is the 95 % interval that their spread gives.")
    elif periods:
        notes.append(
            f"± is the 95 % interval: what the meter resolves (updates every {fmt_seconds(max(periods))})."
        )
    if any(run.found.net_j is None for run in runs):
        notes.append("Net is not known: give --baseline DOMAIN=WATTS, or run joulemap calibrate --idle.")
    late = sum(int((run.calls.gate_outcome.codes == 2).sum()) for run in runs)
    if late:
        notes.append(f"{_counted(late, 'call')} ran although the machine was not calm in time.")
    if any(domain.domain.provenance == "estimated" for domain in domains):
        notes.append("estimated: not read off a meter, and rough: the level may be off by half.")
    return notes


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun if count == 1 else f'{noun}s'}"


def facts(run: Run) -> list[str]:
    """What stands beside the recording's name."""
    calls = run.calls
    length_ns = int(calls.end_ns.max() - calls.start_ns.min()) if len(calls) else 0
    return [
        f"{_counted(len(calls), 'call')} at {_counted(len(set(calls.site.tolist())), 'site')}",
        f"{fmt_seconds(length_ns / NS_PER_S)} from the first to the last" if len(calls) else "none",
    ]
