"""Kernels of ours in PyTorch's dispatcher, which see the calls of some operations.

They stand between autograd and the device, at ``BackendSelect``, where most operations have none. To take one
out while another thread is on its way to it makes that thread fail, or crash; so that waits until all others
do.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from traceback import walk_stack
from types import FrameType
from typing import Any

KEY = "BackendSelect"
PATIENCE_S, LOOK_S = 1.0, 0.001
_STANDARD, _OURS = str(Path(threading.__file__).parent), str(Path(__file__).parent)


class Kernels:
    """Those that were put in."""

    def __init__(self) -> None:
        self._libraries: list[Any] = []

    def put(self, overload: Any, kernel: Callable[..., Any]) -> None:
        """Have a kernel called with the keys and the arguments of every call; ``RuntimeError`` or
        ``TypeError`` where this PyTorch has no such thing."""
        import torch

        space, _, name = overload.name().partition("::")
        library = torch.library.Library(space, "IMPL")
        library.impl(name, kernel, KEY, with_keyset=True)
        self._libraries.append(library)

    def remove(self) -> bool:
        """Leave the dispatcher as it was; False where other threads compute all the time, and they stay."""
        until_s = time.monotonic() + PATIENCE_S
        while self._libraries:
            if others_wait():
                self._libraries.pop()._destroy()
            elif time.monotonic() > until_s:
                return False
            else:
                time.sleep(LOOK_S)
        return True


def others_wait() -> bool:
    """Whether no other thread can be in an operation: all of them are in functions of the standard library,
    of locks and queues as a rule, and in none of our kernels. None goes on while we hold Python's lock."""
    me = threading.get_ident()
    return all(_waits(frame) for thread, frame in sys._current_frames().items() if thread != me)


def _waits(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    standard = (name.startswith(_STANDARD) and "-packages" not in name) or name.startswith("<frozen")
    return standard and not any(one.f_code.co_filename.startswith(_OURS) for one, _ in walk_stack(frame))
