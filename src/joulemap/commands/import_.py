"""``joulemap import``: bring your own traces."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

import click

from joulemap.commands.output import console, print_json, progress


@click.command("import")
@click.option(
    "--events",
    multiple=True,
    required=True,
    type=click.Path(path_type=Path),
    metavar="TRACE",
    help="A profile of TensorFlow or JAX (.xplane.pb, or the folder it is in), a Chrome trace of "
    "torch.profiler or of TensorFlow's timeline, plain or gzipped, or a RunMetadata. Give it several times "
    "for several files; each timeline or RunMetadata is one step.",
)
@click.option(
    "--power",
    multiple=True,
    required=True,
    metavar="POWER",
    help="CSV or Parquet with the columns t_ns, domain and one of energy_j (a running counter), "
    "interval_energy_j or power_w. Or an assumed constant such as CPU:0=65W, marked estimated.",
)
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), metavar="REC", help="Where to write."
)
@click.option(
    "--shift-power", default="0s", metavar="TIME", help="Add this to the power's times: 2s, -150ms."
)
@click.option("--overwrite", is_flag=True, help="Replace the recording if it exists.")
@click.option("--json", "as_json", is_flag=True, help="Say what was understood as JSON.")
def command(
    events: Sequence[Path],
    power: Sequence[str],
    output: Path,
    shift_power: str,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Join an event trace and a power log of your own into a recording.

    \b
    joulemap import --events trace.json.gz --power power.csv -o run.joulemap
    """
    from joulemap.importing import import_traces
    from joulemap.units import parse

    with progress("reading events") as advance:
        imported = import_traces(
            events, power, output, shift_s=parse(shift_power, "s"), overwrite=overwrite, progress=advance
        )
    if as_json:
        print_json(imported.to_json())
        return
    out = console()
    for note in imported.notes:
        out.print(note, soft_wrap=True, markup=False)
    out.print(f"Wrote {output}. Next: joulemap show {shlex.quote(str(output))}", soft_wrap=True, markup=False)
