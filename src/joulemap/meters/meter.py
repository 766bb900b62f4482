"""What a meter is: one vendor's sensors, probed, opened and read.

A meter never waits: the sampler owns time. It reads one number when asked, in joules or watts, converted
once, here. ``probe`` says whether it works on this machine, and if not, why not and what to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from joulemap.devices import Domain

Quantity = Literal["energy_j", "power_w"]
"""A running total of energy, or power at the moment of reading."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Whether a meter works here. ``reason`` is a sentence for the user; ``remedy`` says what would help."""

    available: bool
    reason: str
    remedy: str = ""


class Schedule(Protocol):
    """When to read a sensor: at a fixed rate, or close to its updates once their phase is learnt."""

    def next_ns(self, now_ns: int) -> int:
        """The next time to read, later than now, on the clock of now."""
        ...

    def saw(self, before_ns: int, after_ns: int, changed: bool) -> None:
        """A reading took place between these times, and its value was new or the same as before."""
        ...

    def stamp_ns(self, before_ns: int, after_ns: int) -> int:
        """When the new value came about that the reading between these times saw; asked after ``saw``."""
        ...


class Channel(Protocol):
    """One domain of an open meter."""

    @property
    def domain(self) -> Domain:
        """What is measured, on which device, and how often the sensor updates."""
        ...

    @property
    def quantity(self) -> Quantity:
        """What ``read`` returns."""
        ...

    @property
    def wraps_at_j(self) -> float | None:
        """Where a running total starts again at zero; None where it does not."""
        ...

    @property
    def schedule(self) -> Schedule:
        """When to read: often enough to place every update, seldom enough to cost little."""
        ...

    def read(self) -> float:
        """The quantity now. ``MeterError`` where it cannot be read at this moment; a later try may work."""
        ...

    def close(self) -> None:
        """Let go of files and handles; nothing else may be called afterwards."""
        ...


@runtime_checkable
class LateChannel(Protocol):
    """A channel whose readings arrive some time after they were taken, from somewhere else."""

    def settle(self) -> int:
        """Before the end: wait for what was taken until now, and say how many readings are there to be read.
        It does not wait long, and never raises."""
        ...


class Meter(Protocol):
    """A family of sensors that are read in one way."""

    @property
    def name(self) -> str:
        """A short word, as in ``joulemap doctor``: ``rapl``, ``nvml``."""
        ...

    def probe(self) -> Probe:
        """Whether it can be opened here and now; never raises, never changes anything."""
        ...

    def open(self) -> Sequence[Channel]:
        """Open every domain that can be read. ``MeterError`` where ``probe`` would say no."""
        ...

    def facts(self) -> Mapping[str, float]:
        """What explains the energy, read about once a second: ``GPU:0 sm_clock_mhz``, ``CPU:0 load_percent``.
        Names end in their unit. Empty where nothing is known; never raises."""
        ...
