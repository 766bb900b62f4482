"""A program that watches itself, with ``sys.setprofile`` or ``sys.settrace``, is not told of what is ours.

Its handlers are filtered, whoever installs them: the program, ``pdb``, ``threading``. The functions that
install them are replaced in ``sys`` while calls are recorded, so that nothing is asked where nobody watches.
Handlers that are written in C, as ``cProfile`` and coverage have them, take no filter, and see all.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from threading import get_ident
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any

from joulemap.calls.between import is_between, is_last_before_raising
from joulemap.calls.hidden import HIDES, hide
from joulemap.calls.owner import bases
from joulemap.calls.replaced import Replaced, replaces

Handler = Callable[[FrameType, str, Any], Any]
_HERE = os.path.dirname(__file__) + os.sep  # noqa: PTH120 - as code has it
_PYTHONS = (FunctionType, MethodType, functools.partial)


class _Filter:
    """Hands on to a program's handler what is not ours."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self._ours: dict[int, FrameType] = {}
        """The outermost frame of ours in each thread: what happens below it is ours, too."""


class _Profile(_Filter):
    def __init__(self, handler: Handler) -> None:
        super().__init__(handler)
        self._unwinding: set[int] = set()

    @hide
    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        thread, code = get_ident(), frame.f_code
        if thread in self._ours:
            if event == "return" and frame is self._ours[thread]:
                self._leave(thread, code)
        elif thread in self._unwinding:
            self._unwinding.remove(thread)
        elif _stands_between(code):
            if event.startswith("c_") and frame.f_back is not None:  # what C it calls, the program has called
                return self.handler(frame.f_back, event, arg)
        elif not _is_ours(code):
            return self.handler(frame, event, arg)
        elif event == "call":
            self._ours[thread] = frame
        return None

    def _leave(self, thread: int, code: CodeType) -> None:
        """From 3.12 on, when an error leaves a hidden frame, it is said that the one below returns."""
        del self._ours[thread]
        if sys.version_info >= (3, 12) and is_last_before_raising(code):
            self._unwinding.add(thread)


class _Trace(_Filter):
    @hide
    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        thread, code = get_ident(), frame.f_code
        if thread in self._ours or _stands_between(code):
            return None
        if not _is_ours(code):
            return self.handler(frame, event, arg)
        self._ours[thread] = frame
        frame.f_trace_lines = False
        return self._until_it_returns

    @hide
    def _until_it_returns(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "return":
            del self._ours[get_ident()]
        return self._until_it_returns


def _is_ours(code: CodeType) -> bool:
    return code.co_filename.startswith(_HERE)


def _stands_between(code: CodeType) -> bool:
    """Whether it only calls what the program calls, from a frame that is on no stack. Of those on the stack
    handlers are told: they compare."""
    return replaces(code) or (HIDES and is_between(code))


def _setter(kind: type[_Filter], real: Callable[..., Any]) -> Callable[..., Any]:
    def install(*args: Any, **kwargs: Any) -> Any:
        return real(*filtered(args), **kwargs)

    def filtered(handlers: tuple[Any, ...]) -> list[Any]:
        return [kind(one) if _is_pythons(one) else one for one in handlers]

    return install


def _getter(kind: type[_Filter], real: Callable[..., Any]) -> Callable[..., Any]:
    def installed(*args: Any, **kwargs: Any) -> Any:
        return itself(real(*args, **kwargs))

    def itself(handler: Any) -> Any:
        return handler.handler if type(handler) is kind else handler

    return installed


def _is_pythons(handler: Any) -> bool:
    """Whether a handler is written in Python."""
    kinds = bases(type(handler))
    return isinstance(handler, _PYTHONS) or any(
        type(vars(one).get("__call__")) is FunctionType for one in kinds
    )


filtered_handlers = Replaced(
    {
        "setprofile": functools.partial(_setter, _Profile),
        "_setprofileallthreads": functools.partial(_setter, _Profile),
        "getprofile": functools.partial(_getter, _Profile),
        "settrace": functools.partial(_setter, _Trace),
        "_settraceallthreads": functools.partial(_setter, _Trace),
        "gettrace": functools.partial(_getter, _Trace),
    }
)
"""Started, they filter what is installed from then on; what is installed stays filtered."""
