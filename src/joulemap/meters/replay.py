"""Play a recording back as if its sensors were here, in real or accelerated time.

A counter is played back as it was seen: it stands still inside an interval and jumps at its edge, which is
what makes a slow sensor hard to use. So programs and tests that measure can run without the hardware.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from joulemap.devices import Domain
from joulemap.errors import InputError, MeterError
from joulemap.meters.meter import Probe, Quantity
from joulemap.meters.readings import Readings
from joulemap.meters.schedule import Every
from joulemap.traces import Float64, Int64, PowerTrace
from joulemap.units import NS_PER_S

_READS_PER_UPDATE = 10
_SHORTEST_PERIOD_S = 1e-3


class ReplayChannel:
    """One domain of a replay: the last value that the sensor had shown by this point of the recording."""

    wraps_at_j = None

    def __init__(self, played: Readings, start_ns: int, end_ns: int, playback: _Playback) -> None:
        self.quantity: Quantity = played.quantity
        self._t_ns, self._value = played.after_ns - start_ns, played.value
        self._span_ns = end_ns - start_ns
        self._playback = playback
        period_s = _period_s(played) / playback.speed
        self.domain = _as_played(played.domain, period_s)
        self.schedule = Every(max(period_s / _READS_PER_UPDATE, _SHORTEST_PERIOD_S))

    def read(self) -> float:
        """The value now; after the end the last one, or with ``loop`` that of the next round."""
        rounds, t_ns = self._playback.position(self._span_ns)
        index = max(int(np.searchsorted(self._t_ns, t_ns, side="right")) - 1, 0)
        whole = rounds * float(self._value[-1] - self._value[0]) if self.quantity == "energy_j" else 0.0
        return whole + float(self._value[index])

    def close(self) -> None:
        """There is nothing to let go of."""


class _Playback:
    """Where in the recording we are: shared by the channels, so that they stay aligned."""

    def __init__(self, speed: float, loop: bool, clock_ns: Callable[[], int]) -> None:
        self.speed, self._loop, self._clock_ns = speed, loop, clock_ns
        self._start_ns = clock_ns()

    def position(self, span_ns: int) -> tuple[int, int]:
        """Rounds that are over, and nanoseconds into the present one."""
        elapsed_ns = int((self._clock_ns() - self._start_ns) * self.speed)
        if self._loop and span_ns > 0:
            return divmod(elapsed_ns, span_ns)
        return 0, elapsed_ns


class ReplayMeter:
    """Plays ``PowerTrace`` back as counters, and raw ``Readings`` as what they are.

    ``speed`` 10 plays ten seconds in one. Opening starts the playback; all channels begin at the earliest
    time in any of the traces. Energies stay those of the recording, so that at ``speed`` 10 a counter
    grows ten times as fast; power readings come back as they were.
    """

    name = "replay"

    def __init__(
        self,
        traces: Sequence[PowerTrace | Readings],
        speed: float = 1.0,
        loop: bool = False,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        if not 0 < speed < float("inf"):
            raise InputError(f"A replay cannot run at a speed of {speed:g}.", "Give a number above zero.")
        played = [_counter(trace) if isinstance(trace, PowerTrace) else trace for trace in traces]
        self._played = [readings for readings in played if len(readings)]
        self._speed, self._loop, self._clock_ns = speed, loop, clock_ns

    @property
    def seconds(self) -> float:
        """How long the playback of all channels takes."""
        start_ns, end_ns = self._span_ns()
        return (end_ns - start_ns) / NS_PER_S / self._speed

    def probe(self) -> Probe:
        if not self._played:
            return Probe(False, "There is nothing in these traces to play.", "Give traces with intervals.")
        names = ", ".join(readings.domain.name for readings in self._played)
        return Probe(True, f"Plays {names} back for {self.seconds:.3g} s.")

    def open(self) -> Sequence[ReplayChannel]:
        said = self.probe()
        if not said.available:
            raise MeterError(said.reason, said.remedy)
        playback = _Playback(self._speed, self._loop, self._clock_ns)
        return [ReplayChannel(readings, *self._span_ns(), playback) for readings in self._played]

    def facts(self) -> Mapping[str, float]:
        """A trace holds nothing but energy."""
        return {}

    def _span_ns(self) -> tuple[int, int]:
        if not self._played:
            return 0, 0
        return (
            min(int(readings.after_ns[0]) for readings in self._played),
            max(int(readings.after_ns[-1]) for readings in self._played),
        )


def _counter(trace: PowerTrace) -> Readings:
    """The running total at the edges of the intervals."""
    edges: Int64 = trace.edges_ns
    total: Float64 = np.concatenate(([0.0], np.cumsum(trace.energy_j))) if len(edges) else np.zeros(0)
    return Readings(trace.domain, "energy_j", edges, edges, total)


def _period_s(readings: Readings) -> float:
    if readings.domain.update_period_s is not None:
        return readings.domain.update_period_s
    times = readings.after_ns[np.concatenate(([True], np.diff(readings.value) != 0))]
    return float(np.median(np.diff(times))) / NS_PER_S if len(times) > 1 else 1.0


def _as_played(domain: Domain, period_s: float) -> Domain:
    sensor = f"replay of {domain.sensor}" if domain.sensor else "replay"
    return replace(domain, sensor=sensor, update_period_s=period_s)
