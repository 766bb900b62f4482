"""What one execution of an operation costs inside of a program: the energy that further ones add to a step.

Steps in which a target was repeated lie between plain ones; the two sides of a border are compared, so that a
slow drift of temperature or clocks cancels. All of the real program is in it: clocks, caches, neighbours.

A GPU that waits for its host waits less, or longer, when there is more to launch. That is not the
operation's: what a step took longer, beyond the time of the executions that were added, counts as idle power.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from joulemap.accounting.student import student_975
from joulemap.calibration.cost import level_power_w
from joulemap.recorder.experiment import PLAIN
from joulemap.traces import PowerTrace
from joulemap.units import NS_PER_S

LONG_PERIODS = 3
"""A step of so many updates of the meter is long."""
FEWEST = 3
"""Blocks of repeated steps, before an interval is believed."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Steps from one border to the next, all plain or all with one target repeated."""

    target: int
    start_ns: int
    end_ns: int
    steps: int
    seen: Mapping[int, int]
    extra: int

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> Stretch:
        """As the program's side wrote it."""
        seen = {int(target): int(count) for target, count in said["seen"].items()}
        target, start_ns, end_ns = int(said["target"]), int(said["start_ns"]), int(said["end_ns"])
        return cls(target, start_ns, end_ns, int(said["steps"]), seen, int(said["extra"]))

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.start_ns) / NS_PER_S


@dataclass(frozen=True, slots=True)
class Truth:
    """Of one target: joules of one execution with half of their 95 % interval, how often it is executed in a
    plain step, in how many blocks it was repeated, and what of the joules stands for waiting that was not
    its own."""

    energy_j: float
    half_j: float
    executions: float
    blocks: int
    waiting_j: float = 0.0

    @property
    def relative(self) -> float:
        """Half of the interval, as a part of the energy."""
        return self.half_j / self.energy_j if self.energy_j > 0 else float("inf")

    @property
    def step_j(self) -> float:
        return self.energy_j * self.executions


def plain(stretches: Sequence[Stretch]) -> list[Stretch]:
    """Those in which nothing was repeated."""
    return [one for one in stretches if one.target == PLAIN and one.steps]


def truth_of(
    target: int,
    stretches: Sequence[Stretch],
    power: PowerTrace,
    busy_s: float = 0.0,
    idle_w: float = 0.0,
) -> Truth | None:
    """From every block in which the target was repeated, and its plain neighbours; None where no block has
    both. ``busy_s`` is the device's time for it in a plain step, ``idle_w`` the device's power while it
    waits: 0 where the host is the device."""
    base = plain(stretches)
    steps = sum(one.steps for one in base)
    executions = sum(one.seen.get(target, 0) for one in base) / steps if steps else 0.0
    each_s = busy_s / executions if executions else 0.0
    found = [
        _one(stretches, number, power, each_s, idle_w)
        for number, one in enumerate(stretches)
        if one.target == target and one.extra
    ]
    known = np.array([pair for pair in found if pair is not None]).reshape(-1, 2)
    if not len(known):
        return None
    each, waiting = known.mean(axis=0)
    half = np.inf
    if len(known) > 1:
        half = student_975(len(known) - 1) * known[:, 0].std(ddof=1) / np.sqrt(len(known))
    return Truth(float(each), float(half), executions, len(known), float(waiting))


def _one(
    stretches: Sequence[Stretch], number: int, power: PowerTrace, each_s: float, idle_w: float
) -> tuple[float, float] | None:
    """The energy of one execution from one block, and what was taken off for waiting."""
    block = stretches[number]
    around = [
        *plain(stretches[:number])[-1:],
        *plain(stretches[number + 1 :])[:1],
    ]
    known = [one for one in (block, *around) if one.end_ns <= power.edges_ns[-1]] if len(power) else []
    if block not in known or len(known) < 2:
        return None
    base = [one for one in known if one is not block]
    steps = sum(one.steps for one in base)
    step_j = sum(energy_j(one, power) for one in base) / steps
    step_s = sum(one.seconds for one in base) / steps
    added_j = energy_j(block, power) - block.steps * step_j
    added_s = block.seconds - block.steps * step_s
    waiting_j = (added_s - block.extra * each_s) * idle_w if each_s else 0.0
    return (added_j - waiting_j) / block.extra, waiting_j / block.extra


def step_energy_j(stretches: Sequence[Stretch], power: PowerTrace) -> float:
    """What a plain step draws."""
    base = plain(stretches)
    steps = sum(one.steps for one in base)
    return sum(energy_j(one, power) for one in base) / steps if steps else 0.0


def energy_j(stretch: Stretch, power: PowerTrace) -> float:
    """What the steps of a stretch drew. The meter's interval across a border holds some of both sides, and to
    share it by time would make the two more alike than they are: of steps that are short against the meter's
    period only whole intervals count. Longer ones begin and end alike, and are taken as they are."""
    watts = None
    if stretch.seconds < LONG_PERIODS * power.period_s * max(stretch.steps, 1):
        watts = level_power_w(power, stretch.start_ns, stretch.end_ns)
    if watts is None:
        return power.energy_between(stretch.start_ns, stretch.end_ns)
    return watts * stretch.seconds
