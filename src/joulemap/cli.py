"""The command line. The only place where errors become messages and exit codes.

0: done. 1: a limit was exceeded. 2: wrong use or bad input. 3: only estimates are available.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from typing import NoReturn

import click

from joulemap import __version__
from joulemap.errors import InputError, JoulemapError

BAD_INPUT = 2
INTERRUPTED = 130

SECTIONS = {
    "Record": {
        "run": "Run a Python program, and show where its energy went.",
        "import": "Join an event trace and a power log of your own.",
        "merge": "Join the ranks of one job.",
        "demo": "Train a small BERT for a minute, and show where its energy went.",
    },
    "Look": {
        "show": "Show where the energy of a recording went.",
        "report": "Make a page of it for a browser.",
        "compare": "Compare variants of a program.",
        "export": "Write it for other tools: Perfetto, flame graphs, tables.",
    },
    "Trust": {
        "doctor": "Say which meters work here, and what to do about the others.",
        "calibrate": "Measure what operations cost by themselves, or an idle machine.",
        "validate": "Measure what operations cost in place, and how far off that was.",
        "precision": "Say how well numbers are found again.",
    },
    "More": {
        "scale": "Fit the energy of a program against the size of its input.",
        "patch": "Write a copy of a program whose API calls are metered.",
        "monitor": "Serve the meters of this machine to other users and programs.",
    },
}
"""Every command, and what it does in a line."""
COMMANDS = [name for section in SECTIONS.values() for name in section]
_MODULES = {"import": "import_"}
"""Commands that cannot be the name of a module."""


class _Commands(click.Group):
    """Commands that are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return COMMANDS

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"joulemap.commands.{_MODULES.get(cmd_name, cmd_name)}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """By section; none of them is imported for that."""
        width = max(map(len, COMMANDS))
        for title, section in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), does) for name, does in section.items()])


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="joulemap")
def commands() -> None:
    """Where do my joules go? Energy of deep-learning programs by layer, operation, phase and device."""


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run a command; what it refuses is said on standard error, with what to do about it."""
    if sys.stdout is None:  # closed by the caller: nobody wants to read
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without ± must not stop us
    try:
        code = commands.main(arguments, prog_name="joulemap", standalone_mode=False)
        sys.stdout.flush()
    except (click.ClickException, click.Abort, click.exceptions.Exit, JoulemapError, OSError) as error:
        code = _explain(error)
    sys.exit(code if isinstance(code, int) else 0)


def _explain(error: Exception) -> int:
    """Say what went wrong, and return the exit code for it."""
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, BrokenPipeError):
        return _leave_output()
    if isinstance(error, click.ClickException):
        error.show()
        return error.exit_code
    if isinstance(error, click.Abort):
        click.echo("joulemap: interrupted", err=True)
        return INTERRUPTED
    if isinstance(error, OSError):
        _leave_output()
        error = InputError(f"{error.strerror or error}: {error.filename or 'standard output'}.")
    if isinstance(error, JoulemapError):
        click.secho(f"joulemap: {error.message}", fg="red", err=True)
        click.echo(error.hint, err=True, nl=bool(error.hint))
    return BAD_INPUT


def _leave_output() -> int:
    """Whoever read our output has what they wanted, or cannot take more: Python must not complain about it
    while it closes standard output."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


if __name__ == "__main__":
    main()
