"""Steps like the last one, noted by the functions of torch's that they pass."""

from __future__ import annotations

import threading
from collections.abc import Callable
from threading import get_ident
from types import CodeType, FunctionType
from typing import Any

from joulemap.frameworks.adapter import Begun, Lane
from joulemap.frameworks.torch.given import ANY, Between, given

Fed = tuple[Callable[[], Any], int | None]
"""A weak reference to what loads batches, and the ``id`` of the data."""


class Threads(threading.local):
    """Whether this thread is inside a module's call, and the label of the innermost one."""

    inside = False
    label = ""


class Quick(Lane):
    """A lane, and all that is asked before a step is noted in it: in one place, and without a line of Python
    that is not in the function itself, since the processor's caches have nothing of ours when it comes.

    ``module`` is the ``id`` of the one whose calls are like the last one, 0 where there is none. A step of
    inference is one call, whose first tensor has between ``least`` and ``most`` numbers; where it ``learns``,
    one of training begins with it, or with the next batch of what it was ``fed`` by, which is ``pending``
    until the call then. The next step of the same ``optimizer`` ends it. ``inside`` is the thread that is in
    such a call. Meanwhile the ``function`` has torch's ``own`` code, else the one in which it is ``heard``.
    To change that is no call, in which a signal's handler might raise: it is changed back whatever happens.
    The same is true of ``threads``, of calls in full."""

    __slots__ = (
        "captures",
        "ends_in_full",
        "fed",
        "function",
        "heard",
        "inside",
        "learns",
        "least",
        "module",
        "most",
        "optimizer",
        "own",
        "pending",
        "stepping",
        "threads",
    )
    ends_in_full: Callable[[Begun, bool], None]
    function: Any
    heard: CodeType
    own: CodeType

    def __init__(self, label: str) -> None:
        super().__init__(label)
        self.module = self.inside = 0
        self.learns = False
        self.least, self.most = ANY
        self.optimizer: Callable[[], Any] = bool
        self.fed: Fed = bool, None
        self.pending: Fed | None = None
        self.stepping: tuple[Begun, int] | None = None
        self.captures: Callable[[], Any] = bool
        self.threads = Threads()

    def replaces(self, function: FunctionType, own: CodeType) -> None:
        """The function, as it is heard, and torch's own code."""
        self.function, self.heard, self.own = function, function.__code__, own

    def expect(
        self,
        module: Any,
        label: str,
        optimizer: Callable[[], Any] | None = None,
        fed: Fed = (bool, None),
        between: Between = ANY,
    ) -> None:
        """The next call of this module, by this thread, is like the last one; with a weak reference to the
        ``optimizer``, that of a step of training, and what it was fed by; else given as many numbers as are
        ``between`` these."""
        if label != self.label:
            self.until_ns = 0  # something may come of the first one
        self.label, self.learns, self.optimizer = label, optimizer is not None, optimizer or bool
        self.fed = fed
        self.least, self.most = between
        self.module, self.thread = id(module), get_ident()

    def fits(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a call is given about as much as the last one."""
        return self.least <= given(args, kwargs) <= self.most

    def let_go(self) -> None:
        """Nothing is noted any more."""
        self.module = self.until_ns = 0
        self.stepping = self.pending = None
        if hasattr(self, "own"):
            self.heard = self.own
