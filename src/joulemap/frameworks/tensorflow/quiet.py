"""TensorFlow's profiler says on stderr that it starts and stops; who did not ask should not hear it.

Its lines are at level INFO of Abseil's log, whose least level can be raised while a program runs. The two
functions for it are in TensorFlow's library, under names that carry the date of its Abseil.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

WARNING = 1
_SETTER = re.compile(rb"_ZN4absl12(lts_\d{8})14SetMinLogLevelENS0_18LogSeverityAtLeastE")


class Silence:
    """Keeps INFO lines of TensorFlow's library off stderr, for moments."""

    def __init__(self, library: Path) -> None:
        """``OSError`` where this TensorFlow cannot be silenced."""
        names = _SETTER.search(_mapped(library))
        if names is None:
            raise OSError(f"{library.name} does not say how to set its log level")
        loaded = ctypes.CDLL(str(library), mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        self._set = loaded[names[0].decode()]
        self._set.argtypes, self._set.restype = [ctypes.c_int], None
        self._get = loaded[f"_ZN4absl12{names[1].decode()}11MinLogLevelEv"]
        self._get.argtypes, self._get.restype = [], ctypes.c_int

    @contextmanager
    def __call__(self) -> Iterator[None]:
        level = self._get()
        self._set(max(level, WARNING))
        try:
            yield
        finally:
            self._set(level)


def _mapped(library: Path) -> mmap.mmap:
    with library.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
