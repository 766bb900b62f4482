"""Where a program's steps lie, found from the calls of its compiled functions.

JAX computes asynchronously: a call returns before its result is there. So a step of a function lasts from the
return of the call before it to its own return, and steps follow each other without a gap: what is computed
for one while the next is prepared is in one of them. While a session is open every call waits for its result,
so that a traced step has its own work in it, and no other's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from joulemap.frameworks.watch import Watch

_PAUSE_S, _PAUSE_STEPS, _FORGETS = 1.0, 64, 0.05
"""A step that takes longer than a second, and than so many usual ones, was a pause: JAX lets a program call
ahead of the results by half as many. What comes again and again is usual."""


class _Thread(threading.local):
    """The step of ours that is open on a thread, if any: since when, and after which function; and how long
    the last one took."""

    open = False
    since_s = took_s = 0.0
    last = ""
    usual_s: float | None = None


class StepFinder:
    """Told of calls by hooks, tells a ``StepListener`` of steps."""

    def __init__(self, watch: Watch, waits: Callable[[], bool], wait_for: Callable[[Any], None]) -> None:
        self._watch, self._waits, self._wait_for = watch, waits, wait_for
        self._thread = _Thread()
        self._after: dict[str, str] = {}
        self._marked = False
        self.open_ended = False

    def last_s(self) -> float:
        """How long this thread's last step took."""
        return self._thread.took_s

    def called(self, label: str, results: Any) -> None:
        """A compiled function of the program was called by none, and has returned."""
        thread, steps = self._thread, self._watch.steps
        if self._waits():
            self._wait_for(results)
        if thread.open:
            self._close(label)
        if steps.is_open():
            self._marked = True  # the program marks its steps itself, and is taken at its word
        elif not self._marked:
            self._open(label)

    def mark_begins(self, label: str) -> None:
        """The program itself says that a step begins."""
        self._marked = True
        if self._thread.open:
            self._thread.open = self.open_ended = False
            self._watch.steps.cancel()
        self._watch.steps.begin(label)

    def mark_ends(self) -> None:
        """It says that it ends."""
        self._watch.steps.end()

    def _open(self, label: str) -> None:
        """Open the next step, as what came after such a call the last time."""
        thread, steps = self._thread, self._watch.steps
        steps.begin(self._after.get(label, label))  # which may wait for what was called before
        thread.last, thread.since_s = label, time.monotonic()
        thread.open = self.open_ended = steps.is_open()

    def _close(self, label: str) -> None:
        thread, steps = self._thread, self._watch.steps
        thread.open = self.open_ended = False
        took_s = thread.took_s = time.monotonic() - thread.since_s
        usual_s = took_s if thread.usual_s is None else thread.usual_s
        thread.usual_s = usual_s + _FORGETS * (took_s - usual_s)
        if took_s > max(_PAUSE_S, _PAUSE_STEPS * usual_s) and not self._waits():
            steps.cancel()
            return
        self._after[thread.last] = label
        steps.rename(label)
        steps.end()
