"""Steps of inference like the last one, noted by the function that calls modules itself."""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import Any

from joulemap.frameworks.adapter import Lane


class Quick(Lane):
    """A lane, and all that is asked before a step is noted in it: in one place, and without a line of Python
    that is not in the function itself, since the processor's caches have nothing of ours when it comes.
    ``module`` is the ``id`` of the one whose calls are like the last one, 0 where there is none; ``hush`` and
    ``hear`` put torch's own code in the function's place, and back."""

    __slots__ = ("captures", "hear", "hush", "module")

    def __init__(self, label: str) -> None:
        super().__init__(label)
        self.module = 0
        self.captures: Callable[[], Any] = bool
        self.hear: Callable[[], Any] = bool
        self.hush: Callable[[], Any] = bool

    def expect(self, module: Any) -> None:
        """The next call of this module, by this thread, is like the one that has begun."""
        self.module, self.thread = id(module), get_ident()

    def is_here(self) -> bool:
        """Whether this thread is in a step that was noted."""
        return bool(len(self.times) % 2 or self.taken) and self.thread == get_ident()

    def let_go(self) -> None:
        """Nothing is noted any more."""
        self.module = self.until_ns = 0
        self.hear = self.hush = bool
