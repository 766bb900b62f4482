"""``joulemap validate``: what operations really cost inside a program, against what the accounting says."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from joulemap.commands.output import console, print_json
from joulemap.commands.seconds import Seconds
from joulemap.errors import InputError
from joulemap.units import parse_share

if TYPE_CHECKING:
    from joulemap.validating.report import Report
    from joulemap.validating.validate import Experiment

_LIKE_PYTHON = {"ignore_unknown_options": True, "allow_interspersed_args": False}
_PICTURES = (".svg", ".html")


@click.command("validate", context_settings=_LIKE_PYTHON)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Draw it: a picture (.svg) or a page (.html).",
)
@click.option(
    "--precision",
    default="3%",
    show_default=True,
    metavar="SHARE",
    help="Repeat until half the interval of each truth is that narrow.",
)
@click.option(
    "--budget",
    type=Seconds(min=0),
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to repeat operations at most.",
)
@click.option(
    "--calibration",
    type=Seconds(min=0),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to replay operations by themselves afterwards; 0 compares with time alone.",
)
@click.option(
    "--least",
    default="1%",
    show_default=True,
    metavar="SHARE",
    help="The least part of the device's busy time that is looked at.",
)
@click.option(
    "--modules",
    type=click.IntRange(0),
    default=6,
    show_default=True,
    metavar="N",
    help="How many modules to call again, beside the operations.",
)
@click.option(
    "--times",
    type=click.IntRange(2),
    metavar="N",
    help="Execute N times instead of once; as often as adds half a step, where not given.",
)
@click.option(
    "--warm-up",
    type=click.IntRange(0),
    default=10,
    show_default=True,
    metavar="N",
    help="Steps before anything is traced.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the random order.")
@click.option("--stop", is_flag=True, help="Interrupt the program, as Ctrl-C would, once enough is known.")
@click.option(
    "--recording", type=click.Path(path_type=Path), metavar="REC", help="Keep the recording of the run."
)
@click.option("--overwrite", is_flag=True, help="Replace a picture, page or recording of that name.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("-m", "module", is_flag=True, help="PROGRAM is a module, as in python -m.")
@click.argument("program", metavar="PROGRAM")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGS]...")
def command(
    output: Path | None,
    precision: str,
    budget: float,
    calibration: float,
    least: str,
    modules: int,
    times: int | None,
    warm_up: int,
    seed: int,
    stop: bool,
    recording: Path | None,
    overwrite: bool,
    as_json: bool,
    module: bool,
    program: str,
    arguments: tuple[str, ...],
) -> None:
    """Run a PyTorch program in which operations are executed again in place, and say what one execution
    really costs, against what is shared out by time and by calibrated costs.

    \b
    joulemap validate train.py --epochs 3
    joulemap validate --precision 2% --budget 600 -o accuracy.svg train.py
    """
    from joulemap.recorder.child import end_like
    from joulemap.validating.plan import Wanted
    from joulemap.validating.validate import experiment

    if not module and not Path(program).exists():
        raise InputError(f"{program} does not exist.", "Give a script as for python, or a module with -m.")
    if output is not None:
        _check_output(output, overwrite)
    wanted = Wanted(parse_share(precision), budget, times, seed, parse_share(least), modules, stop)
    whole = [*(["-m"] if module else []), program, *arguments]
    with tempfile.TemporaryDirectory() as scratch:
        path = recording or Path(scratch) / "validate.joulemap"
        found = experiment(whole, path, wanted, warm_up, _say, overwrite)
        report = _report(path, found, calibration)
    if report is not None:
        _show(report, as_json, output)
    end_like(found.failure)


def _check_output(output: Path, overwrite: bool) -> None:
    """Before the program runs for nothing."""
    if output.suffix not in _PICTURES:
        raise InputError(f"{output} is neither a picture nor a page.", "Call it .svg or .html.")
    if output.exists() and not overwrite:
        raise InputError(f"{output} exists.", "Choose another with -o, or replace it with --overwrite.")
    if not os.access(output if output.exists() else output.parent, os.W_OK):
        raise InputError(f"{output} cannot be written.", "Choose a folder of yours that exists, with -o.")


def _report(path: Path, found: Experiment, calibrate_s: float) -> Report | None:
    """What there is to say; nothing but why not, where the program failed before there was anything."""
    from joulemap.commands.calibrate import buying
    from joulemap.validating.validate import report_of

    try:
        with buying() as watching:
            return report_of(path, found, calibrate_s, watching)
    except InputError as error:
        if not found.failure:
            raise
        _say(error.message)
        return None


def _show(report: Report, as_json: bool, output: Path | None) -> None:
    """Print it, and draw it where that was asked for."""
    if as_json:
        print_json(report.to_json())
    else:
        from joulemap.validating.table import print_report

        print_report(report, console())
    if output is not None:
        from joulemap.validating.picture import page, picture

        output.write_text((page if output.suffix == ".html" else picture)(report))


def _say(text: str) -> None:
    """How it goes, between the lines of the program."""
    click.echo(f"joulemap: {text}", err=True)
