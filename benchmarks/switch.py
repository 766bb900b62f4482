"""The inside of a recording, put into a process and taken out again, as often as one likes.

An adapter that was taken out is not put back: another one is, and is told what the one before it knew. To the
recorder it all looks like one program, without the time in between.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from joulemap.frameworks.adapter import Asynchronous, StepListener
from joulemap.frameworks.live import FRAMEWORKS
from joulemap.recorder.budget import Cost, Plan
from joulemap.recorder.inside import epoch_clock_ns
from joulemap.recorder.journal import Journal, read_journal
from joulemap.recorder.sessions import Sessions
from joulemap.recorder.steps import StepClock

_ITS_OWN = ("_watch", "_settle", "_aside", "quick", "alike", "notes")
"""What a finder of steps in PyTorch does not know from the one before it."""


def _tell_torch(before: Any, after: Any, _: float) -> None:
    """Of modules and optimizers, too: else the first steps would be the first of all, each time."""
    for name, known in vars(before._finder).items():
        if name not in _ITS_OWN:
            setattr(after._finder, name, known)
    after._finder.quick.label = before._finder.quick.label
    after._calls.names, after._calls._learns = before._calls.names, before._calls._learns
    after._profiler._sessions = before._profiler._sessions


def _tell_jax(before: Any, after: Any, away_s: float) -> None:
    """Steps last from call to call, so that one is open all the while."""
    finder, profiler = after._finder, after._profiler
    for name in ("_threads", "_after", "_marked"):
        setattr(finder, name, vars(before._finder)[name])
    finder._threads.mine.since_s += away_s
    profiler._sessions = before._profiler._sessions
    profiler._ready_from_s = before._profiler._ready_from_s + away_s
    profiler._described, after._calls._programs = before._profiler._described, before._calls._programs


TELLS: dict[str, Callable[[Any, Any, float], None]] = {"torch": _tell_torch, "jax": _tell_jax}
"""How an adapter learns what the one before it knew, which was taken out so many seconds ago."""


class Relay:
    """Adapters of one framework, one after the other; to the recorder they are one."""

    def __init__(self, framework: str, folder: Path) -> None:
        self._framework = next(one for one in FRAMEWORKS if one.name == framework)
        self.name, self.watches = framework, self._framework.watches
        self._folder = folder
        self._adapter = self._framework.adapter(folder)
        self._out_s: float | None = None

    @property
    def problems(self) -> list[str]:
        return self._adapter.problems

    @property
    def waited_s(self) -> float:
        return self._adapter.waited_s if isinstance(self._adapter, Asynchronous) else 0.0

    def put_in(self, steps: StepListener) -> None:
        """Hook into the framework, as at the start of a recording."""
        before, self._adapter = self._adapter, self._framework.adapter(self._folder)
        for module in self.watches:
            if module in sys.modules:
                self._adapter.attach(module, steps)
        if self._out_s is not None:
            TELLS[self.name](before, self._adapter, time.monotonic() - self._out_s)

    def attach(self, module: str, steps: StepListener) -> None:
        self._adapter.attach(module, steps)

    def start(self, folder: Path) -> None:
        self._adapter.start(folder)

    def stop(self) -> None:
        self._adapter.stop()

    def detach(self) -> None:
        self._adapter.detach()
        self._out_s = time.monotonic()


class HeldSessions(Sessions):
    """Sessions, of which none is opened while they are held back."""

    held = False

    @property
    def possible(self) -> bool:
        return not self.held and super().possible


class Switch:
    """The inside of a recording, with a clock that stands still while it is out."""

    def __init__(self, framework: str, folder: Path, overhead: float) -> None:
        self._adapter = Relay(framework, folder / framework)
        self._folder, self._journal = folder, Journal(folder)
        self._now_ns, self._since_ns = time.time_ns(), 0
        self.sessions = HeldSessions(folder, self._journal, self._time_ns)
        self.sessions.add(self._adapter)
        self.clock = StepClock(Plan(overhead), self.sessions, self._journal, self._time_ns)

    def _time_ns(self) -> int:
        return self._now_ns + (time.monotonic_ns() - self._since_ns if self._since_ns else 0)

    @contextmanager
    def on(self) -> Iterator[None]:
        """Record meanwhile."""
        self._since_ns = time.monotonic_ns()
        self._tell_time(epoch_clock_ns(self._now_ns - self._since_ns))
        self._adapter.put_in(self.clock)
        yield
        self.clock.count  # noqa: B018 - all that was noted is written down, by this clock
        self._now_ns, self._since_ns = self._time_ns(), 0
        self._tell_time(self._time_ns)
        self._adapter.detach()

    def _tell_time(self, now_ns: Callable[[], int]) -> None:
        """By a clock like that of a recording, while it goes on."""
        for one in (self.clock, self.clock._tracing, self.sessions):
            one._now_ns = now_ns

    def in_and_out(self) -> None:
        """What ``on`` does to the classes of a framework without recording anything: whatever is looked up in
        them takes longer for a while, since the interpreter forgets where it was."""
        with self.on():
            pass

    @contextmanager
    def warming_up(self) -> Iterator[None]:
        """Open no session meanwhile."""
        self.sessions.held = True
        yield
        self.sessions.held = False

    def close(self) -> None:
        """End a session that is open: it belongs to the block."""
        if self.sessions.open:
            self.clock._tracing.end()

    @property
    def problems(self) -> list[str]:
        """What went wrong in hooks; there should be nothing."""
        return self._adapter.problems

    @property
    def steps(self) -> int:
        """How many were noticed, with one that is open."""
        return self.clock.count + self.clock.is_open()

    def sessions_spent(self) -> list[Cost]:
        """What each session has cost from its start to its stop."""
        self._journal.flush()
        return [_cost(content) for what, content in read_journal(self._folder) if what == "session"]

    def share(self) -> float:
        """What tracing has cost by the recorder's own account, of the time of recorded blocks."""
        return self.clock.budget.share(self._time_ns() / 1e9)


def _cost(session: dict[str, Any]) -> Cost:
    """From a session's line of the journal."""
    start_s = (session["started_ns"] - session["opened_ns"]) / 1e9
    return Cost(start_s, session["slow_down_s"], (session["closed_ns"] - session["closing_ns"]) / 1e9)
