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


class Ranges:
    """Open ranges, by thread; nothing happens while no session is open."""

    def __init__(self) -> None:
        self.open = False
        self.make: Callable[[str], Range] | None = None
        self._local = threading.local()

    def enter(self, owner: Any, *names: str) -> None:
        """Open ranges that ``owner`` closes."""
        if self.open and self.make is not None:
            self._stack().append((owner, [self.make(name) for name in names]))

    def leave(self, owner: Any) -> None:
        """Close what ``owner`` opened, and what was left open inside it."""
        stack = self._stack()
        if any(opened is owner for opened, _ in stack):
            opened = None
            while opened is not owner:
                opened, ranges = stack.pop()
                for one in reversed(ranges):
                    one.Stop()

    def _stack(self) -> list[tuple[Any, list[Range]]]:
        stack: list[tuple[Any, list[Range]]] | None = getattr(self._local, "stack", None)
        if stack is None:
            stack = self._local.stack = []
        return stack
