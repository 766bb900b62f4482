"""When is a machine quiet enough to measure something small on it?

A baseline, or a call that lasts a second, means little while the machine is still busy or cooling down. The
gate opens when four things hold together: the power of every domain is steady, it is near the idle level,
nothing is at work, and nothing is hot. Steady alone is not enough: a machine can be steadily busy, and what
is then measured above "idle" comes out negative.

The gate is fed with samples and facts and says why it stays shut, and what it could not judge; it neither
waits nor reads a sensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from joulemap.devices import Device, Domain
from joulemap.errors import InputError
from joulemap.units import fmt, fmt_share


@dataclass(frozen=True)
class GateSettings:
    """The limits. Spread and temperature are FECoM's, by kind of domain; level and load are ours.

    A kind that is not named has no limit of temperature and load, and the spread of ``other``.
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
    busiest_percent: Mapping[str, float] = field(default_factory=lambda: {"CPU": 10.0, "GPU": 5.0})
    """The highest load: a machine at rest has some housekeeping to do."""

    def __post_init__(self) -> None:
        if self.samples < 2:
            raise InputError(f"A spread cannot be seen in {self.samples} samples.", "Take two or more.")
        limits = [*self.spread.values(), self.above_idle]
        if not all(limit > 0 for limit in limits):
            raise InputError("A limit of zero is never met.", "Give limits above zero, such as 0.03.")


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the machine is stable, and if not, why not: one sentence for each domain and reason. ``notes``
    say what could not be judged; they do not keep the gate shut."""

    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

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
    load_percent: Mapping[str, float] | None = None,
) -> Verdict:
    """Whether a machine with these last power samples of each domain is stable.

    ``idle_w`` is the idle level by name of the domain; where it is not known, the lowest level that these
    samples had over any ``settings.samples`` in a row, so give all that were taken. ``temperatures_c`` and
    ``load_percent`` are by device, such as ``GPU:0``. What is not known is not judged, and noted.
    """
    limits, known_w = settings or GateSettings(), idle_w or {}
    reasons: list[str] = []
    for domain, samples in samples_w.items():
        reasons += _unsteady(domain, np.asarray(samples, np.float64), known_w.get(domain.name), limits)
    reasons += _over(load_percent or {}, limits.busiest_percent, "busy at {:.0f} %, over {:.0f} %")
    reasons += _over(temperatures_c or {}, limits.hottest_c, "at {:.0f} °C, over {:.0f} °C")
    return Verdict(tuple(reasons), tuple(_unjudged(samples_w, known_w, temperatures_c or {}, limits)))


def by_device(facts: Mapping[str, float], *names: str) -> dict[str, float]:
    """A fact of each device, from facts such as ``GPU:0 temperature_c``; the first of the names it has."""
    split = [(name.rpartition(" "), value) for name, value in facts.items() if " " in name]
    return {
        device: value for wanted in reversed(names) for (device, _, what), value in split if what == wanted
    }


def _over(seen: Mapping[str, float], limits: Mapping[str, float], words: str) -> Iterator[str]:
    for device, value in seen.items():
        most = limits.get(Device.parse(device).kind)
        if most is not None and value > most:
            yield f"{device} is {words.format(value, most)}"


def _unjudged(
    domains: Iterable[Domain],
    idle_w: Mapping[str, float],
    temperatures_c: Mapping[str, float],
    limits: GateSettings,
) -> Iterator[str]:
    domains = list(domains)
    unknown = [domain.name for domain in domains if domain.name not in idle_w]
    if unknown:
        yield (
            f"The level of {', '.join(unknown)} could not be judged: no earlier idle baseline is stored, so "
            "it was compared with the lowest level seen this time"
        )
    seen = {Device.parse(device).kind for device in temperatures_c}
    kinds = dict.fromkeys(Device.parse(domain.device).kind for domain in domains)
    for kind in kinds:
        if kind in limits.hottest_c and kind not in seen:
            yield f"The temperature of the {kind} could not be judged: this machine does not show it"


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
