"""``joulemap run``: a program nobody changed, under accounting."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from joulemap.commands.output import console, new_path, progress
from joulemap.errors import InputError, JoulemapError
from joulemap.units import parse_share

if TYPE_CHECKING:
    from joulemap.calls.protocol import Protocol
    from joulemap.recorder.ranks import Rank
    from joulemap.recorder.run import Ran
    from joulemap.recorder.settings import CallSettings

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
    help="What tracing may cost; 0 only meters.",
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
    """
    from joulemap.recorder.budget import Plan
    from joulemap.recorder.child import end_like
    from joulemap.recorder.ranks import Rank
    from joulemap.recorder.run import run

    plan = Plan(parse_share(overhead), trace_all, _ranges(steps))
    if not module and not Path(program).exists():
        raise InputError(f"{program} does not exist.", "Give a script as for python, or a module with -m.")
    rank = Rank.of()
    path = output or new_path(Path(program))
    path = path if rank is None else rank.path(path)
    whole = [*(["-m"] if module else []), program, *arguments]
    metered = _calls(calls, calls_in, fence, "" if module else program)
    if project:
        if metered is None:
            raise InputError("--project needs --calls.", "Say which library: --calls tensorflow --project")
        plan, metered = Plan(0.0), None
    chosen = _protocol(protocol, metered) if isolate else None
    if chosen is not None and metered is not None:
        plan, metered = Plan(0.0), replace(metered, fence=True, patience_s=chosen.patience_s)
    runs = [
        run(
            whole,
            one,
            plan,
            overwrite=overwrite,
            calls=metered,
            protocol=chosen,
            watching=None if quiet else partial(progress, "Reading the traces"),
        )
        for one in _paths(path, repeat)
    ]
    try:
        for ran in runs:
            _report(ran, rank, quiet or repeat > 1, metered is not None)
        if repeat > 1 and not quiet:
            _summarise_runs([ran.path for ran in runs], metered is not None)
        sys.stderr.flush()
    except OSError:  # nobody reads it; Python must not make an exit code of its own of that
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    end_like(next((ran.code for ran in runs if ran.code), 0))


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


def _report(ran: Ran, rank: Rank | None, quiet: bool, with_calls: bool) -> None:
    if ran.problem is not None:
        _complain(ran.problem)
    elif rank is not None:
        _say_merge(rank, ran.path, quiet)
    elif not quiet:
        _summarise(ran.path, with_calls)


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


def _summarise(path: Path, with_calls: bool) -> None:
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
            show(load(path), out=out)
    except OSError:
        raise
    except JoulemapError as error:
        _complain(error)
    except Exception as error:  # noqa: BLE001 - a bug of ours in accounting or drawing: the exit code comes first
        _complain(JoulemapError(f"The summary failed: {error!r}.", "Please report this: it is a bug."))
    out.print(f"\nThe recording is {path}. Look closer:", soft_wrap=True, markup=False)
    for more in ("", *([" --by call"] if with_calls else []), " --by op --top 10", " --summarised"):
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
    except JoulemapError as error:
        _complain(error)
    names = " ".join(str(path) for path in paths)
    out.print(f"\nThe recordings are {names}.", soft_wrap=True, markup=False)


def _say_merge(rank: Rank, path: Path, quiet: bool) -> None:
    """One rank is a part of a job, which is worth looking at as a whole."""
    if rank.rank == 0 and not quiet:
        parts, whole = rank.pattern(path), rank.whole(path)
        click.echo(f"Put the ranks together: joulemap merge {parts} -o {whole}", err=True)


def _complain(error: JoulemapError) -> None:
    click.secho(f"joulemap: {error.message}", fg="red", err=True)
    click.echo(error.hint, err=True, nl=bool(error.hint))
