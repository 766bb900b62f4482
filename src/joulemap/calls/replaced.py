"""Functions of ``sys`` that are others for a while, and seem to be what they were."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any

from joulemap.calls.hidden import hide

Function = Callable[..., Any]
Make = Callable[[Function], Function]
"""Makes of the real function what is called instead of it, with any arguments."""

_codes: set[CodeType] = set()


class Replaced:
    """Some functions by name, as far as this Python has them."""

    def __init__(self, functions: Mapping[str, Make]) -> None:
        real = {name: getattr(sys, name) for name in functions if hasattr(sys, name)}
        self._pairs = [(name, one, _like(one, functions[name](one))) for name, one in real.items()]

    def start(self) -> None:
        """Replace them, unless somebody else has done so."""
        for name, real, ours in self._pairs:
            if getattr(sys, name) is real:
                setattr(sys, name, ours)

    def stop(self) -> None:
        """Put back Python's own, unless somebody else has put something there since."""
        for name, real, ours in self._pairs:
            if getattr(sys, name) is ours:
                setattr(sys, name, real)


def replaces(code: CodeType) -> bool:
    """Whether it is the code of a function that is called instead of a real one."""
    return code in _codes


def _like(real: Function, ours: Function) -> Function:
    """From 3.12 on profilers hear nothing of what a hidden function calls, but they are to hear of the real
    one: there it is not hidden."""
    made: Any = hide(ours) if sys.version_info < (3, 12) else ours
    _codes.add(made.__code__)
    return functools.wraps(real)(made)
