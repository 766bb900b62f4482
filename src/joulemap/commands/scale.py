"""``joulemap scale``: how a program's energy grows with the size of what it is given."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from joulemap.commands.output import console, print_json
from joulemap.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from joulemap.accounting.fit import Estimate, Fit
    from joulemap.recorder.settings import CallSettings
    from joulemap.scaling import Measured, Trial

_FORMAT = 1
_LIKE_PYTHON = {"ignore_unknown_options": True, "allow_interspersed_args": False}
_WORDS = {
    "proportional": "proportional to size",
    "linear": "linear, with an offset",
    "flat": "does not grow with size, as far as can be seen",
    "not known": "not known: take three or more sizes, and several runs",
}


@click.command("scale", context_settings=_LIKE_PYTHON)
@click.option("--sizes", required=True, metavar="LIST", help="The sizes: 1000,2000,4000.")
@click.option(
    "--repeat",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    metavar="N",
    help="Runs of each size, all in an order of chance.",
)
@click.option("--call", "api", metavar="API", help="Only the calls of this API: tensorflow.keras.Model.fit.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), metavar="FOLDER", help="Where to keep the recordings."
)
@click.option("--net", is_flag=True, help="Energy above the idle baseline of this machine.")
@click.option(
    "--baseline", multiple=True, metavar="DOMAIN=WATTS", help="Use this baseline (GPU:0=122W) for --net."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Chooses the order of the runs.")
@click.option("--json", "as_json", is_flag=True, help="The documented JSON instead of a table.")
@click.option("-m", "module", is_flag=True, help="PROGRAM is a module, as in python -m.")
@click.argument("program", metavar="PROGRAM")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGS]...")
def command(
    sizes: str,
    repeat: int,
    api: str | None,
    output: Path | None,
    net: bool,
    baseline: Sequence[str],
    seed: int,
    as_json: bool,
    module: bool,
    program: str,
    arguments: tuple[str, ...],
) -> None:
    """Run a program with one size after the other, and fit its energy against size.

    {size} in its arguments stands for the size. What the program prints goes to standard error.

    \b
    joulemap scale --sizes 1000,2000,4000,8000 train.py --samples {size}
    joulemap scale --sizes 8,16,32 --call tensorflow.keras.Model.fit train.py --batch={size}
    """
    from joulemap.scaling import PLACE, fits, trials

    words = [*(["-m"] if module else []), program, *arguments]
    if not any(PLACE in word for word in words):
        raise InputError(
            f"Nothing in the program's arguments is the size: {PLACE} is not among them.",
            f"Write it where the size goes: --samples {PLACE}",
        )
    if not module and not Path(program).exists():
        raise InputError(f"{program} does not exist.", "Give a script as for python, or a module with -m.")
    planned = trials(_sizes(sizes), repeat, seed)
    folder = output or Path(f"{Path(program).stem}-scale-{time.strftime('%Y%m%d-%H%M%S')}")
    folder.mkdir(parents=True, exist_ok=True)
    runs = []
    for number, trial in enumerate(planned, 1):
        click.echo(f"run {number} of {len(planned)}: size {trial.size:g}", err=True)
        runs.append(_one(trial, trial.arguments(words), folder / trial.name, api, net, baseline))
    found = fits(runs)
    if as_json:
        print_json(_json(words, api, net or bool(baseline), runs, found))
    else:
        _print(runs, found, folder)


def _sizes(text: str) -> list[float]:
    try:
        sizes = [float(part) for part in text.split(",")]
    except ValueError:
        sizes = []
    if len(set(sizes)) < 2 or not all(math.isfinite(size) for size in sizes):
        raise InputError(f"{text!r} are not sizes.", "Give two or more, and better five: 1000,2000,4000.")
    return sizes


def _one(
    trial: Trial, words: Sequence[str], path: Path, api: str | None, net: bool, given: Sequence[str]
) -> Measured:
    """Run the program once; its recording is kept."""
    from joulemap.recorder.budget import Plan
    from joulemap.recorder.run import run
    from joulemap.scaling import measured

    ran = run(words, path, Plan(0.0), output_to_errors=True, calls=_metered(api, words))
    if ran.problem is not None:
        raise ran.problem
    if ran.code:
        raise InputError(
            f"With size {trial.size:g} the program ended with exit code {ran.code}.",
            f"What was recorded until then is in {path.parent}.",
        )
    return measured(trial, path, api, _baselines(path, given) if net or given else None)


def _metered(api: str | None, words: Sequence[str]) -> CallSettings | None:
    """The library of an API is the first part of its name."""
    from joulemap.recorder.settings import CallSettings

    if api is None:
        return None
    script = "" if words[0] == "-m" else words[0]
    root = str((Path(script).parent if script else Path()).absolute())
    return CallSettings((api.partition(".")[0],), root, (), script)


def _baselines(path: Path, given: Sequence[str]) -> dict[str, float]:
    from joulemap.api import load
    from joulemap.commands.show_calls import baselines_of

    return baselines_of(load(path), True, given)


def _json(
    words: Sequence[str], api: str | None, net: bool, runs: Sequence[Measured], found: dict[str, Fit]
) -> dict[str, Any]:
    return {
        "format": _FORMAT,
        "program": list(words),
        "call": api,
        "net": net,
        "runs": [
            {
                "size": run.trial.size,
                "run": run.trial.run,
                "recording": str(run.path),
                "seconds": run.seconds,
                "energy_j": dict(run.energy_j),
            }
            for run in runs
        ],
        "fits": [
            {
                "domain": name,
                "provenance": runs[0].provenance.get(name),
                "slope_j": _estimate(one.slope_j),
                "offset_j": _estimate(one.offset_j),
                "bend": _estimate(one.bend),
                "r": one.r if math.isfinite(one.r) else None,
                "shape": one.shape,
            }
            for name, one in found.items()
        ],
    }


def _estimate(one: Estimate) -> dict[str, float | None]:
    values = {"value": one.value, "low": one.low, "high": one.high}
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


def _print(runs: Sequence[Measured], found: dict[str, Fit], folder: Path) -> None:
    from joulemap.units import fmt

    out = console()
    out.print(_by_size(runs))
    out.print()
    for name, one in found.items():
        slope, offset = _pm(one.slope_j), _pm(one.offset_j)
        r = f"r {one.r:.3f}" if math.isfinite(one.r) else "r not known"
        out.print(f"{name}: {_words(one)}", style="bold", markup=False)
        out.print(f"  energy = {offset} + {slope} × size   ({r}, {one.count} runs)", markup=False)
    estimated = any(word == "estimated" for run in runs for word in run.provenance.values())
    if estimated:
        out.print("estimated: not read off a meter, and rough: the level may be off by half.", style="dim")
    total = sum(sum(run.energy_j.values()) for run in runs)
    out.print(f"± is the 95 % interval. All runs drew {fmt(total, 'J')}; they are in {folder}.", style="dim")


def _by_size(runs: Sequence[Measured]) -> Table:
    """Means of the runs of a size, a column a domain."""
    from rich.table import Table

    from joulemap.units import fmt, fmt_seconds

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for header in ("size", "runs", "time", *runs[0].energy_j):
        table.add_column(header, justify="right", no_wrap=True)
    for size in sorted({run.trial.size for run in runs}):
        alike = [run for run in runs if run.trial.size == size]
        seconds = sum(run.seconds for run in alike) / len(alike)
        means = [sum(run.energy_j.get(name, 0.0) for run in alike) / len(alike) for name in runs[0].energy_j]
        table.add_row(f"{size:g}", str(len(alike)), fmt_seconds(seconds), *(fmt(mean, "J") for mean in means))
    return table


def _pm(one: Estimate) -> str:
    from joulemap.units import fmt_pm

    half = one.high - one.value
    return fmt_pm(one.value, "J", half if math.isfinite(half) else None)


def _words(one: Fit) -> str:
    if one.shape == "not linear":
        return f"not linear: it grows {'ever faster' if one.bend.value > 0 else 'ever slower'}"
    return _WORDS[one.shape]
