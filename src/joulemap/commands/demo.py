"""``joulemap demo``: the first thing a newcomer runs."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

import click

from joulemap.commands.output import console
from joulemap.commands.show import show, show_options

_NEXT = ("--by op --top 10", "--summarised --depth 5", "--by phase", "--baseline GPU:0=122W", "--json")


@click.command("demo")
@show_options
def command(salvage: bool, **options: Any) -> None:
    """Account a small real recording that comes with joulemap: BERT-base, training on an NVIDIA H200."""
    from joulemap.api import load

    with resources.as_file(resources.files("joulemap") / "data" / "bert-h200.joulemap") as path:
        show(load(path, salvage=salvage), **options)
        if not (options["as_json"] or options["as_csv"]):
            _what_next(path)


def _what_next(path: Path) -> None:
    out = console()
    out.print(f"\nThe recording is in {path}. Look closer:", soft_wrap=True, markup=False)
    for arguments in _NEXT:
        out.print(f"  joulemap demo {arguments}", soft_wrap=True, markup=False)
