"""When is a machine quiet enough to measure something small on it?

A baseline, or a call that lasts a second, means little while the machine is still busy or cooling down. The
gate opens when three things hold together: the power of every domain is steady, it is near the idle level,
and nothing is hot. Steady alone is not enough: a machine can be steadily busy, and what is then measured
above "idle" comes out negative.

The gate is fed with samples and says why it stays shut; it neither waits nor reads a sensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from joulemap.devices import Device, Domain
from joulemap.errors import InputError
from joulemap.units import fmt, fmt_share


@dataclass(frozen=True)
class GateSettings:
    """The limits. Spread and temperature are FECoM's, by kind of domain; the level is ours.

    A kind that is not named has no limit of temperature and the spread of ``other``.
    """

    samples: int = 20
    """How many of the last samples are looked at."""
    spread: Mapping[str, float] = field(
        default_factory=lambda: {"CPU": 0.03, "DRAM": 0.03, "GPU": 0.01, "other": 0.03}
    )
    """The most that the samples may vary: standard deviation over mean."""
    above_idle: float = 0.1
    """How far over the idle level their mean may be, relative."""
    hottest_c: Mapping[str, float] = field(default_factory=lambda: {"CPU": 55.0, "GPU": 40.0})
    """The highest temperature, in degrees Celsius."""

    def __post_init__(self) -> None:
        if self.samples < 2:
            raise InputError(f"A spread cannot be seen in {self.samples} samples.", "Take two or more.")
        limits = [*self.spread.values(), self.above_idle]
        if not all(limit > 0 for limit in limits):
            raise InputError("A limit of zero is never met.", "Give limits above zero, such as 0.03.")


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the machine is stable, and if not, why not: one sentence for each domain and reason."""

    reasons: tuple[str, ...] = ()

    @property
    def stable(self) -> bool:
        return not self.reasons


def kind_of(domain: Domain) -> str:
    """``DRAM`` for memory, else the kind of device: ``CPU``, ``GPU``."""
    if "dram" in domain.name.lower():
        return "DRAM"
    return Device.parse(domain.device).kind


def judge(
    samples_w: Mapping[Domain, ArrayLike],
    idle_w: Mapping[str, float] | None = None,
    temperatures_c: Mapping[str, float] | None = None,
    settings: GateSettings | None = None,
) -> Verdict:
    """Whether a machine with these last power samples of each domain is stable.

    ``idle_w`` is the idle level by name of the domain; where it is not known, the lowest level that these
    samples had over any ``settings.samples`` in a row, so give all that were taken. ``temperatures_c`` is by
    device, such as ``GPU:0``; what is not known is not judged.
    """
    limits = settings or GateSettings()
    reasons: list[str] = []
    for domain, samples in samples_w.items():
        reasons += _unsteady(domain, np.asarray(samples, np.float64), (idle_w or {}).get(domain.name), limits)
    for device, celsius in (temperatures_c or {}).items():
        hottest_c = limits.hottest_c.get(Device.parse(device).kind)
        if hottest_c is not None and celsius > hottest_c:
            reasons.append(f"{device} is at {celsius:.0f} °C, over {hottest_c:.0f} °C")
    return Verdict(tuple(reasons))


def _unsteady(
    domain: Domain, samples: NDArray[np.float64], idle_w: float | None, limits: GateSettings
) -> list[str]:
    if len(samples) < limits.samples:
        return [f"{domain.name} has {len(samples)} of {limits.samples} samples"]
    last = samples[-limits.samples :]
    level_w = float(last.mean())
    spread = float(last.std(ddof=1)) / level_w if level_w > 0 else 0.0
    most = limits.spread.get(kind_of(domain), limits.spread.get("other", 0.03))
    reasons = []
    if spread > most:
        reasons.append(f"{domain.name} varies by {fmt_share(spread)}, over {fmt_share(most)}")
    low_w = idle_w if idle_w is not None else _lowest_level_w(samples, limits.samples)
    if level_w > low_w * (1 + limits.above_idle):
        reasons.append(f"{domain.name} draws {fmt(level_w, 'W')}, while idle is {fmt(low_w, 'W')}")
    return reasons


def _lowest_level_w(samples: NDArray[np.float64], count: int) -> float:
    return float(np.lib.stride_tricks.sliding_window_view(samples, count).mean(axis=1).min())
