"""How commands speak: a console for people, JSON and CSV for programs, progress on long work."""

from __future__ import annotations

import csv
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from joulemap.recorder.ranks import Rank

LONG_S = 0.5
"""Work that takes longer has a progress bar; one for less would only flicker."""


def console(stderr: bool = False) -> Console:
    """Standard output or error: as wide as the terminal, or as wide as it takes where it is not one. Where
    nobody reads it, that is an error of the pipe like any other, and not the end of the process."""
    from rich.console import Console

    class Patient(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    plain = Patient(highlight=False, stderr=stderr)
    return (
        plain if plain.is_terminal else Patient(highlight=False, stderr=stderr, width=max(plain.width, 200))
    )


def new_path(program: Path, rank: Rank | None = None) -> Path:
    """``train-20261115-143005.joulemap`` in the current folder, and another where that is taken. For a rank
    it is that of the whole job, by the time at which this was launched: all ranks get the same."""
    from joulemap.recorder.ranks import Launcher

    began = time.localtime(None if rank is None else Launcher.of().began_s)
    name = f"{program.stem or 'run'}-{time.strftime('%Y%m%d-%H%M%S', began)}"
    tried = (Path(f"{name}{end}.joulemap") for end in ("", *(f"-{n}" for n in range(2, 1000))))
    return next(path for path in tried if not (path if rank is None else rank.path(path)).exists())


def print_json(content: Mapping[str, Any]) -> None:
    """One JSON document on standard output."""
    json.dump(content, sys.stdout, indent=1, allow_nan=False)
    sys.stdout.write("\n")


def print_csv(rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows as CSV with a header; nothing where there are no rows."""
    writer = csv.DictWriter(sys.stdout, fieldnames=list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


@contextmanager
def progress(what: str) -> Iterator[Callable[[float], None] | None]:
    """A progress bar on standard error with a time estimate, once the work takes long; nothing where that is
    not a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    errors = Console(stderr=True)
    if not errors.is_terminal:
        yield None
        return
    begin_s, bar = time.monotonic(), Progress(console=errors, transient=True)
    task = bar.add_task(what, total=1.0)

    def advance(done: float) -> None:
        bar.update(task, completed=done)
        if time.monotonic() - begin_s > LONG_S:
            bar.start()

    try:
        yield advance
    finally:
        if bar.live.is_started:
            bar.stop()
