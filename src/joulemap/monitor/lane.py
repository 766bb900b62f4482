"""A thread that reads one family of channels, each at its own time."""

from __future__ import annotations

import threading
import time

from joulemap.monitor.family import Family
from joulemap.monitor.timeline import Timeline
from joulemap.monitor.waiter import PipeWaiter
from joulemap.units import NS_PER_S

ANSWER_S = 1.0
"""How long a reading of everything may take that somebody waits for."""
END_S = 6.0
"""How long the last reading may take."""


class Lane:
    """Reads until it is told to stop. Nobody waits for it without a limit: a driver may never return."""

    def __init__(self, family: Family, timeline: Timeline) -> None:
        self.family = family
        self._now_ns = timeline.now_ns
        self._waiter = PipeWaiter()
        self._answered = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"joulemap {family.name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._read()
        except Exception as error:  # noqa: BLE001 - the other lanes must not suffer
            self.family.broke(error)
        finally:
            self._answered.set()

    def _read(self) -> None:
        family, now_ns, wait = self.family, self._now_ns, self._waiter.wait
        due_ns = family.read_due(now_ns())
        while not self._waiter.stopped:
            wanted = wait(max(due_ns - now_ns(), 0) / NS_PER_S)
            due_ns = family.read_due(None if wanted else now_ns())
            if wanted:
                self._answered.set()
        family.read_last()

    def ask(self) -> None:
        """Have every channel read at once."""
        if self._thread.is_alive():
            self._answered.clear()
            self._waiter.flush()

    def answer(self, until_s: float) -> None:
        """Wait until that is done, but not beyond a time of the monotonic clock."""
        self._answered.wait(max(until_s - time.monotonic(), 0.0))

    def stop(self) -> None:
        """Have it read once more and end."""
        self._waiter.stop()

    def end(self, until_s: float) -> None:
        """Wait for its end. One that hangs is left behind with what it holds."""
        self._thread.join(max(until_s - time.monotonic(), 0.0))
        if self._thread.is_alive():
            self.family.give_up(self._now_ns())
        else:
            self._waiter.close()
