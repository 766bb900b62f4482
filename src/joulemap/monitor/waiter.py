"""How the sampling loop sleeps: on a pipe, so that it can be woken at any moment."""

from __future__ import annotations

import os
import select
import signal
import time
from contextlib import suppress

FLUSH, STOP = b"f", b"q"
SHORT_S, NAPS = 0.01, 9


class PipeWaiter:
    """Sleeps until a time, a byte, or the end of a pipe. ``watched`` are further descriptors whose byte or
    end means stop: the pipe from a parent that may die."""

    def __init__(self, *watched: int) -> None:
        self.stopped = False
        self._naps = 0
        self._watched = watched
        self._inside, self._outside = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._all = [self._inside, *watched]

    def wait(self, seconds: float) -> bool:
        """Sleep; True where a batch is wanted at once. Of short sleeps only every tenth looks at the pipes:
        that costs more than sleeping does, and is soon enough."""
        if seconds < SHORT_S and self._naps < NAPS:
            self._naps += 1
            time.sleep(seconds)
            return False
        self._naps = 0
        ready = select.select(self._all, (), (), seconds)[0]
        if not ready:
            return False
        asked = os.read(self._inside, 1024) if self._inside in ready else b""
        self.stopped = self.stopped or STOP in asked or any(handle in ready for handle in self._watched)
        return FLUSH in asked

    def wake_for_signals(self) -> None:
        """Whichever thread a signal comes to: Python's handlers run in the main one, which may sleep here for
        long, and of threads that other libraries have started it would hear nothing."""
        signal.set_wakeup_fd(self._outside, warn_on_full_buffer=False)

    def flush(self) -> None:
        """Ask for a batch at once; from any thread."""
        self._wake(FLUSH)

    def stop(self) -> None:
        """End the loop; from any thread, or from a signal handler."""
        self.stopped = True
        self._wake(STOP)

    def _wake(self, what: bytes) -> None:
        with suppress(BlockingIOError):  # so many are waiting already
            os.write(self._outside, what)

    def close(self) -> None:
        """Let go of the pipe."""
        os.close(self._inside)
        os.close(self._outside)
