"""``joulemap patch``: the instrumented copy of a script, a notebook or a project."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from joulemap.commands.output import console, print_json
from joulemap.errors import InputError

if TYPE_CHECKING:
    from joulemap.calls.project import PatchedProject


@click.command("patch")
@click.argument("source", type=click.Path(path_type=Path), metavar="SRC")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="DST",
    help="Where to write; it must not exist yet. Without it nothing is written.",
)
@click.option(
    "--library",
    multiple=True,
    required=True,
    metavar="LIB",
    help="Whose calls are to be metered: tensorflow, torch, …. Can be given several times.",
)
@click.option("--check", is_flag=True, help="Compile every result, to prove that it can be.")
@click.option("--json", "as_json", is_flag=True, help="Say what was found as JSON.")
def command(source: Path, output: Path | None, library: tuple[str, ...], check: bool, as_json: bool) -> None:
    """Write a copy of a program whose API calls are metered wherever it runs under joulemap. Comments and
    formatting stay; without joulemap the copy does what the original does.

    \b
    joulemap patch train.py -o train-metered.py --library tensorflow
    joulemap patch project/ -o metered/ --library torch --library numpy --check
    """
    from joulemap.calls.project import patch_project

    for name in library:
        if not name.isidentifier():
            raise InputError(f"{name!r} is not a library.", "Name it as in import: tensorflow, torch, numpy.")
    project = patch_project(source, output, library, check)
    if as_json:
        print_json(_document(project, source, output, library, check))
    else:
        _show(project, output, check)


def _document(
    project: PatchedProject, source: Path, output: Path | None, library: tuple[str, ...], check: bool
) -> dict[str, object]:
    return {
        "format": 1,
        "source": str(source),
        "output": None if output is None else str(output),
        "libraries": list(library),
        "checked": check,
        "sites": project.sites,
        "left": dict(project.reasons()),
        "files": [one.to_json() for one in project.files],
        "copied": project.others,
    }


def _show(project: PatchedProject, output: Path | None, check: bool) -> None:
    from rich.table import Table

    out = console()
    table = Table(box=None, pad_edge=False)
    table.add_column("file")
    table.add_column("sites", justify="right")
    table.add_column("left alone", justify="right")
    for one in project.files:
        table.add_row(one.file, str(one.sites), str(len(one.left) or ""))
    out.print(table)
    out.print(f"\n{project.sites} call sites in {len(project.files)} files; {project.others} others copied.")
    for reason, count in project.reasons().most_common():
        out.print(f"  {count} left alone: {reason}", markup=False)
    if check:
        out.print("Every result compiles.")
    if output is not None:
        program = output if output.is_file() else output / "…"
        runs = program.suffix != ".ipynb"
        what = f"Next: joulemap run {program}" if runs else "Run it as ever, inside joulemap.record(…)."
        out.print(f"Wrote {output}. {what}", soft_wrap=True, markup=False)
