"""Signals whose handler raises, at a place of our code that the test chooses."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import joulemap

OURS = str(Path(joulemap.__file__).parent)


class Late(Exception):
    """Raised by the handler of a signal."""


@contextmanager
def late_at(place: int, *codes: CodeType) -> Iterator[list[str]]:
    """A signal comes at this one of the places where Python handles it and our code runs: where a function
    begins, and where one of C's has returned. What has one of the ``codes`` is ours, too. The list says which
    place that was; it is empty where there are fewer of them."""
    passed, places = count(1), list[str]()

    def late(*_: Any) -> None:
        raise Late

    def comes(frame: FrameType, event: str, _: Any) -> None:
        ours = frame.f_code.co_filename.startswith(OURS) or frame.f_code in codes
        if ours and event in ("call", "c_return") and next(passed) == place:
            sys.setprofile(None)
            places.append(f"{frame.f_code.co_qualname}, line {frame.f_lineno}, at a {event}")
            signal.raise_signal(signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, late)
    sys.setprofile(comes)
    try:
        yield places
    finally:
        sys.setprofile(None)
        signal.signal(signal.SIGUSR1, before)


def comes_to_the_program(step: Callable[[], object], place: int, *codes: CodeType) -> list[str]:
    """It does; which place that was, if there was one."""
    came = False
    with late_at(place, *codes) as places:
        try:
            step()
        except Late:
            came = True
    assert came == bool(places), places
    return places
