"""Code of ours that runs in the middle of the program's, out of the sight of ``torch.compile``.

The compiler looks at every Python frame that runs below a compiled function. Ours it must neither compile nor
take into a graph: then a program would have other graphs with us than without.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar, cast

from joulemap.frameworks.watch import Watch

Function = TypeVar("Function", bound=Callable[..., Any])
_INLINED = "_torchdynamo_inline"
_OURS = f"{Path(__file__).parent}{os.sep}"
_copies: dict[FunctionType, FunctionType] = {}


def unseen(function: Function) -> Function:
    """Run ``function`` itself as it is; what it calls is still looked at."""
    frames = _eval_frame()
    if hasattr(frames, "set_code_exec_strategy"):
        skip = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.DEFAULT)
        frames.set_code_exec_strategy(function.__code__, skip)
    else:  # before 2.7
        frames.skip_code(function.__code__)
    return function


def _eval_frame() -> Any:
    """The part of the compiler that looks at frames. It is no module to import from in every torch."""
    from torch._C import _dynamo

    return _dynamo.eval_frame


def out_of_sight(function: Function) -> Function:
    """``function`` with the compiler looking away, from all that it calls as well."""
    set_eval_frame = _eval_frame().set_eval_frame

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        before = set_eval_frame(None)
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            without_ours(error)
            raise
        finally:
            set_eval_frame(before)

    return cast("Function", unseen(called))


def compiler_looks() -> Callable[[], bool]:
    """A function that says whether the compiler looks at what is called now."""
    set_eval_frame = _eval_frame().set_eval_frame

    def looks() -> bool:
        before = set_eval_frame(None)
        set_eval_frame(before)
        return before is not None

    return unseen(looks)


def without_ours(error: BaseException) -> None:
    """An error that passes our code on its way to the program's has no frames of ours in its traceback."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OURS):
        trace = trace.tb_next
    error.__traceback__ = trace


def passing(function: Function) -> Function:
    """``function``, through which the program's own errors pass without a frame of ours."""

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            without_ours(error)
            raise

    return cast("Function", called)


def instead(function: Callable[..., Any], traced: Callable[..., Any]) -> None:
    """Where the compiler meets ``function`` in code that it compiles, it is to take ``traced``."""
    vars(function)[_INLINED] = traced


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """What the compiler is to take for a function that we replace, always the same one: a copy of it, since
    one that stands for itself has the compiler go round in circles."""
    known: Callable[..., Any] | None = getattr(function, _INLINED, None)
    if known is not None or not isinstance(function, FunctionType):
        return known or function
    if function not in _copies:
        said = (function.__name__, function.__defaults__, function.__closure__)
        copy = FunctionType(function.__code__, function.__globals__, *said)
        copy.__kwdefaults__ = function.__kwdefaults__
        vars(copy).update(vars(function))
        _copies[function] = copy
    return _copies[function]


def aside(watch: Watch) -> Callable[..., Any]:
    """A function that attempts hooks with the compiler looking away."""
    set_eval_frame = _eval_frame().set_eval_frame

    def attempt(hook: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:  # Watch.attempt, in one frame
        if not watch.on:
            return None
        before = set_eval_frame(None)
        try:
            return hook(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - torch may be other than we know it
            watch.failed(hook, error)
            return None
        finally:
            set_eval_frame(before)

    return unseen(attempt)
