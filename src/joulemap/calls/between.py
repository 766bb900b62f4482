"""The function that stands between a site and the library, and takes care not to be noticed.

It leaves no frame in a traceback. A library that looks at who called it finds the program's module. Warnings
point to the program's line: a library's own go past our file, whose name has the words that Python's
warnings and logs pass over; those from C point to where the nearest Python frame says it is, so that one says
it is at the program's line.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, MethodType, WrapperDescriptorType
from typing import Any

from joulemap.calls.store import RAISED, RETURNED

_PASSED_OVER = "<joulemap: importlib _bootstrap>"

_SOURCE = f"""
def make(site, begin, end, forget):
    def call(callee, api, /, *args, **kwargs):
        opened = begin(site, api, callee, args, kwargs)
        try:
            result = callee(*args, **kwargs)
        except BaseException as error:
            end(opened, {RAISED})
            forget(error)
            raise
        end(opened, {RETURNED})
        return result
    return call
"""


def _forget(error: BaseException) -> None:
    """Take the frame that catches an error out of its traceback; raising it on does not put it back."""
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next


def _forget_in_3_10(error: BaseException) -> None:
    """There, what is raised on is what the thread holds, not what the error says."""
    import ctypes

    _forget(error)
    parts = (type(error), error, error.__traceback__)
    for part in parts:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(part))
    ctypes.pythonapi.PyErr_SetExcInfo(*map(ctypes.py_object, parts))


_made: dict[str, Any] = {}
exec(compile(_SOURCE, _PASSED_OVER, "exec"), _made)  # noqa: S102 - the one way to choose the name of its file
_CALL = next(one for one in _made["make"].__code__.co_consts if isinstance(one, CodeType))
_forget_frame = _forget if sys.version_info >= (3, 11) else _forget_in_3_10


class Between:
    """What is called at one site instead of the library: for Python's functions, and for those of C."""

    def __init__(
        self, site: int, caller: FrameType, begin: Callable[..., Any], end: Callable[..., None]
    ) -> None:
        call: FunctionType = _made["make"](site, begin, end, _forget_frame)
        here = call.__code__
        there = here.replace(
            co_filename=caller.f_code.co_filename,
            co_name=caller.f_code.co_name,
            co_firstlineno=caller.f_lineno,
            co_linetable=_one_line(here),
        )
        self.python = _with(call, here, caller)
        self.native = _with(call, there, caller)


def _with(call: FunctionType, code: CodeType, caller: FrameType) -> FunctionType:
    return FunctionType(code, caller.f_globals, code.co_name, None, call.__closure__)


def is_native(callee: Any) -> bool:
    """Whether no Python frame is between us and what C code may warn about."""
    kind = type(callee)
    if kind is FunctionType or kind is MethodType or issubclass(kind, type):
        return False
    return kind is BuiltinFunctionType or type(kind.__call__) is WrapperDescriptorType


def _one_line(code: CodeType) -> bytes:
    """A table of lines that says the first line for all of the code."""
    units = len(code.co_code) // 2
    if sys.version_info < (3, 11):
        return b"".join(bytes((2 * min(127, units - done), 0)) for done in range(0, units, 127))
    lengths = (min(8, units - done) for done in range(0, units, 8))
    return b"".join(bytes((0x80 | 13 << 3 | length - 1, 0)) for length in lengths)


_unseen: set[CodeType] = set()


def unseen_by_compilers(*functions: Any) -> None:
    """Keep ``torch.compile``, which looks at every Python frame below a compiled function, from looking at
    these and at what stands between; what they call is still looked at."""
    frames = getattr(sys.modules.get("torch._C"), "_dynamo", None)
    if frames is None:
        return
    codes = [function.__code__ for function in functions] + [_CALL, _forget_frame.__code__]
    for code in codes:
        if code not in _unseen:
            _unseen.add(code)
            _skip(frames.eval_frame, code)


def _skip(frames: Any, code: CodeType) -> None:
    if hasattr(frames, "set_code_exec_strategy"):
        skip = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.DEFAULT)
        frames.set_code_exec_strategy(code, skip)
    else:  # before 2.7
        frames.skip_code(code)
