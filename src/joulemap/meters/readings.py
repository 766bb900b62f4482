"""What a sensor said, reading by reading, and a loop that writes it down."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from joulemap.devices import Domain
from joulemap.errors import InputError, MeterError
from joulemap.meters.meter import Channel, Quantity
from joulemap.traces import Float64, Int64, PowerTrace
from joulemap.units import NS_PER_S


@dataclass(frozen=True, eq=False)
class Readings:
    """Raw readings of one domain: each took place between ``before_ns`` and ``after_ns`` (epoch)."""

    domain: Domain
    quantity: Quantity
    before_ns: Int64
    after_ns: Int64
    value: Float64
    wraps_at_j: float | None = None

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
            kept = self._news()
            return PowerTrace.from_counter(
                self.domain, self.middle_ns[kept], self.value[kept], self.wraps_at_j
            )
        return PowerTrace.from_samples(self.domain, self.middle_ns, self.value)

    def _news(self) -> NDArray[np.bool_]:
        """Which readings have a new value, or an old one for longer than an update takes."""
        changed = np.concatenate(([True], np.diff(self.value) != 0))[: len(self)]
        if self.domain.update_period_s is None:
            return np.ones(len(self), bool)
        t = self.middle_ns
        since_ns = t - np.maximum.accumulate(np.where(changed, t, t[:1]))
        return np.asarray(changed | (since_ns > 1.5 * self.domain.update_period_s * NS_PER_S))


def joined(first: Readings, then: Readings) -> Readings:
    """One after the other."""
    return replace(
        first,
        before_ns=np.concatenate((first.before_ns, then.before_ns)),
        after_ns=np.concatenate((first.after_ns, then.after_ns)),
        value=np.concatenate((first.value, then.value)),
    )


def watch(
    channels: Sequence[Channel],
    seconds: float,
    *,
    every_s: float | None = None,
    go_on: Callable[[], bool] = lambda: False,
    on_progress: Callable[[float], None] | None = None,
) -> list[Readings]:
    """Read channels for so long, and for as long as ``go_on`` says, each by its own schedule or all every
    ``every_s``; failed readings are left out. For the doctor and for calibration; the monitor has its own.
    """
    rows: list[list[tuple[int, int, float]]] = [[] for _ in channels]
    epoch_ns = time.time_ns() - time.monotonic_ns()  # so that a step of the system clock does no harm
    start_ns = time.monotonic_ns()
    due = [start_ns] * len(channels)
    while (now_ns := time.monotonic_ns()) < start_ns + seconds * NS_PER_S or go_on():
        for index, channel in enumerate(channels):
            if due[index] <= now_ns:
                _read(channel, rows[index], epoch_ns)
                then_ns = time.monotonic_ns()
                due[index] = (
                    then_ns + round(every_s * NS_PER_S)
                    if every_s is not None
                    else channel.schedule.next_ns(then_ns)
                )
        if on_progress is not None:
            on_progress((now_ns - start_ns) / NS_PER_S / seconds)
        wait_ns = min(due, default=now_ns) - time.monotonic_ns()
        if wait_ns > 0:
            time.sleep(min(wait_ns / NS_PER_S, seconds))
    return [_readings(channel, taken) for channel, taken in zip(channels, rows, strict=True)]


def _read(channel: Channel, rows: list[tuple[int, int, float]], epoch_ns: int) -> None:
    before_ns = time.monotonic_ns()
    try:
        value = channel.read()
    except MeterError:
        return
    after_ns = time.monotonic_ns()
    changed = not rows or value != rows[-1][2]
    rows.append((before_ns + epoch_ns, after_ns + epoch_ns, value))
    channel.schedule.saw(before_ns, after_ns, changed)


def _readings(channel: Channel, rows: Sequence[tuple[int, int, float]]) -> Readings:
    return Readings(
        channel.domain,
        channel.quantity,
        np.array([row[0] for row in rows], np.int64),
        np.array([row[1] for row in rows], np.int64),
        np.array([row[2] for row in rows], np.float64),
        channel.wraps_at_j,
    )
