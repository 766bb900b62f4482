"""The energy of one execution, from replays of an operation by itself.

A replay runs an operation over and over, long against the meter's period. Only the meter's whole intervals
inside it count, without those in which the load was still coming up: so no edge of an interval is guessed.
What carries over to a program is the energy of one execution at the program's clocks
(``joulemap.calibration.clocks``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from joulemap.accounting.student import NORMAL_975
from joulemap.traces import PowerTrace
from joulemap.units import NS_PER_S

TRANSFER_RMS = 0.035
"""How far the cost by itself is from the cost in a program, beyond all spread: caches, values, neighbours. On
an H200 87 operations of seven programs were off by 2.7 % (rms) when compared with repeating them in place,
1.1 % of it beyond what that is unsure of itself, and eight kernels by 2.5 %. Others may be further off."""
UNKNOWN_RMS, ASSUMED = 0.02, 2
"""The spread that is assumed where nothing was replayed twice, and as how much that counts where something
was: few passes may happen to agree. Replays on an H200 differ by 0.6 % from pass to pass."""
FAR = 4.0
"""So many times as far apart as those of others, the passes of an operation were disturbed, and tell nothing
of others: where spread is normal, that happens once in ten thousand times."""
SETTLING_S, LAG_S = 0.15, 0.02
"""The load of a replay is not yet level: one update of a slow counter, and its edge. Where clocks were waited
for, it is, and the meter knows of it a little later."""


@dataclass(frozen=True, slots=True)
class Replay:
    """One operation, executed over and over between two instants. Marks say how often by when (epoch ns), and
    the clocks (MHz) since the mark before; without them it was executed evenly, at clocks that nobody
    knows."""

    key: str
    start_ns: int
    end_ns: int
    executions: int
    marks: Sequence[tuple[float, float, float]] = ()

    @property
    def level_ns(self) -> int:
        """From when on the load is level."""
        known = any(mhz > 0 for _, _, mhz in self.marks)
        return self.start_ns + round((LAG_S if known else SETTLING_S) * NS_PER_S)

    def executions_between(self, begin_ns: int, end_ns: int) -> float:
        """How often it was executed, between two instants inside."""
        marks = self.marks or ((self.start_ns, 0, 0.0), (self.end_ns, self.executions, 0.0))
        times_ns, counts = ([mark[part] - marks[0][part] for mark in marks] for part in (0, 1))
        instants = [begin_ns - marks[0][0], end_ns - marks[0][0]]
        before, after = np.interp(instants, times_ns, counts)
        return float(after - before)

    def clock_between(self, begin_ns: int, end_ns: int) -> float:
        """The usual clocks, by every look until the first one after the end; 0 where they are not known."""
        later = [number for number, (t_ns, *_) in enumerate(self.marks) if t_ns >= end_ns][:1]
        marks = self.marks[: later[0] + 1] if later else self.marks
        seen = [mhz for t_ns, _, mhz in marks if t_ns > begin_ns and mhz > 0]
        return float(np.median(seen)) if seen else 0.0


@dataclass(frozen=True, slots=True)
class Cost:
    """What one execution takes by itself: joules, seconds, how far off the joules may be (relative, as an
    rms), and at which clocks that was, 0 where they are not known. ``eased_j`` and ``eased_s`` are what it
    takes with waits in between, at the higher clocks ``eased_mhz``; 0 where nothing lowers its clocks, or
    nobody looked. At clocks at which nobody saw it, it may take ``scaled_s`` instead, if its time goes with
    them."""

    energy_j: float
    seconds: float
    rms: float
    passes: int
    clock_mhz: float = 0.0
    eased_j: float = 0.0
    eased_mhz: float = 0.0
    eased_s: float = 0.0
    scaled_s: float = 0.0

    @property
    def power_w(self) -> float:
        return self.energy_j / self.seconds

    @property
    def half_j(self) -> float:
        """Half the 95 % interval of the joules, as far as the replays tell."""
        return NORMAL_975 * self.rms * self.energy_j

    @property
    def is_clear(self) -> bool:
        """Whether the joules can be told from none at all."""
        return self.energy_j > self.half_j

    def refined(self, later: Cost) -> Cost:
        """By a later calibration: both together where each has one pass. What it takes with waits in between
        is as it was where nobody looked again."""
        if later.passes == self.passes == 1:
            joules, seconds = (self.energy_j + later.energy_j) / 2, (self.seconds + later.seconds) / 2
            clocks = [one.clock_mhz for one in (self, later) if one.clock_mhz]
            clock_mhz = sum(clocks) / max(len(clocks), 1)
            apart = abs(later.energy_j - self.energy_j) / (2 * joules)
            rms = max(float(np.hypot(self.rms, later.rms)) / 2, apart)
            later = Cost(joules, seconds, rms, 2, clock_mhz, later.eased_j, later.eased_mhz, later.eased_s)
        if later.eased_mhz or not later.clock_mhz:
            return later
        return replace(later, eased_j=self.eased_j, eased_mhz=self.eased_mhz, eased_s=self.eased_s)

    def to_json(self) -> dict[str, float | int]:
        return {
            "energy_j": self.energy_j,
            "seconds": self.seconds,
            "rms": self.rms,
            "passes": self.passes,
            "clock_mhz": self.clock_mhz,
            "eased_j": self.eased_j,
            "eased_mhz": self.eased_mhz,
            "eased_s": self.eased_s,
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Cost:
        return cls(
            float(content["energy_j"]),
            float(content["seconds"]),
            float(content["rms"]),
            int(content["passes"]),
            *(float(content.get(name, 0.0)) for name in ("clock_mhz", "eased_j", "eased_mhz", "eased_s")),
        )


@dataclass(frozen=True, slots=True)
class Window:
    """The meter's whole intervals between two instants, and what was drawn in them."""

    begin_ns: int
    end_ns: int
    energy_j: float

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.begin_ns) / NS_PER_S


def window(power: PowerTrace, start_ns: int, end_ns: int) -> Window | None:
    """The whole intervals between two instants; None where no interval is whole."""
    begins = int(np.searchsorted(power.edges_ns, start_ns))
    ends = int(np.searchsorted(power.edges_ns, end_ns, side="right")) - 1
    if ends <= begins:
        return None
    joules = float(power.energy_j[begins:ends].sum())
    return Window(int(power.edges_ns[begins]), int(power.edges_ns[ends]), joules)


def level_power_w(power: PowerTrace, start_ns: int, end_ns: int) -> float | None:
    """The mean power in whole intervals between two instants, once the load is level."""
    seen = window(power, start_ns + round(SETTLING_S * NS_PER_S), end_ns)
    return None if seen is None else seen.energy_j / seen.seconds


def costs(replays: Iterable[Replay], power: PowerTrace) -> dict[str, Cost]:
    """The cost of every operation that was replayed long enough for the meter to see it."""
    passes: dict[str, list[tuple[float, float, float]]] = {}
    for one in replays:
        seen = window(power, one.level_ns, one.end_ns)
        many = 0.0 if seen is None else one.executions_between(seen.begin_ns, seen.end_ns)
        if seen is not None and many > 0:
            clock_mhz = one.clock_between(seen.begin_ns, seen.end_ns)
            passes.setdefault(one.key, []).append((seen.energy_j / many, seen.seconds / many, clock_mhz))
    spread = _Spread.of([[joules for joules, *_ in some] for some in passes.values()])
    return {key: _cost(some, spread) for key, some in passes.items()}


def _cost(passes: Sequence[tuple[float, float, float]], spread: _Spread) -> Cost:
    joules, seconds, _ = np.mean(passes, axis=0).tolist()
    clocks = [mhz for *_, mhz in passes if mhz > 0]
    clock_mhz = float(np.mean(clocks)) if clocks else 0.0
    rms = spread.of_passes([one for one, *_ in passes])
    return Cost(joules, seconds, float(rms / np.sqrt(len(passes))), len(passes), clock_mhz)


@dataclass(frozen=True, slots=True)
class _Spread:
    """The relative spread from pass to pass: ``pooled``, that of all operations together, since a few passes
    of one say little; and ``most``, beyond which an operation has its own."""

    pooled: float
    most: float

    @classmethod
    def of(cls, passes: Iterable[Sequence[float]]) -> _Spread:
        """Of the passes of each operation. One that was disturbed counts as the most that others have."""
        known = [(_variance(one), len(one) - 1) for one in passes if len(one) > 1 and np.mean(one) > 0]
        usual = [variance / _median_part(freedom) for variance, freedom in known]
        usual += [UNKNOWN_RMS**2] * ASSUMED
        most = FAR**2 * max(float(np.median(usual)), UNKNOWN_RMS**2)
        squares = sum(min(variance, most) * freedom for variance, freedom in known)
        freedom = ASSUMED + sum(freedom for _, freedom in known)
        return cls(float(np.sqrt((ASSUMED * UNKNOWN_RMS**2 + squares) / freedom)), float(np.sqrt(most)))

    def of_passes(self, joules: Sequence[float]) -> float:
        """That of one operation."""
        own = float(np.sqrt(_variance(joules))) if len(joules) > 1 and np.mean(joules) > 0 else 0.0
        return max(own, self.pooled) if own > self.most else self.pooled


def _variance(joules: Sequence[float]) -> float:
    """Relative to the mean."""
    relative = np.asarray(joules) / np.mean(joules) - 1
    return float(relative @ relative) / (len(joules) - 1)


def _median_part(freedom: int) -> float:
    """What part of its mean the median of such a variance is, where spread is normal, by Wilson and
    Hilferty."""
    return float((1 - 2 / (9 * freedom)) ** 3)
