"""The program's handlers of signals wait while something of ours must not be interrupted.

To open or close a profiler takes up to half a second, so a timeout is likely to come just then. Its handler
would raise in the middle of it: the profiler would stay on, or the program would never hear of its timeout,
because whatever a profiler raises is ours. So handlers are called as soon as it is done, each once.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import cache
from types import FrameType, TracebackType
from typing import Any

Handler = Callable[[int, FrameType | None], Any]
_ACTION_BYTES = 512
"""More than any system's ``struct sigaction`` has."""


class held:  # noqa: N801 - read as a word: ``with held():``
    """What comes meanwhile is handled after it; who presses Ctrl-C twice is not kept waiting, nor is a child
    that somebody forks. In any other thread than the main one Python handles none.

    Only Python's own table is changed: the system goes on as before, and with it whoever is told of signals
    by other ways (asyncio, ``faulthandler``)."""

    def __init__(self) -> None:
        self._replaced: list[tuple[int, Handler]] = []
        self._came: list[int] = []
        self._process = 0

    def __enter__(self) -> None:
        if threading.get_ident() != threading.main_thread().ident:
            return
        self._process = os.getpid()
        try:
            for number in _numbers():
                handler = signal.getsignal(number)
                if callable(handler):
                    self._replaced.append((number, handler))
                    _set(number, self._waiting(handler))
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        try:
            self._finish()
        finally:  # a handler may raise wherever it is back already
            try:
                self._finish()
            finally:
                self._finish()

    def _waiting(self, handler: Handler) -> Handler:
        def wait(number: int, frame: FrameType | None) -> None:
            again = number in self._came
            if (again and number == signal.SIGINT) or os.getpid() != self._process:
                handler(number, frame)
            elif not again:
                self._came.append(number)

        return wait

    def _finish(self) -> None:
        """Put all of them back, and call those whose signals came, whatever the first ones raise."""
        raised: BaseException | None = None
        while self._replaced or self._came:
            try:
                self._go_on()
            except BaseException as late:  # noqa: BLE001, PERF203 - the last one is raised below
                late.__context__ = late.__context__ or raised
                raised = late
        if raised is not None:
            raise raised

    def _go_on(self) -> None:
        if self._replaced:
            _set(*self._replaced[-1])
            self._replaced.pop()
            return
        number = self._came.pop(0)
        handler = signal.getsignal(number)
        if callable(handler):
            handler(number, sys._getframe())


def _set(number: int, handler: Handler) -> None:
    """Have Python call another handler, and the system do what it did: ``signal`` forgets whether calls of
    the system are resumed after it, and who is called before Python is."""
    action = _action(number)
    signal.signal(number, handler)
    if action is not None:
        _sigaction()(number, action, None)


def _action(number: int) -> Any:
    """What the system knows of a handler, as it is; None where there is no such thing."""
    try:
        import ctypes

        said = ctypes.create_string_buffer(_ACTION_BYTES)
        return said if _sigaction()(number, None, said) == 0 else None
    except (ImportError, AttributeError, OSError, TypeError):
        return None


@cache
def _sigaction() -> Any:
    import ctypes

    return ctypes.CDLL(None).sigaction


@cache
def _numbers() -> tuple[int, ...]:
    return tuple(sorted(int(number) for number in signal.valid_signals()))
