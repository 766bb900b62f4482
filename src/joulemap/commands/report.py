"""``joulemap report``: a recording as one page to look at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from joulemap.commands.output import console, progress
from joulemap.commands.show import RULES, baselines, whole_fusions_option
from joulemap.errors import InputError

if TYPE_CHECKING:
    from joulemap.accounting import Footprint, Rule
    from joulemap.recording import Recording


@click.command("report")
@click.argument(
    "recordings", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="REC [REC]..."
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="The page; REC's name by default."
)
@click.option("--overwrite", is_flag=True, help="Replace the page if it exists.")
@click.option(
    "--intensity", metavar="G", help="Grams of CO2e for a kWh where this ran; without it, none are shown."
)
@click.option(
    "--baseline", multiple=True, metavar="DOMAIN=WATTS", help="Idle power (GPU:0=122W), for net energy."
)
@click.option(
    "--rule", type=click.Choice(RULES), default="exact", show_default=True, help="The sharing rule."
)
@whole_fusions_option
@click.option("--salvage", is_flag=True, help="Go on with what is left of a damaged recording.")
def command(
    recordings: Sequence[Path], output: Path | None, overwrite: bool, intensity: str | None, **options: Any
) -> None:
    """Make one page of a recording, to look at in a browser: no network, nothing beside the file.

    \b
    joulemap report run.joulemap -o report.html
    joulemap report run.joulemap --intensity 380      with CO2e, at 380 g/kWh
    joulemap report a.joulemap b.joulemap             several beside each other, compared
    """
    path = output or Path(f"{recordings[0].name.removesuffix('.joulemap')}.html")
    grams = _grams(intensity)
    if path.exists() and not overwrite:
        raise InputError(f"{path} exists.", "Choose another with -o, or replace it with --overwrite.")
    write(path, recordings, intensity_g_per_kwh=grams, **options)
    size_mb = path.stat().st_size / 1e6
    console().print(
        f"The report is {path} ({size_mb:.1f} MB). Open it in a browser.", soft_wrap=True, markup=False
    )


def write(
    path: Path,
    recordings: Sequence[Path],
    *,
    intensity_g_per_kwh: float | None = None,
    baseline: Sequence[str] = (),
    rule: Rule = "exact",
    whole_fusions: bool = False,
    salvage: bool = False,
) -> None:
    """Account recordings and write their page, whole or not at all."""
    from joulemap.api import account, load, require_fusions
    from joulemap.recording.files import replace_bytes
    from joulemap.report.assemble import assemble
    from joulemap.report.contents import contents

    pages, runs = [], []
    opened = [load(one, salvage=salvage, whole_fusions=whole_fusions) for one in recordings]
    if whole_fusions:
        require_fusions(opened)
    with progress("Making the report") as advance:
        for number, recording in enumerate(opened):
            footprint = account(recording, rule)
            watts = _idle_power(recording, footprint, baseline)
            part = _part(advance, number, len(opened))
            pages.append(contents(recording, footprint, watts, intensity_g_per_kwh, part))
            runs.append((_label(recording.path, recordings), recording, footprint))
        replace_bytes(path, assemble(pages, _compared(runs) if len(runs) > 1 else None).encode())


def _part(advance: Callable[[float], None] | None, number: int, count: int) -> Callable[[float], None] | None:
    """What one of several recordings adds to the whole; comparing them takes the last tenth."""
    return None if advance is None else lambda done: advance(0.9 * (number + done) / count)


def _label(path: Path, paths: Sequence[Path]) -> str:
    """The recording's name; the whole path where that does not tell it from the others."""
    names = [other.name for other in paths]
    return str(path) if names.count(path.name) > 1 else path.name.removesuffix(".joulemap")


def _compared(runs: Sequence[tuple[str, Recording, Footprint]]) -> dict[str, Any]:
    """Each recording as a variant of its own, against the first."""
    from joulemap.calibration.recorded import costs_by_name
    from joulemap.comparing.comparison import Question, compare, to_json
    from joulemap.comparing.variant import Run, Variant

    variants = []
    for name, recording, footprint in runs:
        steps = recording.steps()
        run = Run(name, footprint, 0 if steps is None else len(steps), costs_by_name(recording))
        variants.append(Variant(name, (run,)))
    return to_json(compare(variants, Question()))


def _idle_power(recording: Recording, footprint: Footprint, given: Sequence[str]) -> dict[str, float] | None:
    """As given, or as found; None where none is known or makes sense, and then the page has no net energy."""
    if given:
        return baselines(recording, footprint, given)
    try:
        found = baselines(recording, footprint, ())
        footprint.net(found)
    except InputError:
        return None
    return found


def _grams(text: str | None) -> float | None:
    """``380`` or ``380 g/kWh``."""
    if text is None:
        return None
    try:
        grams = float(text.strip().removesuffix("g/kWh"))
    except ValueError:
        grams = -1.0
    if not 0 <= grams < float("inf"):
        raise InputError(f"{text!r} is not an intensity.", "Write grams of CO2e for a kWh: --intensity 380.")
    return grams
