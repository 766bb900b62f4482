"""Kineto says on stderr that it starts and stops; who did not ask should not hear it.

Its least level of logging is a number in torch's library, which can be raised while a session of ours starts
and stops. Where the library does not show it, Kineto is heard.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LEVEL = "_ZN9libkineto6Logger14severityLevel_E"
_NOTHING = 99


class Silence:
    """Keeps Kineto's lines off stderr, for moments."""

    def __init__(self) -> None:
        """``OSError`` or ``ValueError`` where this torch cannot be silenced."""
        import torch

        library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
        loaded = ctypes.CDLL(str(library), mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        self._level = ctypes.c_int.in_dll(loaded, _LEVEL)

    @contextmanager
    def __call__(self) -> Iterator[None]:
        before = self._level.value
        self._level.value = _NOTHING
        try:
            yield
        finally:
            self._level.value = before
