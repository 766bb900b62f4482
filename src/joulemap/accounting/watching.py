"""How far an accounting is, for whoever watches it: told between the stretches of time that it works off."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Advance = Callable[[float], None]

_WATCHER: ContextVar[Advance | None] = ContextVar("watcher", default=None)


@contextmanager
def watched(advance: Advance | None) -> Iterator[None]:
    """Tell ``advance`` how much is done, from 0 to 1, of the accounting in this block."""
    token = _WATCHER.set(advance)
    try:
        yield
    finally:
        _WATCHER.reset(token)


@contextmanager
def part(number: int, count: int) -> Iterator[None]:
    """What is told in this block is of one of ``count`` equal parts."""
    advance = _WATCHER.get()
    with watched(None if advance is None else lambda done: advance((number + done) / count)):
        yield


def tell(done: float) -> None:
    """Say how much is done."""
    advance = _WATCHER.get()
    if advance is not None:
        advance(min(done, 1.0))
