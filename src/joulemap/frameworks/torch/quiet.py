"""Kineto says on stderr that it starts and stops; who did not ask should not hear it.

Its least level of logging is a number in torch's library, which can be raised while a session of ours starts
and stops. Where the library does not show it, Kineto is heard. Two lines are written past that level: where
the first session of a program is opened by another thread than the one that imported torch; and the first
time that memory goes, in a session that looks at memory, which was there before.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LEVEL = "_ZN9libkineto6Logger14severityLevel_E"
_NOTHING = 99
OF_KINETO = b"ERROR: External init callback must run in same thread"
OF_MEMORY = b"Memory block of unknown size was allocated before the profiling started"
_STDERR = 2


class Silence:
    """Keeps Kineto's lines off stderr, for moments. It sets its level itself when a first session is
    prepared, so that this must come after."""

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


@contextmanager
def without(words: bytes) -> Iterator[None]:
    """Leave lines with these words out of stderr; what anybody else writes meanwhile comes after."""
    real = os.dup(_STDERR)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), _STDERR)
        try:
            yield
        finally:
            os.dup2(real, _STDERR)
            os.close(real)
            held.seek(0)
            for line in held:
                if words not in line:
                    os.write(_STDERR, line)
