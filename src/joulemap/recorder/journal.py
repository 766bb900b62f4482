"""What the program's side has to say, a line of JSON each, safe from the moment it is flushed.

One file, appended to by one process: whatever kills the program, the lines before it can be read.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from joulemap.recorder.signals import held

JOURNAL = "journal.jsonl"
FLUSH_S = 1.0
"""How long a line may wait for the next ones, so that a thousand steps a second are not a thousand writes."""
UNTRACED, TRACED, COMPILED = 0, 1, 2
"""How a step was seen."""
_ENCODE = json.JSONEncoder(default=str).encode


class Journal:
    """The writing end. A disk that is full loses lines, and never troubles the program."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / JOURNAL
        self._handle: int | None = os.open(
            self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644
        )
        with suppress(OSError):
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # it is being written, as long as it is
        self._waiting: list[tuple[str, Any]] = []
        self._flushed_s = time.monotonic()
        self._torn = False

    def put(self, what: str, content: Any) -> None:
        """Add a line, whose content nobody changes any more; it is on disk a second later if others
        follow, or when it is flushed. It becomes text with them: one by one that takes four times as long."""
        self._waiting.append((what, content))
        if time.monotonic() - self._flushed_s > FLUSH_S:
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        with held():
            self._flush()

    def _flush(self) -> None:
        self._flushed_s = time.monotonic()
        lines, self._waiting = self._waiting, []
        if self._handle is None or not lines:
            return
        text = ("\n" if self._torn else "") + "\n".join(map(_ENCODE, lines)) + "\n"
        content = text.encode()
        with suppress(OSError):
            self._torn = os.write(self._handle, content) < len(content)

    def leave(self) -> None:
        """Forget about it without writing: in a forked child, whose parent goes on writing."""
        self._waiting = []
        self.close()

    def close(self) -> None:
        """Write what waits, and let go of the file."""
        self.flush()
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def read_journal(folder: Path) -> Iterator[tuple[str, Any]]:
    """The lines that are whole; the last one of a killed program may not be."""
    with suppress(FileNotFoundError):
        for line in (folder / JOURNAL).read_text(errors="replace").splitlines():
            with suppress(ValueError, TypeError):
                yield from one_by_one(*json.loads(line))


def one_by_one(what: str, content: Any) -> Iterator[tuple[str, Any]]:
    """A line; or, where it has many steps of which nothing but the time is known, one for each."""
    if what != "steps":
        yield str(what), content
        return
    label, spans = content
    for start_ns, end_ns in spans:
        yield "step", [start_ns, end_ns, label, UNTRACED]
