"""``joulemap demo``: the first thing a newcomer runs."""

from __future__ import annotations

import importlib.util
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import click

from joulemap.commands.output import console, new_path, progress
from joulemap.commands.report import write
from joulemap.commands.show import show, show_options
from joulemap.errors import JoulemapError

_EXAMPLES = (("tensorflow", "bert_keras.py"),)
"""A small BERT for each framework; the first that is installed is trained."""

_OVERHEAD = 0.03
"""Of half a minute one percent pays for a session or two, which say nothing about how alike steps are."""

_MORE = ("--by tensor --top 10", "--summarised --depth 6", "--by phase", "--json")
_MORE_RECORDED = (
    "--by op --top 10",
    "--summarised --depth 5",
    "--by phase",
    "--baseline GPU:0=122W",
    "--json",
)


@click.command("demo")
@click.option("--recorded", is_flag=True, help="Train nothing: account a recording from an NVIDIA H200.")
@click.option("--steps", type=click.IntRange(1), default=150, show_default=True, help="How long to train.")
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="REC", help="Where to record.")
@show_options
def command(recorded: bool, steps: int, output: Path | None, salvage: bool, **options: Any) -> None:
    """Train a small BERT for about a minute, and show where its energy went.

    Nothing is downloaded: the text is made up. Without a framework, or with --recorded, a real recording that
    comes with joulemap is shown instead: BERT-base, training on an NVIDIA H200.
    """
    example = None if recorded else _example()
    if example is None:
        _show_recorded(salvage, options)
    else:
        _train(example, steps, output or new_path(example), options)


def _example() -> Path | None:
    """The example for a framework that is installed: beside the package, or in the checkout."""
    package = Path(__file__).parents[1]
    for framework, name in _EXAMPLES:
        if importlib.util.find_spec(framework) is None:
            continue
        found = [folder / name for folder in (package / "examples", package.parents[1] / "examples")]
        return next((path for path in found if path.is_file()), None)
    return None


def _train(example: Path, steps: int, path: Path, options: dict[str, Any]) -> None:
    from joulemap.api import load
    from joulemap.recorder.budget import Plan
    from joulemap.recorder.run import run

    people = console(stderr=True)
    run_it = f"joulemap run --overhead {_OVERHEAD:.0%} {example.name} --steps {steps}"
    people.print(f"Training a small BERT for {steps} steps: {run_it}", style="bold", soft_wrap=True)
    people.print("The text is made up, nothing is downloaded. It compiles first, which takes a while.\n")
    ran = run(
        [str(example), "--steps", str(steps)],
        path,
        Plan(_OVERHEAD),
        watching=partial(progress, "Reading the traces"),
        output_to_errors=True,
    )
    if ran.problem is not None:
        raise ran.problem
    if ran.code:
        raise JoulemapError(
            f"The training failed (exit code {ran.code}).", "joulemap demo --recorded trains nothing."
        )
    people.print()
    show(load(path), **options)
    if not (options["as_json"] or options["as_csv"]):
        console().print("\nThe ten most expensive tensors, layers of a kind together:\n")
        show(load(path), by="tensor", summarised=True, top=10, brief=True)
        page = path.with_suffix(".html")
        write(page, [path])
        _what_next(
            f"The recording is {path}, and the page to look at {page}.", f"joulemap show {path}", _MORE
        )


def _show_recorded(salvage: bool, options: dict[str, Any]) -> None:
    from joulemap.api import load

    with resources.as_file(resources.files("joulemap") / "data" / "bert-h200.joulemap") as path:
        show(load(path, salvage=salvage), **options)
        if not (options["as_json"] or options["as_csv"]):
            _what_next(f"The recording is in {path}.", "joulemap demo --recorded", _MORE_RECORDED)
            console().print(f"  joulemap report {path}", soft_wrap=True, markup=False)


def _what_next(where: str, again: str, more: tuple[str, ...]) -> None:
    out = console()
    out.print(f"\n{where} Look closer:", soft_wrap=True, markup=False)
    for arguments in more:
        out.print(f"  {again} {arguments}", soft_wrap=True, markup=False)
