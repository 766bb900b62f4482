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
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from joulemap.frameworks.watch import Watch

_PAUSE_S, _PAUSE_STEPS, _FORGETS = 1.0, 64, 0.05
"""A step that takes longer than a second, and than so many usual ones, was a pause: JAX lets a program call
ahead of the results by half as many. What comes again and again is usual."""


@runtime_checkable
class Continuous(Protocol):
    """A listener that can be told in a word that one step has ended and the next has begun."""

    def passed(self, label: str, following: str) -> bool:
        """False where it wants to hear it in full."""
        ...


def never(*_: str) -> bool:
    """A listener that cannot, never wants to."""
    return False


@dataclass(slots=True)
class _Thread:
    """The step of ours that is open on a thread, if any: since when, and after which function; and how long
    the last one took."""

    open: bool = False
    since_s: float = 0.0
    took_s: float = 0.0
    last: str = ""
    usual_s: float | None = None

    def ended(self, took_s: float) -> float:
        """A step took so long; how long one usually takes, before that."""
        usual_s = took_s if self.usual_s is None else self.usual_s
        self.took_s, self.usual_s = took_s, usual_s + _FORGETS * (took_s - usual_s)
        return usual_s


class _Threads(threading.local):
    """What is kept for each."""

    def __init__(self) -> None:
        self.mine = _Thread()


class StepFinder:
    """Told of calls by hooks, tells a ``StepListener`` of steps."""

    def __init__(self, watch: Watch, waits: Callable[[], bool], wait_for: Callable[[Any], None]) -> None:
        self._watch, self._waits, self._wait_for = watch, waits, wait_for
        self._threads = _Threads()
        self._after: dict[str, str] = {}
        self._marked = False
        self.open_ended = False
        self.passed: Callable[[str, str], bool] = never

    def last_s(self) -> float:
        """How long this thread's last step took."""
        return self._threads.mine.took_s

    def called(self, label: str, results: Any) -> None:
        """A compiled function of the program was called by none, and has returned."""
        thread = self._threads.mine
        if thread.open and self._goes_on(thread, label):
            return
        if self._waits():
            self._wait_for(results)
        if thread.open:
            self._close(thread, label)
        if self._watch.steps.is_open():
            self._marked = True  # the program marks its steps itself, and is taken at its word
        elif not self._marked:
            self._open(thread, label)

    def mark_begins(self, label: str) -> None:
        """The program itself says that a step begins."""
        self._marked = True
        thread = self._threads.mine
        if thread.open:
            thread.open = self.open_ended = False
            self._watch.steps.cancel()
        self._watch.steps.begin(label)

    def mark_ends(self) -> None:
        """It says that it ends."""
        self._watch.surely(self._watch.steps.end)

    def _open(self, thread: _Thread, label: str) -> None:
        """Open the next step, as what came after such a call the last time."""
        steps = self._watch.steps
        steps.begin(self._after.get(label, label))  # which may wait for what was called before
        thread.open = self.open_ended = True  # at once: a signal's handler may raise in any call
        thread.last, thread.since_s = label, time.monotonic()
        thread.open = self.open_ended = steps.is_open()

    def _goes_on(self, thread: _Thread, label: str) -> bool:
        """Whether it was said in a word that the step that is open has ended, and the next has begun."""
        now_s = time.monotonic()
        took_s = now_s - thread.since_s
        if took_s > _PAUSE_S or not self.passed(label, self._after.get(label, label)):
            return False
        thread.ended(took_s)
        self._after[thread.last] = label
        thread.last, thread.since_s = label, now_s
        return True

    def _close(self, thread: _Thread, label: str) -> None:
        steps = self._watch.steps
        took_s = time.monotonic() - thread.since_s
        usual_s = thread.ended(took_s)
        if took_s > max(_PAUSE_S, _PAUSE_STEPS * usual_s) and not self._waits():
            thread.open = self.open_ended = False
            steps.cancel()
            return
        self._after[thread.last] = label
        steps.rename(label)
        thread.open = self.open_ended = False
        self._watch.surely(steps.end)
