"""What a sensor said, reading by reading, and a loop that writes it down."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from joulemap.devices import Domain
from joulemap.errors import InputError, MeterError
from joulemap.meters.meter import Channel, Quantity
from joulemap.traces import Float64, Int64, PowerTrace
from joulemap.units import NS_PER_S


@dataclass(frozen=True, eq=False)
class Readings:
    """Raw readings of one domain: each took place between ``before_ns`` and ``after_ns`` (epoch).

    ``stamp_ns`` is when its value came about, where a schedule has learnt that; else the reading's middle.
    """

    domain: Domain
    quantity: Quantity
    before_ns: Int64
    after_ns: Int64
    value: Float64
    wraps_at_j: float | None = None
    stamp_ns: Int64 | None = None

    def __post_init__(self) -> None:
        if not len(self.before_ns) == len(self.after_ns) == len(self.value):
            raise InputError(f"The columns of the readings of {self.domain.name} differ in length.")

    def __len__(self) -> int:
        return len(self.value)

    @property
    def middle_ns(self) -> Int64:
        """When each was taken, as well as it is known."""
        return self.before_ns + (self.after_ns - self.before_ns) // 2

    def to_trace(self) -> PowerTrace:
        """The energy that the readings stand for. A counter's reading between two of its updates says nothing
        about when the energy flowed, so it is no edge."""
        if self.quantity == "energy_j":
            t_ns, kept = self._stamps(), self._news()
            return PowerTrace.from_counter(self.domain, t_ns[kept], self.value[kept], self.wraps_at_j)
        return PowerTrace.from_samples(self.domain, self.middle_ns, self.value)

    def _stamps(self) -> Int64:
        return self.middle_ns if self.stamp_ns is None else self.stamp_ns

    def _news(self) -> NDArray[np.bool_]:
        """Which readings have a new value, or an old one for longer than an update takes."""
        changed = np.concatenate(([True], np.diff(self.value) != 0))[: len(self)]
        if self.domain.update_period_s is None:
            return np.ones(len(self), bool)
        t = self._stamps()
        since_ns = t - np.maximum.accumulate(np.where(changed, t, t[:1]))
        return np.asarray(changed | (since_ns > 1.5 * self.domain.update_period_s * NS_PER_S))


class Watcher:
    """Reads channels and writes down what they say, for the doctor and for calibration; the monitor, which
    must not be late, has its own. Each is read by its own schedule, or all every ``every_s``."""

    def __init__(self, channels: Sequence[Channel], every_s: float | None = None) -> None:
        self._channels, self._every_s = channels, every_s
        self._rows: list[list[_Row]] = [[] for _ in channels]
        self._due_ns = [0] * len(channels)
        self._epoch_ns = time.time_ns() - time.monotonic_ns()  # a step of the system clock does no harm

    def go_on(self, seconds: float, until: Callable[[], bool] = lambda: True) -> None:
        """Read for so much longer, and then until something holds; failed readings are left out."""
        end_ns = time.monotonic_ns() + round(seconds * NS_PER_S)
        while time.monotonic_ns() < end_ns or not until():
            for index, channel in enumerate(self._channels):
                if self._due_ns[index] <= time.monotonic_ns():
                    self._read(channel, self._rows[index])
                    self._due_ns[index] = self._next_ns(channel)
            wait_ns = min([*self._due_ns, end_ns]) - time.monotonic_ns()
            if wait_ns > 0:
                time.sleep(wait_ns / NS_PER_S)

    def readings(self) -> list[Readings]:
        """All that was read, by channel."""
        return [_readings(channel, rows) for channel, rows in zip(self._channels, self._rows, strict=True)]

    def _next_ns(self, channel: Channel) -> int:
        now_ns = time.monotonic_ns()
        return (
            channel.schedule.next_ns(now_ns)
            if self._every_s is None
            else now_ns + round(self._every_s * NS_PER_S)
        )

    def _read(self, channel: Channel, rows: list[_Row]) -> None:
        before_ns = time.monotonic_ns()
        try:
            value = channel.read()
        except MeterError:
            return
        after_ns = time.monotonic_ns()
        changed = not rows or value != rows[-1].value
        channel.schedule.saw(before_ns, after_ns, changed)
        stamp = channel.schedule.stamp_ns if changed and rows else _middle
        stamp_ns = stamp(before_ns, after_ns) + self._epoch_ns
        rows.append(_Row(before_ns + self._epoch_ns, after_ns + self._epoch_ns, stamp_ns, value))


def watch(
    channels: Sequence[Channel],
    seconds: float,
    *,
    every_s: float | None = None,
    until: Callable[[], bool] = lambda: True,
) -> list[Readings]:
    """What channels say for so many seconds, and until something holds."""
    watcher = Watcher(channels, every_s)
    watcher.go_on(seconds, until)
    return watcher.readings()


class _Row(NamedTuple):
    before_ns: int
    after_ns: int
    stamp_ns: int
    value: float


def _middle(before_ns: int, after_ns: int) -> int:
    return before_ns + (after_ns - before_ns) // 2


def _readings(channel: Channel, rows: Sequence[_Row]) -> Readings:
    return Readings(
        channel.domain,
        channel.quantity,
        np.array([row.before_ns for row in rows], np.int64),
        np.array([row.after_ns for row in rows], np.int64),
        np.array([row.value for row in rows], np.float64),
        channel.wraps_at_j,
        np.array([row.stamp_ns for row in rows], np.int64),
    )
