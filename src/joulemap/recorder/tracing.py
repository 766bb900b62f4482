"""The session that is open: the steps that it has seen, and what it costs the program."""

from __future__ import annotations

from collections.abc import Callable

from joulemap.recorder.budget import Budget, Plan
from joulemap.recorder.sessions import Sessions
from joulemap.recorder.signals import held


class Tracing:
    """Opens a session for as many steps as were wanted, and tells the budget what it has cost."""

    def __init__(self, plan: Plan, sessions: Sessions, now_ns: Callable[[], int]) -> None:
        self.budget = Budget(plan, now_ns() / 1e9)
        self._sessions, self._now_ns = sessions, now_ns
        self._wanted = self._steps = 0
        self._labels: list[str] = []
        self._slow_down_s = self._waited_s = 0.0

    @property
    def open(self) -> bool:
        return self._sessions.open

    def start(self, steps: int) -> None:
        """Open a session for so many, if any framework can be traced, or for one where it knows no more."""
        self._wanted = steps if self._sessions.start() else 0
        self._wanted = min(self._wanted, 1) if self._sessions.bound else self._wanted
        self._waited_s += self.budget.waited(self._sessions.waited_s)

    def learn(self, label: str, seconds: float, *, traced: bool, compiled: bool) -> None:
        """A step has ended, in the session or outside of one."""
        self._slow_down_s += self.budget.step_ended(label, seconds, traced=traced, compiled=compiled)

    def settle(self) -> None:
        """A step of the session ends: what was called in it is computed to its end."""
        with held():
            self._sessions.settle()

    def step_ended(self, label: str, *, whole: bool, compiled: bool) -> None:
        """It has ended, and so has the session where it has seen enough, or something else than it is for."""
        self._steps += whole
        self._labels += [label] * (whole and not compiled)
        if self._steps >= self._wanted or compiled or not whole:
            self.end()

    def end(self, *labels: str, steps: int | None = None) -> None:
        """Close it; what it was for, and how many steps that were, where these are none that have ended."""
        with held():
            self._labels += labels
            cost = self._sessions.stop(self._steps if steps is None else steps, self._slow_down_s)
            cost.waited_s = self._waited_s
            self.budget.session_ended(self._labels, cost, self._now_ns() / 1e9)
            self._labels, self._steps, self._wanted = [], 0, 0
            self._slow_down_s = self._waited_s = 0.0
