"""``joulemap export``: a recording for the tools that people have."""

from __future__ import annotations

import importlib
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from joulemap.commands.output import console, progress
from joulemap.commands.show import RULES, whole_fusions_option
from joulemap.errors import InputError
from joulemap.exports import FORMATS

if TYPE_CHECKING:
    from joulemap.accounting import Rule
    from joulemap.exports.source import Source

TABLES = ("footprint", "events", "power", "steps")


@click.command("export")
@click.argument("recording", type=click.Path(path_type=Path), metavar="REC")
@click.option("--to", type=click.Choice(list(FORMATS)), required=True, help="The format.")
@click.option(
    "-o", "--output", metavar="FILE", help="Where to write; - is standard output. REC's name by default."
)
@click.option("--overwrite", is_flag=True, help="Replace the file if it exists.")
@click.option("--module", default="", metavar="PATH", help="dot, svg: the layer to draw, bert/encoder.")
@click.option("--phase", metavar="PHASE", help="dot, svg: one phase (forward, backward, …) only.")
@click.option(
    "--depth",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    metavar="N",
    help="dot, svg: how many levels of layers to draw inside each other.",
)
@click.option(
    "--summarised", is_flag=True, help="Merge self-similar blocks: layer_0 … layer_11 into layer_*."
)
@click.option(
    "--name", "names", multiple=True, metavar="OLD=NEW", help="Name merged blocks: layer_*=transformer."
)
@click.option(
    "--table",
    type=click.Choice(TABLES),
    default="footprint",
    show_default=True,
    help="csv, parquet: which table.",
)
@click.option(
    "--rule", type=click.Choice(RULES), default="exact", show_default=True, help="The sharing rule."
)
@whole_fusions_option
@click.option("--salvage", is_flag=True, help="Go on with what is left of a damaged recording.")
def command(
    recording: Path,
    to: str,
    output: str | None,
    overwrite: bool,
    module: str,
    phase: str | None,
    depth: int,
    summarised: bool,
    names: Sequence[str],
    table: str,
    rule: Rule,
    whole_fusions: bool,
    salvage: bool,
) -> None:
    """Write a recording for other tools: a trace with joules, a flame graph, a table, a diagram.

    \b
    joulemap export run.joulemap --to perfetto      slices with joules over power, for ui.perfetto.dev
    joulemap export run.joulemap --to folded -o - | flamegraph.pl --countname µJ > flame.svg
    joulemap export run.joulemap --to svg --module bert/encoder --phase forward --depth 2
    """
    from joulemap.accounting.watching import watched
    from joulemap.api import load, require_fusions
    from joulemap.exports.source import Asked, Source

    opened = load(recording, salvage=salvage, whole_fusions=whole_fusions)
    if whole_fusions:
        require_fusions([opened])
    asked = Asked(module, phase, depth, table, summarised, tuple(names), rule)
    path = Path(f"{recording.name.removesuffix('.joulemap')}{FORMATS[to].suffix}") if output is None else None
    with progress(f"writing {to}") as advance, watched(advance):
        source = Source(opened, asked, advance)
        if output == "-":
            _to_standard_output(to, source)
            return
        path = path or Path(output or "")
        _to_file(to, source, path, overwrite)
    _say_where(to, path)


def _writer(to: str) -> Callable[[Source, Path], None]:
    """The function that writes a format."""
    module, _, function = FORMATS[to].writer.partition(":")
    write: Callable[..., None] = getattr(importlib.import_module(module), function)
    if to == "fecom-json":
        return lambda source, path: write(source.recording, path)
    return write


def _to_file(to: str, source: Source, path: Path, overwrite: bool) -> None:
    """Write under another name and put it in place, so that what is there is whole."""
    if path.exists() and not overwrite:
        raise InputError(f"{path} exists.", "Choose another name with -o, or overwrite it with --overwrite.")
    unfinished = path.with_name(f".unfinished-{path.name}")
    try:
        _writer(to)(source, unfinished)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _to_standard_output(to: str, source: Source) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"export{FORMATS[to].suffix.removesuffix('.gz')}"
        _writer(to)(source, path)
        with path.open("rb") as file:
            shutil.copyfileobj(file, sys.stdout.buffer)


def _say_where(to: str, path: Path) -> None:
    size = path.stat().st_size
    human = f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"
    where = shlex.quote(str(path))
    console().print(f"Wrote {where} ({human}), for {FORMATS[to].what}.", soft_wrap=True, markup=False)
