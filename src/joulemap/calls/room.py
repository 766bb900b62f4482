"""Room on the stack: Python's recursion limit is raised by as many frames of ours as stand between.

So recursion through the library comes to its end in the round in which it would. Meanwhile the program does
not see that the limit is another: what it reads is what it has set.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from joulemap.calls.replaced import Replaced

_get, _set = sys.getrecursionlimit, sys.setrecursionlimit
_OWNER = "owner"
DEEP = 8
"""Calls inside each other that are no recursion yet: for these the limit stays what it is."""


class Room:
    """For calls inside calls of one thread at a time, since threads share the limit."""

    def __init__(self) -> None:
        self.taken: dict[str, int] = {}
        """Whose calls room is made for; a dict, in which only one of two threads can be the first."""
        self._limit, self._added = 0, 0
        self._shown = Replaced({"getrecursionlimit": self._reading, "setrecursionlimit": self._setting})

    def stop(self) -> None:
        """Let go of what was added, unless the program is that deep just now."""
        with suppress(RecursionError):
            self.leave(self.taken.get(_OWNER, 0))

    def make(self, thread: int, frames: int) -> None:
        """Room for so many frames of ours in all."""
        if self.taken.setdefault(_OWNER, thread) == thread:
            now = _get()
            if now != self._limit + self._added:  # the first time, or set by what does not ask ``sys`` for it
                self._limit = now
            if not self._added:
                self._shown.start()
            _set(self._limit + frames)
            self._added = frames

    def leave(self, thread: int) -> None:
        """Of so few frames the limit knows nothing."""
        if self.taken.get(_OWNER) == thread:
            self.make(thread, 0)
            self._shown.stop()
            del self.taken[_OWNER]

    def _reading(self, real: Callable[..., int]) -> Callable[..., int]:
        def getrecursionlimit(*args: Any, **kwargs: Any) -> int:
            return real(*args, **kwargs) - self._added

        return getrecursionlimit

    def _setting(self, real: Callable[..., None]) -> Callable[..., None]:
        def setrecursionlimit(*args: Any, **kwargs: Any) -> None:
            real(*self._raised(args), **kwargs)
            self._limit = _get() - self._added

        return setrecursionlimit

    def _raised(self, limits: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(one + self._added if type(one) is int and one > 0 else one for one in limits)


def take_four_frames() -> None:
    """Raises ``RecursionError`` where a call could not be recorded: that takes as many."""
    _take_three()


def _take_three() -> None:
    _take_two()


def _take_two() -> None:
    _take_one()


def _take_one() -> None:
    pass
