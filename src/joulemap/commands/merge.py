"""``joulemap merge``: the ranks of one job in one recording."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from joulemap.commands.output import console, print_json


@click.command("merge")
@click.argument("recordings", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="REC...")
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), metavar="REC", help="Where to write."
)
@click.option("--overwrite", is_flag=True, help="Replace the recording if it exists.")
@click.option("--json", "as_json", is_flag=True, help="Say what was put together as JSON.")
def command(recordings: Sequence[Path], output: Path, overwrite: bool, as_json: bool) -> None:
    """Join the ranks of one job into one recording.

    \b
    torchrun --nproc-per-node 2 --no-python joulemap run -o job.joulemap train.py
    joulemap merge job-rank*.joulemap -o job.joulemap
    """
    from joulemap.api import load
    from joulemap.merging import merge

    merged = merge([load(path) for path in recordings], output, overwrite=overwrite)
    if as_json:
        content = {"format": 1, "recording": str(output), "ranks": merged.ranks, "machines": merged.machines}
        print_json({**content, "notes": merged.notes})
        return
    out = console()
    count, machines = len(merged.ranks), merged.machines
    ranks, where = ("rank", "ranks")[count != 1], ("machine", "machines")[machines != 1]
    out.print(f"{count} {ranks} on {machines} {where} in {output}.", markup=False)
    for note in merged.notes:
        out.print(f"note: {note}", style="yellow", markup=False)
