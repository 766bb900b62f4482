"""Profiler sessions: opened and closed over the frameworks that the program uses, never at its expense."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from joulemap.errors import JoulemapError
from joulemap.frameworks.adapter import (
    Adapter,
    Asynchronous,
    Bound,
    Expectant,
    OpenEnded,
    Settling,
    TooEarly,
    TracerBusy,
)
from joulemap.recorder.budget import Cost
from joulemap.recorder.journal import Journal

MOST_FAILURES = 3
"""Sessions that fail in a row; then a framework is only metered."""

BUSY_NS = 1_000_000_000
"""How long to wait where somebody else is tracing."""


class Sessions:
    """At most one session is open. An adapter that fails is noted, and left alone after a few times."""

    def __init__(self, raw: Path, journal: Journal, now_ns: Callable[[], int]) -> None:
        self._raw, self._journal, self._now_ns = raw, journal, now_ns
        self._adapters: list[Adapter] = []
        self._running: list[Adapter] = []
        self._failures: dict[str, int] = {}
        self._said: set[str] = set()
        self._number = 0
        self._opened_ns = 0
        self._again_ns: dict[str, int] = {}
        self._start_s = 0.0
        self.waited_s = 0.0

    def add(self, adapter: Adapter) -> None:
        """A framework that can be traced from now on."""
        self._adapters.append(adapter)

    @property
    def possible(self) -> bool:
        """Whether there is anything to trace with, and nobody else is doing so."""
        return any(map(self._ready, self._adapters))

    def _ready(self, adapter: Adapter) -> bool:
        usable = self._failures.get(adapter.name, 0) < MOST_FAILURES
        return usable and self._now_ns() >= self._again_ns.get(adapter.name, 0)

    @property
    def expects_steps(self) -> bool:
        """Whether a framework says that the program will make its first step soon."""
        return any(one.expects_steps for one in self._adapters if isinstance(one, Expectant))

    @property
    def open_ended(self) -> bool:
        """Whether the step that is open ends with a call that may never come."""
        return any(one.open_ended for one in self._adapters if isinstance(one, OpenEnded))

    @property
    def open(self) -> bool:
        return bool(self._running)

    @property
    def bound(self) -> bool:
        """Whether the session that is open must end with the step that it begins with."""
        return any(one.bound for one in self._running if isinstance(one, Bound))

    def start(self) -> bool:
        """Open a session with every framework; False where none would. ``waited_s`` is how long what the
        program had called before was still being computed."""
        begin_s, begin_ns = time.perf_counter(), self._now_ns()
        ready = [adapter for adapter in self._adapters if self._ready(adapter)]
        self._running = [adapter for adapter in ready if self._try(adapter, self._start_one)]
        self.waited_s = sum(adapter.waited_s for adapter in ready if isinstance(adapter, Asynchronous))
        self._start_s = time.perf_counter() - begin_s - self.waited_s
        self._opened_ns = begin_ns + round(self.waited_s * 1e9)
        if self.waited_s:
            self._journal.put("waited", [begin_ns, self._opened_ns])
        self._number += self.open
        return self.open

    def settle(self) -> None:
        """A step ends in which a session is open: what was called in it is computed to its end."""
        for adapter in self._running:
            self._try(adapter, _settle)

    def _start_one(self, adapter: Adapter) -> None:
        folder = self._raw / adapter.name / str(self._number)
        folder.mkdir(parents=True, exist_ok=True)
        adapter.start(folder)

    def stop(self, steps: int, slow_down_s: float) -> Cost:
        """Close the session; what it cost is written down."""
        begin_s, closing_ns = time.perf_counter(), self._now_ns()
        names = [adapter.name for adapter in self._running if self._try(adapter, lambda one: one.stop())]
        self._running = []
        cost = Cost(self._start_s, slow_down_s, time.perf_counter() - begin_s)
        self._journal.put(
            "session",
            {
                "number": self._number - 1,
                "frameworks": names,
                "opened_ns": self._opened_ns,
                "started_ns": self._opened_ns + round(cost.start_s * 1e9),
                "closing_ns": closing_ns,
                "closed_ns": closing_ns + round(cost.stop_s * 1e9),
                "clock_ahead_ns": time.time_ns() - self._now_ns(),
                "steps": steps,
                "slow_down_s": slow_down_s,
            },
        )
        return cost

    def _try(self, adapter: Adapter, action: Callable[[Adapter], None]) -> bool:
        """Do something with an adapter; what goes wrong is noted once, and the program never hears of it."""
        try:
            action(adapter)
        except TooEarly:
            self._again_ns[adapter.name] = self._now_ns() + BUSY_NS
            return False
        except TracerBusy as error:
            self._again_ns[adapter.name] = self._now_ns() + BUSY_NS
            self._note(f"{adapter.name} could not be traced for a while: {_said(error)}")
            return False
        except Exception as error:  # noqa: BLE001 - a profiler may fail in any way
            self._failures[adapter.name] = self._failures.get(adapter.name, 0) + 1
            self._note(f"{adapter.name} could not be traced: {_said(error)}")
            return False
        self._failures[adapter.name] = 0
        return True

    def _note(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._journal.put("warning", text)


def _said(error: Exception) -> str:
    if isinstance(error, JoulemapError):
        return f"{error.message} {error.hint}".strip()
    return f"{type(error).__name__}: {error}"


def _settle(adapter: Adapter) -> None:
    if isinstance(adapter, Settling):
        adapter.settle()
