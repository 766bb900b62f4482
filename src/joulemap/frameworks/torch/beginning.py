"""The time before a program's first step: it imports, reads its data and makes its model. That is no example
of what it will do, and a trace of it would cost the steps their own."""

from __future__ import annotations

import sys
import time
from types import FrameType
from typing import Any

from joulemap.frameworks.torch.calls import any_optimizer

LONGEST_S = 60.0
"""For so long a program that seems to be about to make steps is believed."""
_IMPORTS = "<frozen importlib._bootstrap>"


class Beginning:
    """Lasts from now on, while the program imports or has made no step with the models that it has."""

    def __init__(self) -> None:
        self._since_s = time.monotonic()

    def lasts(self) -> bool:
        """Whether a first step is to be expected; to be asked only before there was one."""
        early = time.monotonic() - self._since_s < LONGEST_S
        return early and (_imports() or _any_model() or any_optimizer())


def _imports() -> bool:
    """Whether any thread is importing something."""
    return any(map(_is_import, sys._current_frames().values()))


def _is_import(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_filename != _IMPORTS:
        frame = frame.f_back
    return frame is not None


def _any_model() -> bool:
    """Whether anybody but torch has written a module: the program, or a library of models."""
    from torch.nn import Module

    return _is_others(Module)


def _is_others(module: Any) -> bool:
    return module.__module__.partition(".")[0] != "torch" or any(map(_is_others, module.__subclasses__()))
