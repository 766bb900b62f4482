"""Slices of time, of a program that has no steps."""

from __future__ import annotations

import _thread
import threading

from joulemap.recorder.steps import StepClock


class Slicer:
    """Slices the time of a program that uses a framework and has no steps, or none for long. Its thread is
    not among those that ``threading`` knows: the program may count them."""

    def __init__(self, clock: StepClock) -> None:
        self._clock = clock
        self._over = threading.Event()

    def start(self) -> None:
        """Begin to watch, as patiently as after a step."""
        self._clock.wait_from_now()
        _thread.start_new_thread(self._run, ())

    def _run(self) -> None:
        while not self._over.wait(self._clock.quiet_s):
            self._clock.slice()

    def stop(self) -> None:
        self._over.set()
