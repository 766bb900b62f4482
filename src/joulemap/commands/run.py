"""``joulemap run``: a program nobody changed, under accounting."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from joulemap.commands.output import console, new_path, progress
from joulemap.commands.seconds import Seconds, given
from joulemap.errors import InputError, JoulemapError
from joulemap.units import parse_share

if TYPE_CHECKING:
    from joulemap.accounting import Rule
    from joulemap.calls.protocol import Protocol
    from joulemap.recorder.budget import Plan
    from joulemap.recorder.ranks import Rank
    from joulemap.recorder.run import Ran
    from joulemap.recorder.settings import CallSettings

_BUG = "Please report this: it is a bug."
_LATER = "joulemap calibrate {} does it in any case."
_LIKE_PYTHON = {"ignore_unknown_options": True, "allow_interspersed_args": False}


@click.command("run", context_settings=_LIKE_PYTHON)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), metavar="REC", help="Where to write the recording."
)
@click.option("--overwrite", is_flag=True, help="Replace a recording of that name.")
@click.option(
    "--overhead",
    default="1%",
    show_default=True,
    metavar="SHARE",
    help="What recording may cost; 0 only meters.",
)
@click.option("--trace-all", is_flag=True, help="Trace every step, whatever it costs.")
@click.option("--steps", metavar="LIST", help="Trace exactly these steps, counted from 0: 10-14,100.")
@click.option(
    "--calls",
    metavar="LIB[,LIB]",
    help="Meter each call of these libraries' APIs in the program's own files: tensorflow, keras, torch, ….",
)
@click.option(
    "--calls-in",
    multiple=True,
    metavar="PKG",
    help="Look for calls in this package too, wherever it is installed. Can be given several times.",
)
@click.option("--fence", is_flag=True, help="Wait for devices at the end of each call; this slows it down.")
@click.option(
    "--project", is_flag=True, help="With --calls: meter the program as a whole, and neither call nor step."
)
@click.option(
    "--isolate",
    is_flag=True,
    help="With --calls: wait until the machine is calm before each call and after it.",
)
@click.option(
    "--protocol",
    type=click.Choice(["joulemap", "fecom"]),
    default="joulemap",
    show_default=True,
    help="With --isolate: how calm, and how long to wait.",
)
@click.option(
    "--repeat",
    type=click.IntRange(1),
    default=1,
    metavar="N",
    help="Run the program N times, a process and a recording each.",
)
@click.option(
    "--calibrate", is_flag=True, help="Replay the operations of a PyTorch program by themselves afterwards."
)
@click.option(
    "--budget",
    type=Seconds(5.0),
    default=60.0,
    show_default=True,
    metavar="S",
    help="With --calibrate: how long to replay.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print no summary.")
@click.option("-m", "module", is_flag=True, help="PROGRAM is a module, as in python -m.")
@click.argument("program", metavar="PROGRAM")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGS]...")
def command(
    output: Path | None,
    overwrite: bool,
    overhead: str,
    trace_all: bool,
    steps: str | None,
    calls: str | None,
    calls_in: tuple[str, ...],
    fence: bool,
    project: bool,
    isolate: bool,
    protocol: str,
    repeat: int,
    calibrate: bool,
    budget: float,
    quiet: bool,
    module: bool,
    program: str,
    arguments: tuple[str, ...],
) -> None:
    """Run a Python program and show where its energy went. The program is not changed: its output, results
    and exit code are its own.

    \b
    joulemap run train.py --epochs 3
    joulemap run -o base.joulemap --overhead 0.5% -m mypackage.train
    joulemap run --calls tensorflow train.py
    joulemap run --calibrate train.py
    """
    from joulemap.recorder.budget import Plan
    from joulemap.recorder.child import end_like
    from joulemap.recorder.look import FIRST
    from joulemap.recorder.ranks import Rank
    from joulemap.recorder.run import run

    plan = Plan(parse_share(overhead), trace_all, _ranges(steps))
    if not module and not Path(program).exists():
        raise InputError(f"{program} does not exist.", "Give a script as for python, or a module with -m.")
    rank = Rank.of()
    path = output or new_path(Path(program), rank)
    metered = _calls(calls, calls_in, fence, "" if module else program)
    asked = _Asked.of(plan, metered, project, protocol if isolate else None)
    if given("budget") and not calibrate:
        raise InputError("--budget needs --calibrate.", "It says how long to replay operations afterwards.")
    if calibrate:
        _check_traced(asked.plan, project, isolate)
    if calibrate and rank is not None:
        raise InputError("--calibrate is for programs of one process.", "Calibrate a rank's recording alone.")
    runs = [
        run(
            [*(["-m"] if module else []), program, *arguments],
            one,
            asked.plan,
            overwrite=overwrite,
            calls=asked.calls,
            protocol=asked.protocol,
            watching=None if quiet else partial(progress, "Reading the traces"),
            caches=FIRST if calibrate else None,
        )
        for one in _paths(path if rank is None else rank.path(path), repeat)
    ]
    _after(runs, rank, quiet, asked.calls is not None, budget if calibrate else None)
    end_like(next((ran.code for ran in runs if ran.code), 0))


def _check_traced(plan: Plan, project: bool, isolate: bool) -> None:
    """What is replayed is what traced steps were called with."""
    if plan.overhead or plan.trace_all or plan.steps:
        return
    why = "--project" if project else "--isolate" if isolate else "--overhead 0"
    raise InputError(
        f"With {why} no step is traced, so that --calibrate has nothing to replay.", "Leave one of them out."
    )


@dataclass(frozen=True)
class _Asked:
    """What to trace, which calls to meter, and how to isolate them."""

    plan: Plan
    calls: CallSettings | None
    protocol: Protocol | None

    @classmethod
    def of(cls, plan: Plan, calls: CallSettings | None, project: bool, protocol: str | None) -> _Asked:
        """From the options: whoever meters the program as a whole, or isolates its calls, traces nothing."""
        from joulemap.recorder.budget import Plan

        if project:
            if calls is None:
                raise InputError(
                    "--project needs --calls.", "Say which library: --calls tensorflow --project"
                )
            return cls(Plan(0.0), None, None if protocol is None else _protocol(protocol, None))
        if protocol is None:
            return cls(plan, calls, None)
        chosen = _protocol(protocol, calls)
        isolated = calls and replace(calls, fence=True, patience_s=chosen.patience_s)
        return cls(Plan(0.0), isolated, chosen)


def _after(
    runs: Sequence[Ran], rank: Rank | None, quiet: bool, with_calls: bool, budget_s: float | None
) -> None:
    """Calibrate where that was asked for, and say how it went."""
    try:
        for ran in runs:
            rule = "exact" if budget_s is None else _calibrated(ran, budget_s, quiet)
            _report(ran, rank, quiet or len(runs) > 1, with_calls, rule)
        if len(runs) > 1 and not quiet:
            _summarise_runs([ran.path for ran in runs], with_calls)
        sys.stderr.flush()
    except OSError:  # nobody reads it; Python must not make an exit code of its own of that
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def _calibrated(ran: Ran, budget_s: float, quiet: bool) -> Rule:
    """Replay the operations of a program that has run; by which rule it can be accounted then. Whatever goes
    wrong is only said."""
    from joulemap.api import load
    from joulemap.calibrating import calibrate, nothing_found
    from joulemap.calibration.book import Book
    from joulemap.commands.calibrate import buying, not_kept

    if ran.problem is not None:
        return "exact"
    if ran.code:
        _complain(JoulemapError("The program failed, so nothing is calibrated.", _LATER.format(ran.path)))
        return "exact"
    try:
        with nullcontext() if quiet else buying() as watching:
            found = calibrate(load(ran.path), budget_s, book := Book(), watching)
        if book.problem is not None:
            not_kept(book.problem)
        if not found.costs:
            raise nothing_found(found, ran.path)
        for said in found.remarks():
            click.echo(said, err=True)
    except JoulemapError as error:
        _complain(JoulemapError(f"Nothing is calibrated. {error.message}", error.hint))
        return "exact"
    except Exception as error:  # noqa: BLE001 - a bug of ours: the exit code comes first
        _complain(JoulemapError(f"Nothing is calibrated: {error!r}.", _BUG))
        return "exact"
    return "calibrated"


def _paths(path: Path, repeat: int) -> list[Path]:
    """A recording for each run: ``train-run1.joulemap`` and so on where there are several."""
    if repeat == 1:
        return [path]
    return [path.with_name(f"{path.stem}-run{number}{path.suffix}") for number in range(1, repeat + 1)]


def _protocol(name: str, metered: CallSettings | None) -> Protocol:
    from joulemap.calls.protocol import PROTOCOLS

    if metered is None:
        raise InputError("--isolate needs --calls.", "Say which library: --calls tensorflow --isolate")
    return PROTOCOLS[name]


def _report(ran: Ran, rank: Rank | None, quiet: bool, with_calls: bool, rule: Rule) -> None:
    if ran.problem is not None:
        _complain(ran.problem)
    elif rank is not None:
        _say_merge(rank, ran.path, quiet)
    elif not quiet:
        _summarise(ran.path, with_calls, rule)


def _calls(libraries: str | None, packages: tuple[str, ...], fence: bool, script: str) -> CallSettings | None:
    """What to meter of the calls: those of a script's folder, or of the current one for a module."""
    from joulemap.recorder.settings import CallSettings

    if libraries is None:
        if packages or fence:
            raise InputError("--calls-in and --fence need --calls.", "Say which library: --calls tensorflow")
        return None
    names = tuple(name.strip() for name in libraries.split(","))
    for name in (*names, *packages):
        if not name.isidentifier():
            raise InputError(f"{name!r} is not a library.", "Name it as in import: tensorflow, torch, numpy.")
    root = str((Path(script).parent if script else Path()).absolute())
    return CallSettings(names, root, packages, script, fence)


def _ranges(text: str | None) -> tuple[tuple[int, int], ...]:
    """``10-14,100`` as ranges, both ends included."""
    found = []
    for part in (text or "").split(",") if text else ():
        first, _, last = part.strip().partition("-")
        if not first.isdigit() or not (last or first).isdigit() or int(last or first) < int(first):
            raise InputError(f"{text!r} are not steps.", "Write them like 10-14,100.")
        found.append((int(first), int(last or first)))
    return tuple(found)


def _summarise(path: Path, with_calls: bool, rule: Rule) -> None:
    """The tree, or the calls where they were metered, on standard error: standard output is the program's."""
    from joulemap.api import load
    from joulemap.commands.show import show
    from joulemap.commands.show_calls import show_calls

    out = console(stderr=True)
    try:
        out.print()
        if with_calls:
            show_calls([load(path)], depth=1, top=10, out=out)
        else:
            show(load(path), out=out, rule=rule)
    except OSError:
        raise
    except Exception as error:  # noqa: BLE001 - a bug of ours in accounting or drawing: the exit code comes first
        _complain(_of_summary(error))
    out.print(f"\nThe recording is {path}. Look closer:", soft_wrap=True, markup=False)
    asked = f" --rule {rule}" if rule != "exact" else ""
    for more in (asked, *([" --by call"] if with_calls else []), " --by op --top 10", " --summarised"):
        out.print(f"  joulemap show {path}{more}", soft_wrap=True, markup=False)
    out.print(f"  joulemap report {path}", soft_wrap=True, markup=False)


def _summarise_runs(paths: Sequence[Path], with_calls: bool) -> None:
    """Where the recordings are; and their calls, with the spread over runs."""
    from joulemap.api import load
    from joulemap.commands.show_calls import show_calls

    out = console(stderr=True)
    try:
        if with_calls:
            out.print()
            show_calls([load(path) for path in paths], out=out)
    except OSError:
        raise
    except Exception as error:  # noqa: BLE001 - as for one run
        _complain(_of_summary(error))
    names = " ".join(str(path) for path in paths)
    out.print(f"\nThe recordings are {names}.", soft_wrap=True, markup=False)


def _of_summary(error: Exception) -> JoulemapError:
    if isinstance(error, JoulemapError):
        return error
    return JoulemapError(f"The summary failed: {error!r}.", _BUG)


def _say_merge(rank: Rank, path: Path, quiet: bool) -> None:
    """One rank is a part of a job, which is worth looking at as a whole."""
    if rank.rank == 0 and not quiet:
        click.echo(f"Put the ranks together: {rank.merge_command(path)}", err=True)


def _complain(error: JoulemapError) -> None:
    click.secho(f"joulemap: {error.message}", fg="red", err=True)
    click.echo(error.hint, err=True, nl=bool(error.hint))
