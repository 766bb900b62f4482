"""Ranges of our own in the profiler's trace: eager ops carry no layer's name, so that the thread says it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

LAYER, PHASE = "joulemap:", "joulemap-phase:"
"""How their names begin."""


class Range(Protocol):
    """A ``TraceMe`` of TensorFlow: open from its making on."""

    def Stop(self) -> None: ...  # noqa: N802 - TensorFlow's name


class _Opened(threading.local):
    """A thread's open ranges, and who opened them."""

    def __init__(self) -> None:
        self.stack: list[tuple[Any, list[Range]]] = []


class Ranges:
    """Open ranges, by thread; none are opened while there is no session."""

    def __init__(self) -> None:
        self.open = False
        self.make: Callable[[str], Range] | None = None
        self._opened = _Opened()

    @property
    def any(self) -> bool:
        """Whether this thread has any to close."""
        return bool(self._opened.stack)

    def enter(self, owner: Any, *names: str) -> None:
        """Open ranges that ``owner`` closes."""
        if self.open and self.make is not None:
            self._opened.stack.append((owner, [self.make(name) for name in names]))

    def leave(self, owner: Any) -> None:
        """Close what ``owner`` opened, and what was left open inside it."""
        stack = self._opened.stack
        if any(opened is owner for opened, _ in stack):
            opened = None
            while opened is not owner:
                opened, ranges = stack.pop()
                for one in reversed(ranges):
                    one.Stop()
