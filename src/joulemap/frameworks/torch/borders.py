"""A program's threads at the borders of their steps: one begins, is renamed, ends, or was none.

Whatever a signal's handler of the program's raises meanwhile, a step that has not begun is not open, and one
that has ended is closed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from threading import get_ident
from typing import Any, TypeVar

from joulemap.frameworks.adapter import Begun, LaneKeeper
from joulemap.frameworks.torch.by_hand import Round, Step
from joulemap.frameworks.torch.kinds import INFERENCE, TRAIN, is_inference
from joulemap.frameworks.torch.quick import Quick
from joulemap.frameworks.watch import Watch

Result = TypeVar("Result")

NONE, PENDING = "", "pending"


class Thread(threading.local):
    """What one thread is in: no step, one that may become something, training or inference, and which kind of
    that; the ``first`` optimizer that has stepped in it, the ``last`` one of all, and the last one ``before``
    it. It may have been ``interrupted``: what comes of its passes is still to come. A pass is ``pending``
    until a backward pass has run; ``within`` is the noted step in which the last one did. A step is
    ``by_hand`` where it ends with the next call after that; ``passes`` may show that there are such. The next
    call is ``fed_by`` the data that a ``loader`` reads; the last one ``was_fed_by`` some, and
    ``was_fed_from`` there."""

    def __init__(self) -> None:
        self.state = NONE
        self.inference = INFERENCE
        self.calls = 0
        self.fed_by: int | None = None
        self.loader: Callable[[], Any] | None = None
        self.was_fed_by: int | None = None
        self.was_fed_from: Callable[[], Any] = nobody
        self.first: int | None = None
        self.last: int | None = None
        self.before: int | None = None
        self.waits = self.interrupted = self.pending = False
        self.within: Begun | None = None
        self.by_hand: Step | None = None
        self.passes: Round | None = None


class Borders:
    """What every thread is in, and what a ``StepListener`` is told of it. ``any_found`` says that there were
    steps, and ``in_others`` that some lay in those of somebody else."""

    def __init__(self, watch: Watch, settle: Callable[[], None]) -> None:
        self.any_found = self.in_others = False
        self.quick = Quick(INFERENCE)
        self._watch, self._settle = watch, settle
        self._thread = Thread()
        self._feeds: dict[int, str] = {}
        self._lasts_in: int | None = None

    @property
    def open_ended(self) -> bool:
        """Whether the step that is open lasts until the next one, if there is one."""
        return self._lasts_in is not None

    def _here(self) -> Thread:
        """What this thread is in. A step of training that was only noted is one like all others from here."""
        thread, begun, steps = self._thread, self.quick.here(), self._watch.steps
        if begun is not None and not is_inference(begun[2]) and isinstance(steps, LaneKeeper):
            if self.quick.pending is not None:
                thread.state, (thread.loader, thread.fed_by) = PENDING, self.quick.pending
                self.quick.pending = None
            else:
                thread.state, thread.calls, thread.by_hand = TRAIN, 1, None
                thread.pending = thread.within is not begun
            steps.adopt()  # last: a signal's handler may raise in it
        return thread

    def _begun(self, begin: Callable[[str], Result], label: str) -> Result:
        """Begin a step; none has begun where a signal's handler raises meanwhile."""
        steps = self._watch.steps
        inside = steps.is_open()
        try:
            return begin(label)
        except BaseException:
            if not inside and steps.is_open():
                steps.cancel()
            raise

    def _open(self, kind: str, label: str, by_hand: Step | None = None) -> None:
        """Begin a step of this kind, or go on with the one that its data has begun."""
        thread, steps = self._thread, self._watch.steps
        if thread.fed_by is not None:
            self._feeds[thread.fed_by], thread.fed_by = label, None
        if thread.state == PENDING:
            steps.rename(label)
        elif steps.is_open():
            self.in_others = True
            return  # somebody else's step
        else:
            self._begun(steps.begin, label)
        thread.state, thread.loader, self.any_found = kind, None, True
        if by_hand is not None:
            thread.by_hand, thread.pending, thread.calls = by_hand, True, 1
        if (by_hand is not None or self.open_ended) and steps.is_open():  # another thread's is none any more
            self._lasts_in = get_ident() if by_hand is not None else None

    def _close(self, label: str, done: bool = True) -> None:
        """End the step that is open: it was of this label."""
        self._thread.waits, self._thread.first = False, None
        try:
            self._watch.steps.rename(label)
            self._settle()
        finally:  # whatever a signal's handler raises meanwhile
            self._end(done)

    def _end(self, done: bool = False) -> None:
        """End the step that is open; where a signal's handler raises meanwhile, there was none."""
        steps = self._watch.steps
        try:
            steps.end(done)
        except BaseException:
            if steps.is_open():
                steps.cancel()
            raise
        finally:
            self._none_lasts()

    def _none_lasts(self) -> None:
        """The step that this thread was in is over."""
        self._thread.state, self._thread.by_hand = NONE, None
        if self._lasts_in == get_ident():
            self._lasts_in = None

    def _cancel(self, forget: bool = True) -> None:
        """A batch led to no step; the next one of its kind opens none, unless the data had only ended."""
        thread = self._thread
        if forget and thread.fed_by is not None:
            self._feeds.pop(thread.fed_by, None)
        self._watch.steps.cancel()
        thread.state, thread.loader = NONE, None


def nobody() -> None:
    """In the place of what is gone."""
