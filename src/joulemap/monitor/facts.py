"""What explains the energy, asked beside the sampling: answers may take as long as they like."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass

from joulemap.meters.gpu import PICTURE_PERIOD_S, Pictured
from joulemap.meters.meter import Meter
from joulemap.monitor.timeline import Timeline
from joulemap.monitor.waiter import PipeWaiter
from joulemap.units import NS_PER_S

FACTS_NS = NS_PER_S
"""How often facts are looked up."""
END_S = 0.5


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that explains the energy: a clock rate, a temperature, a load. The name ends in its unit."""

    t_ns: int
    name: str
    value: float


class FactsThread:
    """Asks one meter about once a second, and more often for power that is only drawn. A meter that does not
    answer holds up nobody: then there are no facts of it."""

    def __init__(self, meter: Meter, timeline: Timeline) -> None:
        self._meter = meter
        self._now_ns = timeline.now_ns
        self._pictured = meter if isinstance(meter, Pictured) else None
        self._every_s = FACTS_NS / NS_PER_S if self._pictured is None else PICTURE_PERIOD_S
        self._found: list[Fact] = []
        self._lock = threading.Lock()
        self._waiter = PipeWaiter()
        self._thread = threading.Thread(target=self._run, name=f"joulemap facts {meter.name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asked_ns = 0
        while not self._waiter.stopped:
            now_ns = self._now_ns()
            if self._pictured is not None:
                self._keep(self._pictured.pictures())
            if now_ns - asked_ns >= FACTS_NS * 0.95:
                asked_ns = now_ns
                self._keep(self._meter.facts())
            self._waiter.wait(self._every_s)

    def _keep(self, facts: Mapping[str, float]) -> None:
        t_ns = self._now_ns()
        with self._lock:
            self._found += [Fact(t_ns, name, value) for name, value in facts.items()]

    def take(self) -> list[Fact]:
        """What was found since this was last called."""
        with self._lock:
            found, self._found = self._found, []
        return found

    def stop(self) -> None:
        """Have it end."""
        self._waiter.stop()

    def end(self) -> None:
        """Wait a little for its end, so that a short recording has facts, too."""
        self._thread.join(END_S)
        if not self._thread.is_alive():
            self._waiter.close()
