"""``joulemap calibrate``: what this machine draws when it does nothing, and what operations cost on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from joulemap.commands.output import console, print_json
from joulemap.commands.seconds import Seconds, given
from joulemap.errors import InputError, MeterError

if TYPE_CHECKING:
    from joulemap.baselines import Baselines, StoredBaseline
    from joulemap.calibration.book import Calibration
    from joulemap.meters.available import OpenMeters
    from joulemap.replaying import Bought, Watching
    from joulemap.stability import Verdict

_FORMAT = 1


@click.command("calibrate")
@click.option("--idle", is_flag=True, help="Wait until the machine is idle, and measure what it draws then.")
@click.option(
    "--seconds",
    type=Seconds(1.0),
    default=10.0,
    show_default=True,
    metavar="S",
    help="How long to measure once it is idle.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(0.0),
    default=120.0,
    show_default=True,
    metavar="S",
    help="How long to wait for the machine to come to rest.",
)
@click.option(
    "--budget",
    type=Seconds(5.0),
    default=60.0,
    show_default=True,
    metavar="S",
    help="How long to replay operations of a recording.",
)
@click.option("--again", is_flag=True, help="Replay what is known already, too.")
@click.option("--list", "listed", is_flag=True, help="Show what is stored for this machine.")
@click.option("--clear", is_flag=True, help="Forget it.")
@click.option("--json", "as_json", is_flag=True, help="The documented JSON instead of a table.")
@click.argument("path", type=click.Path(path_type=Path), required=False, metavar="[REC]")
def command(
    idle: bool,
    seconds: float,
    timeout: float,
    budget: float,
    again: bool,
    listed: bool,
    clear: bool,
    as_json: bool,
    path: Path | None,
) -> None:
    """Measure what the operations of a recording cost by themselves, or the idle baseline of every meter,
    and keep it for this machine.

    \b
    joulemap calibrate REC          replay its operations; joulemap show REC --rule calibrated uses them
    joulemap calibrate --idle       wait for a stable machine, measure, store
    joulemap calibrate --list       what is stored
    """
    from joulemap.baselines import Baselines

    if idle + listed + clear + (path is not None) != 1:
        raise InputError(
            "Say what to do: a recording, --idle, --list or --clear.",
            "joulemap calibrate --idle measures what is drawn when nothing runs.",
        )
    _check_given("budget", "again", where=path is not None, what="the operations of a recording")
    _check_given("seconds", "timeout", where=idle, what="--idle")
    if path is not None:
        _operations(path, budget, as_json, again)
        return
    store = Baselines()
    if clear:
        _clear(store, as_json)
        return
    notes = _measure(store, seconds, timeout) if idle else ()
    _show(store, as_json, notes)


def _check_given(*names: str, where: bool, what: str) -> None:
    """Options that would do nothing are refused."""
    for name in names:
        if given(name) and not where:
            raise InputError(f"--{name} is for {what}.", "Leave it out, or see joulemap calibrate --help.")


def _operations(path: Path, budget_s: float, as_json: bool, again: bool) -> None:
    """Replay the operations of a recording, and say what they cost."""
    from joulemap.api import load
    from joulemap.calibrating import calibrate, covered_by, left_to_time
    from joulemap.calibration.book import Book
    from joulemap.replaying import Interrupted

    recording, book = load(path), Book()
    try:
        with buying() as watching:
            found = calibrate(recording, budget_s, book, watching, again)
    except Interrupted as error:
        click.echo(f"{error.message} {error.hint}", err=True)
        raise click.Abort from error
    if book.problem is not None:
        not_kept(book.problem)
    covered, others = covered_by(found, recording), left_to_time(found, recording)
    if as_json:
        print_json({**found.to_json(), "covered": covered, "by_time": others})
    else:
        _costs(found, covered, others)
        console().print(f"\njoulemap show {path} --rule calibrated", soft_wrap=True, markup=False)


def not_kept(problem: InputError) -> None:
    """Say that other recordings will not have these costs."""
    click.echo(f"The costs are in this recording alone. {problem}", err=True)


@contextmanager
def buying() -> Iterator[Watching | None]:
    """A bar on standard error with what the budget has bought, and what it will; nothing where that is not a
    terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    from joulemap.units import fmt_share

    errors = Console(stderr=True)
    if not errors.is_terminal:
        yield None
        return
    columns = (TextColumn("Replaying operations"), BarColumn(), TextColumn("{task.description}"))
    bar = Progress(*columns, console=errors, transient=True)
    task = bar.add_task("", total=1.0)

    def advance(done: Bought) -> None:
        bar.start()
        said = f"{fmt_share(done.covered)} of busy time, {fmt_share(done.reaches)} in the end"
        bar.update(task, completed=done.spent, description=said)

    try:
        yield advance
    finally:
        bar.stop()


def _costs(found: Calibration, covered: float, others: Sequence[str]) -> None:
    from rich.table import Table

    from joulemap.calibration.book import described
    from joulemap.units import fmt, fmt_pm, fmt_seconds, fmt_share

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for heading in ("operation", "one execution", "power", "time"):
        table.add_column(heading, justify="left" if heading == "operation" else "right")
    for words, cost in zip(described(found.costs), found.costs.values(), strict=True):
        power = fmt_pm(cost.power_w, "W", cost.half_j / cost.seconds)
        table.add_row(words, fmt_pm(cost.energy_j, "J", cost.half_j), power, fmt_seconds(cost.seconds))
    out = console()
    out.print(f"What operations cost on {found.device}, each by itself\n", markup=False)
    out.print(table)
    out.print(
        f"\n{fmt_share(covered)} of the busy time is calibrated. Waiting draws {fmt(found.idle_w, 'W')}.",
        markup=False,
    )
    same = [one for one in found.alike if one not in others]
    alike = f"{', '.join(same)}, of the same model, {'has' if len(same) == 1 else 'have'} the same costs."
    by_time = f"The energy of {', '.join(others)} stays shared by time: nothing that ran there has a cost."
    for said in (*[alike] * bool(same), *[by_time] * bool(others), *found.remarks()):
        out.print(f"note: {said}", soft_wrap=True, markup=False)
    for words, why in zip(described(found.skipped), found.skipped.values(), strict=True):
        out.print(f"not replayed: {words}: {why}", soft_wrap=True, markup=False)


def _measure(store: Baselines, seconds: float, timeout_s: float) -> Sequence[str]:
    """Store what is found; what the gate could not judge."""
    from joulemap.baselines import machine
    from joulemap.idle import measure_idle
    from joulemap.meters.available import open_meters

    with open_meters() as opened, _waiting() as on_wait:
        if not opened.channels:
            raise MeterError("No meter works here.", "joulemap doctor says why, and what to do.")
        found = measure_idle(
            opened.channels,
            seconds=seconds,
            timeout_s=timeout_s,
            idle_w=_known_w(store, opened),
            facts=opened.facts,
            on_wait=on_wait,
        )
    for domain, baseline in found.baselines.items():
        store.put(machine(), domain, baseline)
    return found.notes


def _known_w(store: Baselines, opened: OpenMeters) -> dict[str, float]:
    from joulemap.baselines import machine

    found = {channel.domain.name: store.find(machine(), channel.domain) for channel in opened.channels}
    return {name: stored.baseline.power_w for name, stored in found.items() if stored is not None}


@contextmanager
def _waiting() -> Iterator[Callable[[Verdict], None]]:
    """Says on standard error what is waited for; nothing where that is not a terminal."""
    from rich.console import Console

    errors = Console(stderr=True)
    if not errors.is_terminal:
        yield lambda _: None
        return
    with errors.status("measuring") as status:
        yield lambda verdict: status.update(f"waiting: {'; '.join(verdict.reasons)}")


def _clear(store: Baselines, as_json: bool) -> None:
    from joulemap.baselines import machine
    from joulemap.calibration.book import Book

    count, costs = store.clear(machine()), Book().clear(machine())
    if as_json:
        print_json({"format": _FORMAT, "machine": machine(), "cleared": count, "costs_cleared": costs})
    else:
        console().print(
            f"Forgot {count} baselines of {machine()}, and what {costs} operations cost.", markup=False
        )


def _show(store: Baselines, as_json: bool, notes: Sequence[str] = ()) -> None:
    from joulemap.baselines import machine
    from joulemap.calibration.book import Book

    stored, known = store.all_of(machine()), Book().all_of(machine())
    if as_json:
        costs = {shelf: one.to_json() for shelf, one in known.items()}
        print_json({**_to_json(stored, store), "operations": costs, "notes": list(notes)})
        return
    if not stored:
        console().print(
            f"No baseline of {machine()} is stored. joulemap calibrate --idle measures one.", markup=False
        )
    else:
        _table(stored, store)
        for note in notes:
            console().print(f"note: {note}.", soft_wrap=True, markup=False)
    for shelf, one in known.items():
        console().print(f"\n{len(one.costs)} operations are calibrated: {shelf}.", markup=False)


def _to_json(stored: list[StoredBaseline], store: Baselines) -> dict[str, Any]:
    from joulemap.baselines import machine

    return {
        "format": _FORMAT,
        "machine": machine(),
        "file": str(store.path),
        "baselines": [one.to_json() for one in stored],
    }


def _table(stored: list[StoredBaseline], store: Baselines) -> None:
    import datetime

    from rich.table import Table

    from joulemap.baselines import machine
    from joulemap.units import NS_PER_S, fmt_pm, fmt_seconds

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for heading in ("domain", "idle", "", "sensor", "over", "taken"):
        table.add_column(heading, justify="right" if heading in ("idle", "over") else "left", no_wrap=True)
    for one in stored:
        baseline = one.baseline
        half_w = (baseline.high_w - baseline.low_w) / 2
        taken = datetime.datetime.fromtimestamp(one.taken_ns // NS_PER_S, datetime.timezone.utc)
        table.add_row(
            baseline.domain,
            fmt_pm(baseline.power_w, "W", half_w),
            one.provenance,
            one.sensor,
            fmt_seconds(baseline.seconds),
            f"{taken:%Y-%m-%d %H:%M} UTC",
        )
    out = console()
    out.print(f"Idle baselines of {machine()}\n", markup=False)
    out.print(table)
    out.print(f"\nKept in {store.path}.", soft_wrap=True, markup=False)
