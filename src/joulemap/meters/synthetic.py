"""A sensor whose truth is known: what it would show of given operations, and what they really drew.

Every sensor is one machine with different settings: each ``period_s`` it shows the mean power of the last
``window_s`` (as of ``lag_s`` ago), in steps of a quantum, with noise. A window longer than the period is a
moving average; a shorter one sees only a part of each period. A counter adds what it saw to a running total.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from joulemap.devices import Domain
from joulemap.errors import InputError
from joulemap.meters.meter import Probe, Quantity
from joulemap.meters.readings import Readings
from joulemap.meters.replay import ReplayChannel, ReplayMeter
from joulemap.traces import EventTrace, Float64, Int64, PowerTrace
from joulemap.units import NS_PER_S


@dataclass(frozen=True, slots=True)
class Operation:
    """Something that runs for a while at a constant power of the whole domain; without a name, a pause."""

    name: str
    seconds: float
    power_w: float


@dataclass(frozen=True, eq=False)
class Truth:
    """What really happened: the events, the power at every moment, and the energy of each operation."""

    events: EventTrace
    power: PowerTrace
    energy_j: Mapping[str, float]
    """By name of the operation; pauses under the empty name."""


def truth_of(
    operations: Sequence[Operation], domain: Domain | None = None, start_ns: int = 0, repeat: int = 1
) -> Truth:
    """Operations one after the other, all of them ``repeat`` times, on the domain's device."""
    domain = domain or Domain("GPU:0", "GPU:0", sensor="synthetic", provenance="estimated")
    schedule = list(operations) * repeat
    seconds = np.array([operation.seconds for operation in schedule])
    watts = np.array([operation.power_w for operation in schedule])
    if not schedule or not (seconds > 0).all() or (watts < 0).any():
        raise InputError("Operations must last, and cannot draw less than nothing.")
    edges = start_ns + np.rint(np.concatenate(([0.0], np.cumsum(seconds))) * NS_PER_S).astype(np.int64)
    power = PowerTrace(domain, edges, watts * np.diff(edges) / NS_PER_S)
    energy: dict[str, float] = {}
    for operation, joules in zip(schedule, power.energy_j.tolist(), strict=True):
        energy[operation.name] = energy.get(operation.name, 0.0) + joules
    named = np.array([bool(operation.name) for operation in schedule])
    events = EventTrace.from_columns(
        name=[operation.name for operation in schedule if operation.name],
        device=domain.device,
        start_ns=edges[:-1][named],
        end_ns=edges[1:][named],
    )
    return Truth(events, power, energy)


@dataclass(frozen=True, slots=True)
class Sensor:
    """How a sensor sees. ``noise_w`` is the standard deviation of one update; ``quantum`` has the unit of
    the quantity. ``window_s`` None is the whole period: nothing is missed, nothing is smeared."""

    quantity: Quantity = "energy_j"
    period_s: float = 0.1
    window_s: float | None = None
    lag_s: float = 0.0
    quantum: float = 0.0
    noise_w: float = 0.0
    phase_s: float = 0.0
    seed: int = 0


def sense(power: PowerTrace, sensor: Sensor) -> Readings:
    """What the sensor shows of a true power trace: one reading an update."""
    updates = _updates_ns(power, sensor)
    window_s = sensor.window_s or sensor.period_s
    seen_until = updates - round(sensor.lag_s * NS_PER_S)
    seen_from = seen_until - round(window_s * NS_PER_S)
    watts = (_energy_until(power, seen_until) - _energy_until(power, seen_from)) / window_s
    watts = np.maximum(watts + _noise_w(sensor, len(updates)), 0.0)
    values = watts if sensor.quantity == "power_w" else np.cumsum(watts * sensor.period_s)
    if sensor.quantum:
        values = np.floor(values / sensor.quantum) * sensor.quantum
    domain = replace(power.domain, update_period_s=sensor.period_s)
    return Readings(domain, sensor.quantity, updates, updates, values)


class SyntheticMeter:
    """A meter that shows given operations as given sensors would, beginning when it is opened."""

    name = "synthetic"

    def __init__(
        self,
        truth: Truth,
        sensors: Sequence[Sensor] = (Sensor(),),
        speed: float = 1.0,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._truth = truth
        self._replay = ReplayMeter([sense(truth.power, sensor) for sensor in sensors], speed, False, clock_ns)

    def truth(self) -> Truth:
        """What the sensors try to show; its times are those of the operations' schedule."""
        return self._truth

    def probe(self) -> Probe:
        return replace(self._replay.probe(), reason="Shows a schedule of operations with a known truth.")

    def open(self) -> Sequence[ReplayChannel]:
        return self._replay.open()

    def facts(self) -> Mapping[str, float]:
        """Nothing explains it but the schedule."""
        return {}


def _updates_ns(power: PowerTrace, sensor: Sensor) -> Int64:
    """From the first edge until the last power has been shown."""
    start, end = int(power.edges_ns[0]), int(power.edges_ns[-1])
    after_s = sensor.lag_s + max(sensor.window_s or 0.0, sensor.period_s)
    count = int(((end - start) / NS_PER_S + after_s - sensor.phase_s) / sensor.period_s) + 1
    offsets_s = sensor.phase_s + sensor.period_s * np.arange(count)
    return np.asarray(start + np.rint(offsets_s * NS_PER_S).astype(np.int64), np.int64)


def _energy_until(power: PowerTrace, t_ns: Int64) -> Float64:
    """As if the first power had always been there, and the last stayed."""
    first, last = int(power.edges_ns[0]), int(power.edges_ns[-1])
    before_s = np.minimum(t_ns - first, 0) / NS_PER_S
    after_s = np.maximum(t_ns - last, 0) / NS_PER_S
    outside_j = before_s * power.power_w[0] + after_s * power.power_w[-1]
    return np.asarray(power.energy_until(t_ns) + outside_j, np.float64)


def _noise_w(sensor: Sensor, count: int) -> Float64:
    return np.random.default_rng(sensor.seed).normal(0.0, sensor.noise_w, count)
