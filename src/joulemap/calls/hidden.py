"""Functions whose frames nobody sees: not in a stack, not in a traceback, not by counting callers.

Python shows a frame from its first ``RESUME`` on, since before that it is still being set up. In a hidden
function the body comes before that instruction, or there is none.
"""

from __future__ import annotations

import dis
import sys
from types import CodeType, FunctionType
from typing import TypeVar

_IS_CHECKING_ITSELF = hasattr(sys, "gettotalrefcount")  # a build for debugging
HIDES = (
    sys.implementation.name == "cpython" and (3, 11) <= sys.version_info < (3, 14) and not _IS_CHECKING_ITSELF
)
"""Whether this Python can. Others have no such instruction, or were not tried."""

_FARTHEST = 255
_NOWHERE = bytes((0x80 | 15 << 3 | 1,))
"""In a table of lines: two instructions that belong to no line."""

Function = TypeVar("Function")


def hidden(code: CodeType) -> CodeType:
    """The same code, for a frame that stays unseen; the code itself where that cannot be had."""
    if not HIDES:
        return code
    at = 2 * code.co_code[::2].index(dis.opmap["RESUME"])
    return _resumed_last(code, at) if sys.version_info < (3, 12) else _never_resumed(code, at)


def hide(function: Function) -> Function:
    """A decorator: the function's frames stay unseen."""
    assert isinstance(function, FunctionType)  # noqa: S101
    function.__code__ = hidden(function.__code__)
    return function


def _never_resumed(code: CodeType, at: int) -> CodeType:
    """Handlers of traces and profiles hear neither of its start nor of its end."""
    instructions = bytearray(code.co_code)
    instructions[at] = dis.opmap["NOP"]
    return code.replace(co_code=bytes(instructions))


def _resumed_last(code: CodeType, at: int) -> CodeType:
    """In 3.11 handlers hear of the end in any case, so they have to hear of the start: jump to a ``RESUME``
    after all else, and from there back to the body."""
    body = code.co_code[at + 2 :]
    length = len(body) // 2
    if length + 2 > _FARTHEST:
        raise ValueError(f"{code.co_name} is too long to be hidden")
    there, back = bytes((dis.opmap["JUMP_FORWARD"], length)), bytes((dis.opmap["JUMP_BACKWARD"], length + 2))
    resume = code.co_code[at : at + 2]
    instructions = code.co_code[:at] + there + body + resume + back
    return code.replace(co_code=instructions, co_linetable=code.co_linetable + _NOWHERE)
