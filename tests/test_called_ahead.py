"""Programs that call ahead of their results: what their steps take, and what tracing them costs."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulemap.frameworks.adapter import StepListener, TooEarly
from joulemap.recorder.budget import Budget, Cost, Plan
from joulemap.recorder.journal import Journal
from joulemap.recorder.sessions import Sessions
from joulemap.recorder.steps import TRACED, UNTRACED, StepClock
from joulemap.recorder.story import Story


@dataclass
class Queue:
    """A program that calls ahead: calls return at once, results are computed one after the other, and it
    waits for them every so many steps. A session waits for what is left before it, and for each step."""

    step_s: float
    waits_every: int
    slow_down: float = 0.02
    start_s: float = 0.001
    stop_s: float = 0.03
    now_s: float = 0.0
    done_s: float = 0.0
    steps: int = 0
    sessions: list[int] = field(default_factory=list)

    def run(self, budget: Budget, steps: int) -> Queue:
        self._call(1.0)  # it compiles, and is no step
        while self.steps < steps:
            to_trace = budget.steps_to_trace("train", self.steps, self.now_s)
            if to_trace:
                self._session(budget, to_trace)
            else:
                budget.step_ended("train", self._step(1.0), traced=False, compiled=False)
        self._wait()
        return self

    def _session(self, budget: Budget, steps: int) -> None:
        begin_s = self.now_s
        self._wait()
        budget.waited(self.now_s - begin_s)
        self.now_s += self.start_s
        cost = Cost(self.start_s, stop_s=self.stop_s)
        for _ in range(steps):
            took_s = self._step(1 + self.slow_down, waits=True)
            cost.slow_down_s += budget.step_ended("train", took_s, traced=True, compiled=False)
        self.now_s += self.stop_s
        budget.session_ended(["train"], cost, self.now_s)
        self.sessions.append(steps)

    def _step(self, times: float, waits: bool = False) -> float:
        begin_s = self.now_s
        if self.steps % self.waits_every == 0:
            self._wait()
        self._call(times)
        if waits:
            self._wait()
        self.steps += 1
        return self.now_s - begin_s

    def _call(self, times: float) -> None:
        self.now_s += 0.0005
        self.done_s = max(self.done_s, self.now_s) + times * self.step_s

    def _wait(self) -> None:
        self.now_s = max(self.now_s, self.done_s)


@given(step_s=st.floats(0.01, 2.0), waits_every=st.integers(1, 40), steps=st.integers(40, 400))
def test_what_is_called_ahead_is_no_cost(step_s: float, waits_every: int, steps: int) -> None:
    budget = Budget(Plan(), 0.0)
    queue = Queue(step_s, waits_every).run(budget, steps)
    alone = Queue(step_s, waits_every).run(Budget(Plan(0.0), 0.0), steps)
    assert queue.sessions
    assert budget.spent.total_s == pytest.approx(queue.now_s - alone.now_s, rel=0.25, abs=0.003)


def test_calling_ahead_costs_a_short_run_no_more_than_was_allowed() -> None:
    """Ten results at once, as a program that prints its loss every ten steps."""
    budget = Budget(Plan(), 0.0)
    queue = Queue(0.6, 10).run(budget, 150)
    assert budget.share(queue.now_s) < 0.01
    assert len(queue.sessions) > 3
    assert set(queue.sessions) == {1}  # a step takes longer than a session should, however soon it returns


def test_one_step_that_took_long_is_no_measure() -> None:
    budget = Budget(Plan(), 0.0)
    for seconds in (0.1, 0.1, 0.1, 0.1, 0.3, 0.1):
        budget.step_ended("train", seconds, traced=False, compiled=False)
    budget.waited(0.1)
    assert budget.step_ended("train", 0.11, traced=True, compiled=False) == pytest.approx(0.01)


@given(computes_s=st.floats(0.001, 0.017), steps=st.integers(40, 400))
def test_who_is_never_ahead_is_held_up(computes_s: float, steps: int) -> None:
    """A program that keeps its device waiting: it calls for longer than the device computes. What is left of
    a step before a session is waited for, and nobody would have waited for it otherwise."""
    budget = Budget(Plan(), 0.0)
    calls = Caller(computes_s).run(budget, steps)
    alone = Caller(computes_s).run(Budget(Plan(0.0), 0.0), steps)
    assert budget.spent.waited_s == pytest.approx(computes_s * calls.sessions)
    assert budget.spent.total_s == pytest.approx(calls.now_s - alone.now_s)


@dataclass
class Caller:
    """Each step takes 36 ms to call, and leaves something to be computed when it returns."""

    computes_s: float
    now_s: float = 0.0
    sessions: int = 0

    def run(self, budget: Budget, steps: int) -> Caller:
        for number in range(steps):
            if not budget.steps_to_trace("train", number, self.now_s):
                self.now_s += 0.036
                budget.step_ended("train", 0.036, traced=False, compiled=False)
                continue
            cost = Cost(start_s=0.01, waited_s=budget.waited(self.computes_s), stop_s=0.2)
            took_s = 0.036 + self.computes_s  # it ends when all is computed
            cost.slow_down_s = budget.step_ended("train", took_s, traced=True, compiled=False)
            self.now_s += self.computes_s + 0.01 + took_s + 0.2
            budget.session_ended(["train"], cost, self.now_s)
            self.sessions += 1
        return self


@dataclass
class Ahead:
    """An adapter that has to wait before a session."""

    now_ns: list[int]
    fails: bool = False
    waited_s: float = 0.0
    problems: list[str] = field(default_factory=list)
    name: str = "ahead"
    watches: tuple[str, ...] = ("ahead",)

    def attach(self, module: str, steps: StepListener) -> None: ...

    def start(self, folder: Path) -> None:
        self.waited_s = 0.02
        time.sleep(self.waited_s)
        self.now_ns[0] += round(self.waited_s * 1e9)
        if self.fails:
            raise TooEarly("It is still being computed.", "")

    def stop(self) -> None: ...

    def detach(self) -> None: ...


@pytest.mark.parametrize("fails", [False, True])
def test_what_is_waited_for_before_a_session_is_the_last_steps(fails: bool, tmp_path: Path) -> None:
    now_ns, journal = [0], Journal(tmp_path)
    sessions = Sessions(tmp_path, journal, lambda: now_ns[0])
    sessions.add(Ahead(now_ns, fails=fails))
    steps = StepClock(Plan(steps=((1, 1),)), sessions, journal, lambda: now_ns[0])
    for _ in range(2):
        steps.begin("train")
        now_ns[0] += 5
        steps.end()
    journal.close()
    story, waited_ns = Story.read(tmp_path), 20_000_000
    assert story.steps[0] == (0, 5 + waited_ns, "train", UNTRACED)
    assert story.steps[1] == (5 + waited_ns, 10 + waited_ns, "train", UNTRACED if fails else TRACED)
    assert [session["opened_ns"] for session in story.sessions] == [5 + waited_ns] * (not fails)


def test_a_wait_that_held_the_program_up_is_counted_once(tmp_path: Path) -> None:
    """Half a step is 50 ms, and the wait takes 20."""
    now_ns, journal = [0], Journal(tmp_path)
    sessions = Sessions(tmp_path, journal, lambda: now_ns[0])
    sessions.add(Ahead(now_ns))
    steps = StepClock(Plan(), sessions, journal, lambda: now_ns[0])
    for _ in range(6):
        steps.begin("train")
        now_ns[0] += 100_000_000
        steps.end()
    journal.close()
    assert steps.budget.sessions == 1
    assert steps.budget.spent.waited_s == 0.02


def test_a_wait_long_after_the_last_step_is_none_of_it(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.put("step", [0, 100, "train", UNTRACED])
    journal.put("waited", [5_000, 5_010])
    journal.close()
    assert Story.read(tmp_path).steps == [(0, 100, "train", UNTRACED)]
