"""The function that stands between a site and the library, and takes care not to be noticed.

Its frame is hidden. Where this Python cannot do that, it leaves no frame in a traceback, and a library that
looks at who called it, for a warning, a log or a name, finds the program's file, line, function and module.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType, FrameType, FunctionType
from typing import Any

from joulemap.calls.hidden import HIDES, hidden
from joulemap.calls.store import RAISED, RETURNED


def _nothing_to_forget(error: BaseException) -> None:
    """A hidden frame is in no traceback."""


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


_forget_seen = _forget if sys.version_info >= (3, 11) else _forget_in_3_10
_forget_frame = _nothing_to_forget if HIDES else _forget_seen


def between(
    site: int, api: int, caller: FrameType, begin: Callable[..., Any], end: Callable[[Any, int], None]
) -> Callable[..., Any]:
    """What is called at one site instead of the library, with what of it was to be called as first argument:
    it seems to be the program's function there."""
    forget, raised, returned = _forget_frame, RAISED, RETURNED  # nothing of ours is among its globals

    def call(callee: Any, /, *args: Any, **kwargs: Any) -> Any:
        opened = begin(site, api, callee, args, kwargs)
        try:
            result = callee(*args, **kwargs)
        except BaseException as error:
            end(opened, raised)
            forget(error)
            raise
        end(opened, returned)
        return result

    code = hidden(call.__code__)
    code = code.replace(
        co_filename=caller.f_code.co_filename,
        co_name=caller.f_code.co_name,
        co_firstlineno=caller.f_lineno,
        co_linetable=_one_line(code),
    )
    return FunctionType(code, caller.f_globals, code.co_name, None, call.__closure__)


_CALL = next(one for one in between.__code__.co_consts if isinstance(one, CodeType))


def is_between(code: CodeType) -> bool:
    """Whether it is the code of such a function, by what no other has: its variables' names."""
    return code.co_varnames == _CALL.co_varnames and code.co_freevars == _CALL.co_freevars


def is_last_before_raising(code: CodeType) -> bool:
    """Whether it is the last that such a function calls before it hands on the library's error."""
    return code is _forget_frame.__code__


def _one_line(code: CodeType) -> bytes:
    """A table of lines that says the first line for all of the code."""
    units = len(code.co_code) // 2
    if sys.version_info < (3, 11):
        return b"".join(bytes((2 * min(127, units - done), 0)) for done in range(0, units, 127))
    lengths = (min(8, units - done) for done in range(0, units, 8))
    return b"".join(bytes((0x80 | 13 << 3 | length - 1, 0)) for length in lengths)


_unseen: dict[int, CodeType] = {}  # by identity: two sites of one line have equal code


def unseen_by_compilers(*functions: Any) -> None:
    """Keep ``torch.compile``, which looks at every Python frame below a compiled function, from looking at
    these; what they call is still looked at."""
    frames = getattr(sys.modules.get("torch._C"), "_dynamo", None)
    if frames is None:
        return
    codes = [function.__code__ for function in (*functions, _forget_frame)]
    for code in codes:
        if id(code) not in _unseen:
            _unseen[id(code)] = code
            _skip(frames.eval_frame, code)


def _skip(frames: Any, code: CodeType) -> None:
    if hasattr(frames, "set_code_exec_strategy"):
        skip = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.DEFAULT)
        frames.set_code_exec_strategy(code, skip)
    else:  # before 2.7
        frames.skip_code(code)
