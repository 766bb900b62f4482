"""Functions of ``sys`` that are others while calls are recorded, and seem to be what they were."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any

from joulemap.calls.hidden import hide

Replacement = Callable[..., Any]
Make = Callable[[Replacement], Replacement]
"""Makes of the real function what is called instead of it: ``replacement(*args, **kwargs)``."""

_codes: set[CodeType] = set()
_real: dict[str, Replacement] = {}


def replace(functions: Mapping[str, Make]) -> None:
    """Replace those that this Python has, and that are not replaced already."""
    for name, make in functions.items():
        if hasattr(sys, name) and name not in _real:
            _real[name] = getattr(sys, name)
            setattr(sys, name, _like(_real[name], make(_real[name])))


def restore() -> None:
    """Put back Python's own."""
    for name, real in _real.items():
        setattr(sys, name, real)
    _real.clear()


def replaces(code: CodeType) -> bool:
    """Whether it is the code of such a function."""
    return code in _codes


def _like(real: Replacement, replacement: Replacement) -> Replacement:
    """From 3.12 on profilers hear nothing of what a hidden function calls, but they are to hear of the real
    one: there it is not hidden."""
    made: Any = hide(replacement) if sys.version_info < (3, 12) else replacement
    _codes.add(made.__code__)
    return functools.wraps(real)(made)
