"""The energy of one execution, from replays of an operation by itself.

A replay runs an operation over and over, long against the meter's period. Only the meter's whole intervals
inside it count, without those in which the load was still coming up: so no edge of an interval is guessed.
What carries over to a program is the energy of one execution at the program's clocks. Back to back an
operation may run into the power limit and get slower and cheaper, so where the program's device rests now and
then, replays do, too; the rests are taken off at idle power.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from joulemap.accounting.student import NORMAL_975
from joulemap.traces import PowerTrace
from joulemap.units import NS_PER_S

TRANSFER_RMS = 0.025
"""How far the cost by itself is from the cost in a program, beyond all spread: caches, clocks, neighbours.
Eight kernels on an H200 were off by so much (rms) when compared with repeating them in place."""
UNKNOWN_RMS = 0.05
"""The spread that is assumed where nothing was replayed twice."""
SETTLING_S = 0.15
"""The load of a replay is not yet level: one update of a slow counter, and its edge."""


@dataclass(frozen=True, slots=True)
class Replay:
    """One operation, executed over and over between two instants, with rests of so many seconds in all."""

    key: str
    start_ns: int
    end_ns: int
    executions: int
    rested_s: float = 0.0

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.start_ns) / NS_PER_S

    @property
    def seconds_each(self) -> float:
        return (self.seconds - self.rested_s) / self.executions

    def joules_each(self, watts: float, idle_w: float) -> float:
        """What is left for one execution of the mean power that was drawn."""
        return (watts * self.seconds - idle_w * self.rested_s) / self.executions


@dataclass(frozen=True, slots=True)
class Cost:
    """What one execution takes by itself: joules, seconds, and how far off the joules may be (relative, as
    an rms)."""

    energy_j: float
    seconds: float
    rms: float
    passes: int

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

    def to_json(self) -> dict[str, float | int]:
        return {
            "energy_j": self.energy_j,
            "seconds": self.seconds,
            "rms": self.rms,
            "passes": self.passes,
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Cost:
        return cls(
            float(content["energy_j"]),
            float(content["seconds"]),
            float(content["rms"]),
            int(content["passes"]),
        )


def level_power_w(power: PowerTrace, start_ns: int, end_ns: int) -> float | None:
    """The mean power over the meter's whole intervals between two instants, once the load is level; None
    where no interval is whole."""
    begins = np.searchsorted(power.edges_ns, start_ns + round(SETTLING_S * NS_PER_S))
    ends = int(np.searchsorted(power.edges_ns, end_ns, side="right")) - 1
    if ends <= begins:
        return None
    seconds = (power.edges_ns[ends] - power.edges_ns[begins]) / NS_PER_S
    return float(power.energy_j[begins:ends].sum() / seconds)


def costs(replays: Iterable[Replay], power: PowerTrace, idle_w: float = 0.0) -> dict[str, Cost]:
    """The cost of every operation that was replayed long enough for the meter to see it; ``idle_w`` is drawn
    where a replay rests."""
    seen: dict[str, list[tuple[float, float]]] = {}
    for one in replays:
        watts = level_power_w(power, one.start_ns, one.end_ns)
        if watts is not None:
            seen.setdefault(one.key, []).append((one.joules_each(watts, idle_w), one.seconds_each))
    rms = _spread([[joules for joules, _ in passes] for passes in seen.values()])
    return {key: _cost(passes, rms) for key, passes in seen.items()}


def _cost(passes: Sequence[tuple[float, float]], rms: float) -> Cost:
    joules, seconds = np.mean(passes, axis=0)
    return Cost(float(joules), float(seconds), float(rms / np.sqrt(len(passes))), len(passes))


def _spread(passes: Sequence[Sequence[float]]) -> float:
    """The relative spread from pass to pass, of all operations together: a few passes of one say little."""
    squares, freedom = 0.0, 0
    for one in passes:
        if len(one) > 1 and np.mean(one) > 0:
            relative = np.asarray(one) / np.mean(one) - 1
            squares += float(relative @ relative)
            freedom += len(one) - 1
    return float(np.sqrt(squares / freedom)) if freedom else UNKNOWN_RMS
