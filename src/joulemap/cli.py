"""The command line. The only place where errors become messages and exit codes.

0: done. 1: a limit was exceeded. 2: wrong use or bad input. 3: only estimates are available.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import click

from joulemap import __version__
from joulemap.errors import JoulemapError

BAD_INPUT = 2

COMMANDS = {
    "demo": "joulemap.commands.demo",
    "import": "joulemap.commands.import_",
    "show": "joulemap.commands.show",
}


class _Commands(click.Group):
    """Commands that are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(COMMANDS[cmd_name]).command
        return command


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="joulemap")
def commands() -> None:
    """Where do my joules go? Energy of deep-learning programs by layer, operation, phase and device."""


def main(arguments: list[str] | None = None) -> Any:
    """Run a command; what it refuses is said on standard error, with what to do about it."""
    try:
        return commands(arguments, prog_name="joulemap")
    except JoulemapError as error:
        click.secho(f"joulemap: {error.message}", fg="red", err=True)
        if error.hint:
            click.echo(error.hint, err=True)
        sys.exit(BAD_INPUT)
    except BrokenPipeError:
        # The reader (head, less) has what it wanted; Python must not complain while it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


if __name__ == "__main__":
    main()
