"""Calls one by one, from inside the program: ask for calm before an outermost call, and again after it.

The program only waits for an answer, which costs nothing and disturbs nothing; the power is looked at by
``joulemap run`` beside it (``recorder/gatekeeper.py``), in what the monitor records. Standard library only.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from joulemap.pipes import is_readable

ASK, ANSWER = "gate.ask", "gate.answer"
"""Pipes with names in the raw folder: questions go one way, answers the other."""

BEFORE, AFTER = b"before\n", b"after\n"
STABLE, TIMED_OUT, NOBODY = "stable", "timed out", ""
_SLACK_S = 60.0


class Gate:
    """Around each outermost call: wait for calm, let it run, wait for calm again.

    A call that begins in another thread while one is being measured runs at once, and is not isolated: to
    hold it up might hold up the one that is measured.
    """

    def __init__(self, folder: Path, now_ns: Callable[[], int], patience_s: float) -> None:
        self._ask = os.open(folder / ASK, os.O_RDWR)  # both ways, so that nobody there is no broken pipe
        self._answer = os.open(folder / ANSWER, os.O_RDONLY | os.O_NONBLOCK)
        self._now_ns, self._patience_s = now_ns, patience_s + _SLACK_S
        self._one = threading.Lock()
        self._mine = threading.local()
        self._deserted = False

    def before(self, site: int) -> None:
        """Wait until the machine is calm, or for as long as the protocol allows."""
        self._mine.gate = None
        if not self._deserted and self._one.acquire(blocking=False):
            began_ns = self._now_ns()
            self._mine.gate = (began_ns, self._wait(BEFORE), 0)

    def after(self, site: int) -> None:
        """Wait for calm again, and let the next one have its turn."""
        if self._mine.gate is None:
            return
        try:
            self._wait(AFTER)
            began_ns, outcome, _ = self._mine.gate
            self._mine.gate = (began_ns, outcome, self._now_ns())
        finally:
            self._one.release()

    def gate(self) -> tuple[int, str, int]:
        """Of this thread's last call: when the wait for it began and how it ended, and when the tail did."""
        return self._mine.gate or (0, NOBODY, 0)

    def _wait(self, question: bytes) -> str:
        """The answer; none where there is nobody to answer any more, and then nobody is asked again."""
        said = b""
        with suppress(OSError):
            os.write(self._ask, question)
            while not said.endswith(b"\n"):
                if not is_readable(self._answer, self._patience_s):
                    break
                some = os.read(self._answer, 64)
                if not some:
                    break
                said += some
        if said.endswith(b"\n"):
            return said.decode().strip()
        self._deserted = True
        return NOBODY

    def close(self) -> None:
        os.close(self._ask)
        os.close(self._answer)
