"""Where the program's steps lie, and which of them are traced.

Adapters announce the borders they see; the outermost counts. A program that announces none is cut into
slices of time instead.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from threading import get_ident

from joulemap.frameworks.adapter import Begun, Lane
from joulemap.program import SLICE
from joulemap.recorder.beside import Beside
from joulemap.recorder.budget import Plan
from joulemap.recorder.journal import COMPILED, TRACED, UNTRACED, Journal
from joulemap.recorder.sessions import Sessions
from joulemap.recorder.signals import held
from joulemap.recorder.threads import Threads
from joulemap.recorder.tracing import Tracing

_CUT_SHORT = BaseException()
SLICE_S, PATIENCE_S, LOOK_S = 0.1, 5.0, 0.25
"""A traced slice's length; how long to wait for a step before slicing; how often to look then."""
HURRY_S = 0.5
"""For how long steps that nothing can come of are only noted, to be written down together: code that is not
in the processor's caches is slow, and makes the program's own slow that it takes the place of."""
LONGER = 3
"""A traced step may take this many times as long as usual, and the patience; then its session ends."""
LEFT_STEPS, LEFT_S = 10, 0.5
"""One that lasts until the next may take so many times as long as usual, or so long where that is not known,
while other threads make steps."""


class StepClock:
    """Listens to borders (a ``StepListener``), writes them down, and opens and closes sessions at them."""

    def __init__(self, plan: Plan, sessions: Sessions, journal: Journal, now_ns: Callable[[], int]) -> None:
        self._sessions, self._journal, self._now_ns = sessions, journal, now_ns
        self._tracing = Tracing(plan, sessions, now_ns)
        self.budget = self._tracing.budget
        self._lock = threading.RLock()
        self._owner: int | None = None
        self._depth = 0
        self._label = ""
        self._start_ns = 0
        self._compiled = False
        self._compiles_since_ns: int | None = None
        self._error: BaseException | None = None
        self._count = 0
        self._slice_ns: int | None = None
        self._border_ns = now_ns()
        self._passed: list[tuple[int, int, str]] = []
        self._calm: set[str] = set()
        self._hurries_until_ns = 0
        self._off = False
        self._lane = Lane("")
        self._threads = Threads()
        self._beside = Beside(self._border_ns)

    def take_lane(self, lane: Lane) -> None:
        """Steps are noted in it from now on."""
        with self._lock:
            self._settle()
            self._lane, lane.now_ns = lane, self._now_ns

    def lane_ends(self, begun: Begun, failed: bool) -> None:
        """A step of it that was taken over has ended, or failed."""
        lane, ours = self._lane, False
        try:
            with self._lock:
                if lane.taken is not begun:  # it had ended before it was
                    if not failed:
                        lane.times.append((begun[0], self._now_ns(), begun[2]))
                    return
                self._error = _CUT_SHORT if failed else sys.exc_info()[1]
                lane.taken, ours = None, True
            self.end()
        except BaseException:  # a signal's handler has raised
            if ours and self._owner == begun[1]:
                self._never_mind()
            raise

    def adopt(self) -> None:
        """The step of this thread that is open in it is one like all others."""
        self._take_over()
        with self._lock:
            self._lane.open = self._lane.taken = None
            if self._owner == get_ident():
                self._error = sys.exc_info()[1]

    def _take_over(self) -> None:
        """A step that is open in the lane is ours in full from now on: something comes of it."""
        lane = self._lane
        if self._threads.ended or (lane.taken is not None and lane.open is not lane.taken):
            self._clear_what_was_left()
        if lane.open is None or lane.open is lane.taken:
            return
        with self._lock:
            lane.until_ns = 0
            begun = lane.open
            if begun is None or begun is lane.taken or self._owner is not None:
                return
            lane.taken = begun
            if lane.open is not begun:  # it has ended meanwhile, whether it has seen that or not
                lane.taken = None
                return
            self._settle()
            self._depth, self._start_ns = 1, max(begun[0], self._border_ns)
            self._label, self._compiled, self._error = begun[2], False, None
            self._owner = begun[1]

    def begin(self, label: str) -> None:
        """The outermost border of a thread opens a step; other threads' steps meanwhile are passed over."""
        self._take_over()
        if self._is_left_open():
            self.forget_others()
        me, owner = get_ident(), self._owner
        if owner == me and self._depth:
            self._depth += 1
        elif owner in (None, me) and not self._off:
            try:
                with self._lock:
                    if self._owner in (None, me) and not self._off:
                        self._threads.know()
                        self._owner, self._depth = me, 1
                        self._begin(label)
            except BaseException:  # a signal's handler has raised
                if self._owner == me:
                    self._never_mind()
                raise
        elif not self._off:
            self._beside.begins(label, self._now_ns())

    def _is_left_open(self) -> bool:
        """Whether another thread's step waits for one that may never come."""
        if self._owner in (None, get_ident()) or not self._sessions.open_ended:
            return False
        allowed_s = LEFT_STEPS * self.budget.usual_s(self._label) or LEFT_S
        return self._now_ns() - self._start_ns > allowed_s * 1e9

    def _clear_what_was_left(self) -> None:
        """Nobody will end the step of a thread that has ended, nor one of the lane whose end was not heard:
        a signal's handler has raised then. They are none."""
        lane = self._lane
        with held(), self._lock:
            ended, unheard = self._threads.take_ended(), lane.taken
            if lane.open is not None and lane.open[1] in ended:
                lane.open = None
            left = unheard is not None and lane.open is not unheard and unheard[1] in (*ended, get_ident())
            if left:
                lane.taken = None
            if left or self._owner in ended:
                self._never_mind()

    def end(self, done: bool = False) -> None:
        """The end of the outermost one closes it."""
        if self._owner != get_ident():
            self._beside.ends(self._now_ns())
            return
        if done:
            self._error = sys.exc_info()[1]
        self._depth -= 1
        if self._depth > 0:
            return
        try:
            now_ns, odd = self._now_ns(), self._compiled or not self._is_whole()
            with self._lock:
                self._end(now_ns, odd or self._label not in self._calm)
        finally:  # whatever a signal's handler raises meanwhile
            self._owner = self._error = None

    def _end(self, now_ns: int, odd: bool) -> None:
        if odd or now_ns >= self._hurries_until_ns:
            self._settle()
            self._close()
            return
        self._passed.append((self._start_ns, now_ns, self._label))
        if self._label == self._lane.label:
            self._lane.until_ns = self._hurries_until_ns

    def noted(self, label: str) -> bool:
        """Begin a step, where nothing can come of it; False where it has not begun."""
        self._take_over()
        with self._lock:
            now_ns = self._now_ns()
            if now_ns >= self._hurries_until_ns or label not in self._calm:
                return False
            if self._owner is not None or self._off:
                return False
            self._owner, self._depth, self._lane.until_ns = get_ident(), 1, 0
            self._label, self._compiled, self._error = label, False, sys.exc_info()[1]
            self._start_ns = now_ns
        return True

    def passed(self, label: str, following: str) -> bool:
        """The step that is open ends as ``label``, and one that is ``following`` begins at once. False where
        that must be said in full, because something may come of it: a session, as a rule."""
        now_ns = self._now_ns()
        if now_ns >= self._hurries_until_ns or following not in self._calm:
            return False
        if self._owner != get_ident() or self._depth > 1 or not self._is_whole():
            return False
        self._passed.append((self._start_ns, now_ns, label))
        self._start_ns = now_ns
        return True

    @property
    def count(self) -> int:
        """How many steps have ended."""
        self._settle()
        return self._count

    def compiled(self) -> None:
        """The step that is open on this thread is no example of others."""
        self._compiles_since_ns = self._now_ns()
        self._take_over()
        if self._owner == get_ident():
            self._settle()
            self._compiled = True

    def has_compiled(self) -> None:
        """What was compiled may lie in no step."""
        since_ns, self._compiles_since_ns = self._compiles_since_ns, None
        if since_ns is not None and not self._off:
            self._journal.put("compilation", [since_ns, self._now_ns()])

    def is_open(self) -> bool:
        """Whether the step that is open is this thread's."""
        lane = self._lane
        if self._threads.ended or (lane.taken is not None and lane.open is not lane.taken):
            self._clear_what_was_left()
        return bool(self._owner == get_ident() and self._depth) or lane.here() is not None

    def forget_others(self) -> None:
        """The step that another thread has begun is none."""
        with self._lock:
            if self._owner not in (None, get_ident()):
                self._never_mind()

    def open_label(self) -> str:
        """Of the step that is open, where it is this thread's."""
        if not self.is_open():
            return ""
        noted = self._lane.here()
        return self._label if noted is None or noted is self._lane.taken else noted[2]

    def rename(self, label: str) -> None:
        """Only the outermost is known by a name."""
        self._take_over()
        if self._depth == 1 and self.is_open():
            self._label = label

    def cancel(self) -> None:
        """As if the step had not begun; a session that was opened for it ends, and has cost what it cost."""
        self._take_over()
        if not self.is_open():
            self._beside.cancels()
            return
        self._depth -= 1
        if not self._depth:
            self._never_mind()

    def _never_mind(self) -> None:
        """The step that has begun is none."""
        with self._lock:
            try:
                self._settle()
                if not self._end_slice() and self._sessions.open:
                    self._tracing.end()
            finally:
                self._owner, self._depth, self._error = None, 0, None

    def switch_off(self) -> None:
        """No more steps; a session that is open is closed."""
        with self._lock:
            self._off = True
            self._settle()
            passed_over = self._beside.warning(self._now_ns())
            if passed_over:
                self._journal.put("warning", passed_over)
            if not self._end_slice() and self._sessions.open:
                self._tracing.end()

    def abandon(self) -> None:
        """In a forked child: whatever was open belongs to the parent."""
        self._off, self._owner = True, None
        self._passed, self._hurries_until_ns = [], 0
        self._lane.until_ns, self._lane.open, self._lane.taken = 0, None, None
        self._lane.times.clear()
        self._lock = threading.RLock()

    def _begin(self, label: str) -> None:
        """Open a step; where nothing can come of it, that is all. None is noted in the lane meanwhile."""
        self._lane.until_ns = 0
        self._label, self._compiled, self._error = label, False, sys.exc_info()[1]
        self._start_ns = self._now_ns()
        if self._start_ns >= self._hurries_until_ns or label not in self._calm:
            self._settle()
            self._open(label)

    def _open(self, label: str) -> None:
        self._end_slice()
        self._start_ns = self._now_ns()
        if not self._sessions.open:
            steps = self.budget.steps_to_trace(label, self._count, self._start_ns / 1e9)
            if steps and self._sessions.possible:
                with held():
                    self._tracing.start(steps)
                    self._start_ns = self._now_ns()
            elif not steps and self.budget.is_calm(label):
                self._calm.add(label)
                self._hurries_until_ns = self._start_ns + round(HURRY_S * 1e9)

    def _settle(self) -> None:
        """Write down the steps that have passed; none passes from here until the next begins."""
        with self._lock:
            self._hurries_until_ns = self._lane.until_ns = 0
            if self._passed or self._lane.times:
                with held():
                    self._write_down()

    def _write_down(self) -> None:
        """The program may add to either meanwhile."""
        passed, noted = self._passed[:], self._lane.times[:]
        del self._passed[: len(passed)]
        del self._lane.times[: len(noted)]
        every = self._apart(sorted([*passed, *noted])) if noted else passed
        for label, alike in groupby(every, itemgetter(2)):
            self._learn_all(label, [(start_ns, end_ns) for start_ns, end_ns, _ in alike])

    def _apart(self, steps: Iterable[tuple[int, int, str]]) -> Iterator[tuple[int, int, str]]:
        """None begins before the last one has ended, nor lies in the one that is open: in the lane one may
        have begun in the very moment in which another thread's did."""
        border_ns, until_ns = self._border_ns, sys.maxsize if self._owner is None else self._start_ns
        for start_ns, end_ns, label in steps:
            if border_ns < end_ns <= until_ns:
                yield max(start_ns, border_ns), end_ns, label
                border_ns = end_ns

    def _close(self) -> None:
        end_ns = self._now_ns()
        self._end_slice()
        traced = self._sessions.open
        if traced:
            self._tracing.settle()
            end_ns = self._now_ns()
        whole = self._is_whole()
        if whole:
            self._learn(self._label, self._start_ns, end_ns, traced=traced)
        self._border_ns = end_ns
        if traced:
            self._tracing.step_ended(self._label, whole=whole, compiled=self._compiled)

    def _is_whole(self) -> bool:
        """Whether it is not cut short, by the end of the data or a failure: what is being handled was so when
        it began, or around that when it was adopted."""
        error = sys.exc_info()[1]
        return error is None or error is self._error or error is getattr(self._error, "__context__", None)

    def _learn(self, label: str, start_ns: int, end_ns: int, *, traced: bool) -> None:
        self._tracing.learn(label, (end_ns - start_ns) / 1e9, traced=traced, compiled=self._compiled)
        seen = COMPILED if self._compiled else TRACED if traced else UNTRACED
        self._write(start_ns, end_ns, label, seen)

    def _learn_all(self, label: str, spans: list[tuple[int, int]]) -> None:
        """Steps of one label of which nothing but the time is known."""
        self.budget.steps_passed(label, [(end_ns - start_ns) / 1e9 for start_ns, end_ns in spans])
        self._count += len(spans)
        self._border_ns = spans[-1][1]
        self._journal.put("steps", [label, spans])

    def _write(self, start_ns: int, end_ns: int, label: str, seen: int) -> None:
        self._count += 1
        self._journal.put("step", [start_ns, end_ns, label, seen])

    def slice(self) -> None:
        """Trace a slice of time, where there has been no step for long and the budget allows it."""
        with self._lock:
            now_ns = self._now_ns()
            self._take_over()
            self._settle()
            self._give_up(now_ns)
            waited = self._none_for_long(now_ns) and not self._sessions.expects_steps
            allowed = waited and self._sessions.possible and self.budget.slice_to_trace(now_ns / 1e9)
            if self._off or not allowed or not self._sessions.start():
                return
            self._slice_ns = self._now_ns()
        time.sleep(SLICE_S)
        with self._lock:
            self._end_slice()

    def _none_for_long(self, now_ns: int) -> bool:
        """Whether no step has been open for long, or one that nobody may ever end."""
        if self._owner is None:
            return now_ns - self._border_ns > PATIENCE_S * 1e9
        if self._sessions.open or not self._sessions.open_ended:
            return False
        patience_s = LOOK_S if self.budget.plan.trace_all else self._allowed_s()
        return now_ns - self._start_ns > patience_s * 1e9

    def _allowed_s(self) -> float:
        """How long a step may take before something must have come between."""
        return PATIENCE_S + LONGER * self.budget.usual_s(self._label)

    @property
    def quiet_s(self) -> float:
        """For how long there is nothing to look for: a program that makes steps is not woken for it."""
        if self.budget.plan.trace_all:
            return LOOK_S
        return max(LOOK_S, PATIENCE_S - (self._now_ns() - self._border_ns) / 1e9)

    def wait_from_now(self) -> None:
        """Have patience for a step, beginning now: a framework has just been imported."""
        self._border_ns = self._now_ns()

    def _give_up(self, now_ns: int) -> None:
        """End a session whose step does not end, or whose next step does not come: the program does
        something else by now, and must not pay for it. A step that the user wants to see may take long."""
        between = self._owner is None
        if not self._sessions.open or (self.budget.plan.asked_for and not between):
            return
        since_ns = self._border_ns if between else self._start_ns
        if now_ns - since_ns > self._allowed_s() * 1e9:
            self._tracing.end(*[self._label] * (not between))

    def _end_slice(self) -> bool:
        """Close the slice that is open, if any: its time is over, or a step begins."""
        if self._slice_ns is None:
            return False
        self._write(self._slice_ns, self._now_ns(), SLICE, TRACED)
        self._slice_ns = None
        self._tracing.end(SLICE, steps=1)
        return True
