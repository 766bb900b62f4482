"""``joulemap precision``: how far a footprint can be trusted."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from joulemap.commands.output import console, print_json, progress
from joulemap.errors import InputError
from joulemap.units import parse_share

if TYPE_CHECKING:
    from joulemap.precision.overhead import Overhead
    from joulemap.precision.report import Report
    from joulemap.recording import Recording

_TRIALS = 1000


class _LikePython(click.Command):
    """Behind a program all is the program's; behind recordings there may be options of ours."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        a_program = any(word == "-m" or word.startswith("--runs") for word in args)
        ctx.ignore_unknown_options, ctx.allow_interspersed_args = a_program, not a_program
        return super().parse_args(ctx, args)


@click.command("precision", cls=_LikePython)
@click.option(
    "--runs", type=click.IntRange(1), metavar="N", help="Run PROGRAM so often, with and without recording."
)
@click.option("-m", "module", is_flag=True, help="PROGRAM is a module, as in python -m.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), metavar="FOLDER", help="Where PROGRAM's recordings go."
)
@click.option(
    "--overhead", default="1%", show_default=True, metavar="SHARE", help="What recording may cost PROGRAM."
)
@click.option(
    "--together",
    type=click.IntRange(1),
    metavar="N",
    help="Recordings that make one experiment; 5 from ten on.",
)
@click.option(
    "--coverage", is_flag=True, help="Check our own intervals, on synthetic runs with a known truth."
)
@click.option(
    "--plot", type=click.Path(path_type=Path), metavar="FILE", help="The curves and the matrix as SVG."
)
@click.option("--json", "as_json", is_flag=True, help="The documented JSON instead of tables.")
@click.argument("what", nargs=-1, type=click.UNPROCESSED, metavar="REC... | PROGRAM [ARGS]...")
def command(
    runs: int | None,
    module: bool,
    output: Path | None,
    overhead: str,
    together: int | None,
    coverage: bool,
    plot: Path | None,
    as_json: bool,
    what: Sequence[str],
) -> None:
    """The paper's experiments on precision: sampling (ASSS), repeats (ASSW), stability and overhead.

    \b
    joulemap precision run.joulemap                    of one recording, by its steps
    joulemap precision run-*.joulemap                  of its repeats
    joulemap precision --runs 10 train.py --epochs 3   of a program; overhead too
    joulemap precision --coverage                      of our own intervals
    """
    if coverage:
        _coverage(runs or _TRIALS, as_json)
        return
    if not what:
        raise InputError("There is nothing to examine.", "Give recordings, or --runs 10 and a program.")
    if runs is None and not module:
        recordings, costs = [_loaded(Path(path)) for path in what], None
    else:
        recordings, costs = _run(what, module, runs or 5, output, parse_share(overhead))
    report = _examined(recordings, together, costs)
    if plot is not None:
        from joulemap.precision.picture import picture

        plot.write_text(picture(report))
    _say(report, as_json)


def _loaded(path: Path) -> Recording:
    from joulemap.api import load

    if path.is_file():
        raise InputError(f"{path} is no recording.", f"To run it: joulemap precision --runs 10 {path}.")
    return load(path)


def _run(
    what: Sequence[str], module: bool, pairs: int, output: Path | None, share: float
) -> tuple[list[Recording], Overhead]:
    """Run the program in pairs; its recordings are kept."""
    from joulemap.api import load
    from joulemap.precision.overhead import measure_overhead
    from joulemap.recorder.budget import Plan

    if not module and not Path(what[0]).is_file():
        raise InputError(f"{what[0]} does not exist.", "Give a script as for python, or a module with -m.")
    folder = output or Path(f"precision-{Path(what[0]).stem}-{time.strftime('%Y%m%d-%H%M%S')}")
    folder.mkdir(parents=True, exist_ok=True)
    program = [*(["-m"] if module else []), *what]
    with progress(f"running {what[0]}") as advance:
        costs = measure_overhead(program, pairs, folder, Plan(share), advance)
    console(stderr=True).print(f"The recordings are in {folder}.", markup=False, soft_wrap=True)
    return [load(path) for path in sorted(folder.glob("run-*.joulemap"))], costs


def _examined(recordings: Sequence[Recording], together: int | None, costs: Overhead | None) -> Report:
    from joulemap.api import account
    from joulemap.precision.report import examine

    with progress("accounting") as advance:
        return examine(recordings, [account(one) for one in recordings], together, costs, advance)


def _say(report: Report, as_json: bool) -> None:
    from joulemap.precision.report import to_json
    from joulemap.precision.table import render

    if as_json:
        print_json(to_json(report))
    else:
        render(report, console())


def _coverage(runs: int, as_json: bool) -> None:
    from joulemap.precision.coverage import coverage
    from joulemap.precision.table import render_coverage

    with progress("synthetic runs") as advance:
        found = coverage(runs, advance=advance)
    if as_json:
        rows = [{"name": one.name, "share": one.share, "bias": one.bias} for one in found]
        print_json({"format": 1, "runs": runs, "coverage": rows})
    else:
        render_coverage(found, runs, console())
