"""The program's handlers of signals wait while a profiler is opened or closed.

That takes up to half a second, so a timeout is likely to come just then. Its handler would raise in the
middle of it: the profiler would stay on, or the program would never hear of its timeout, because whatever a
profiler raises is ours. So handlers are called as soon as it is done.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any]
_ACTION_BYTES = 512
"""More than any system's ``struct sigaction`` has."""


@contextmanager
def held() -> Iterator[None]:
    """What comes meanwhile is handled after it; who presses Ctrl-C twice is not kept waiting. In any other
    thread than the main one Python handles none."""
    if threading.get_ident() != threading.main_thread().ident:
        yield
        return
    replaced: list[tuple[int, Handler, Any]] = []
    came: list[int] = []
    try:
        for number, handler in _handled():
            replaced.append((number, handler, _action(number)))
            signal.signal(number, _waits(handler, came))
        yield
    finally:
        try:
            _put_back(replaced)
        finally:  # after what a handler has raised that was put back
            _put_back(replaced)
            _handle(came)


def _handled() -> list[tuple[int, Handler]]:
    every = [(int(number), signal.getsignal(number)) for number in signal.valid_signals()]
    return [(number, handler) for number, handler in every if callable(handler)]


def _waits(handler: Handler, came: list[int]) -> Handler:
    def wait(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and number in came:
            handler(number, frame)
        elif number not in came:
            came.append(number)

    return wait


def _put_back(replaced: list[tuple[int, Handler, Any]]) -> None:
    while replaced:
        number, handler, action = replaced[-1]
        signal.signal(number, handler)
        if action is not None:  # ``signal`` has forgotten whether calls of the system are resumed after it
            _sigaction()(number, action, None)
        replaced.pop()


def _handle(came: list[int]) -> None:
    """All of them, whatever the first ones raise."""
    if came:
        try:
            signal.raise_signal(came.pop(0))
        finally:
            _handle(came)


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
