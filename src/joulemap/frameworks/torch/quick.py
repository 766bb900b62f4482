"""Steps of inference like the last one, noted by the function that calls modules itself."""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from types import CodeType, FunctionType
from typing import Any

from joulemap.frameworks.adapter import Lane


class Quick(Lane):
    """A lane, and all that is asked before a step is noted in it: in one place, and without a line of Python
    that is not in the function itself, since the processor's caches have nothing of ours when it comes.

    ``module`` is the ``id`` of the one whose calls are like the last one, 0 where there is none. While a step
    is open, the ``function`` has torch's ``own`` code, else the one in which it is ``heard``. To change that
    is no call, in which a signal's handler might raise: it is changed back whatever happens."""

    __slots__ = ("captures", "function", "heard", "module", "own")
    function: Any
    heard: CodeType
    own: CodeType

    def __init__(self, label: str) -> None:
        super().__init__(label)
        self.module = 0
        self.captures: Callable[[], Any] = bool

    def replaces(self, function: FunctionType, own: CodeType) -> None:
        """The function, as it is heard, and torch's own code."""
        self.function, self.heard, self.own = function, function.__code__, own

    def expect(self, module: Any) -> None:
        """The next call of this module, by this thread, is like the one that has begun."""
        self.module, self.thread = id(module), get_ident()

    def let_go(self) -> None:
        """Nothing is noted any more."""
        self.module = self.until_ns = 0
        if hasattr(self, "own"):
            self.heard = self.own
