"""What one execution of an operation costs inside of a program: the energy that further ones add to a step.

Steps in which a target was repeated lie between plain ones; those before and after it are what it is compared
with, so that a slow drift of temperature or clocks cancels. All of the real program is in it: clocks, caches,
neighbours.

A GPU that waits for its host waits less, or longer, when there is more to launch, and one that is eased waits
after each execution. That is not the operation's: what a step took longer, beyond the time of the executions
that were added, counts as idle power.

A few blocks of one target say little of how much blocks vary, and to stop once they happen to agree would
make intervals too narrow. So the blocks of all others have a say in it: their joules vary for the same
reasons.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from joulemap.accounting.student import NORMAL_975, student_975
from joulemap.traces import Float64
from joulemap.validating.easing import ALIKE_RMS, LAW_RMS, REST_RMS, Easing
from joulemap.validating.metered import Metered
from joulemap.validating.stretch import Stretch, plain

FEWEST = 2
"""Blocks of repeated steps, before an interval is believed."""
NEAR = 2
"""Stretches of plain steps on each side that a block is compared with."""
OTHERS = 4
"""The blocks of all other targets count as so many of a target's own, in how much they vary."""


@dataclass(frozen=True, slots=True)
class Truth:
    """Of one target: joules of one execution with half of their 95 % interval, how often it is executed in a
    plain step, in how many blocks it was repeated, and what of the joules that it added was taken off, for
    waiting that was not its own. ``law`` is what clocks change of it, as a part of what they change of the
    whole program's work."""

    energy_j: float
    half_j: float
    executions: float
    blocks: int
    waiting_j: float = 0.0
    law: float = 1.0

    @property
    def relative(self) -> float:
        """Half of the interval, as a part of the energy."""
        return self.half_j / self.energy_j if self.energy_j > 0 else float("inf")

    @property
    def step_j(self) -> float:
        return self.energy_j * self.executions

    def scaled(self, easing: Easing, law: float | None = None) -> Truth:
        """At the program's own clocks, with what is not known of that; by its own law, or as all work."""
        scale = easing.scale * (1.0 if law is None else law)
        rms = ALIKE_RMS if law is None else LAW_RMS
        doubt = np.hypot(easing.half / easing.scale, NORMAL_975 * rms * easing.apart)
        half_j = scale * float(np.hypot(self.half_j, doubt * self.energy_j))
        return replace(self, energy_j=scale * self.energy_j, half_j=half_j, law=scale / easing.scale)


def truths(
    busy_s: Mapping[int, float],
    stretches: Sequence[Stretch],
    metered: Metered,
    idle_w: float = 0.0,
    easing: Easing | None = None,
    laws: Mapping[int, float] = {},
) -> dict[int, Truth]:
    """Of each target, from every block in which it was repeated and its neighbours in which nothing was;
    those without such a block have none. ``busy_s`` is the device's time for a target in a traced step,
    ``idle_w`` the device's power while it waits, for its host or because it is eased: 0 where it does not, or
    where nothing is known of it. ``easing`` says how truths of eased steps are those of plain ones, and
    ``laws`` how those of single targets differ in that."""
    base = [one for one in stretches if one.target < 0]
    steps = max(sum(one.steps for one in base), 1)
    blocks = {}
    for target, seconds in busy_s.items():
        executions = sum(one.seen.get(target, 0) for one in base) / steps
        each_s = seconds / executions if executions else 0.0
        found = Blocks.of(target, stretches, metered, executions, each_s, idle_w)
        if len(found.added_j):
            blocks[target] = found
    told = {
        target: one.truth([other for other in blocks.values() if other is not one])
        for target, one in blocks.items()
    }
    if easing is None:
        return told
    return {target: one.scaled(easing, laws.get(target)) for target, one in told.items()}


@dataclass(frozen=True, eq=False, slots=True)
class Blocks:
    """All blocks of one target: what each drew, how much of that was added, by how many executions, and what
    was taken off."""

    executions: float
    drawn_j: Float64
    added_j: Float64
    waiting_j: Float64
    extra: Float64

    @classmethod
    def of(
        cls,
        target: int,
        stretches: Sequence[Stretch],
        metered: Metered,
        executions: float,
        each_s: float,
        idle_w: float,
    ) -> Blocks:
        """Those of them that the meter has seen to their ends."""
        numbers = [number for number, one in enumerate(stretches) if one.target == target and one.extra]
        found = [(_one(stretches, number, metered, each_s, idle_w), stretches[number]) for number in numbers]
        known = [(*joules, one.extra) for joules, one in found if joules is not None]
        return cls(executions, *np.array(known, np.float64).reshape(-1, 4).T)

    @property
    def squares(self) -> float:
        """What the blocks are off their mean, relative to what they drew, squared and added up."""
        each_j = self.added_j / self.extra
        return float((((each_j - each_j.mean()) * self.extra / self.drawn_j) ** 2).sum())

    @property
    def freedom(self) -> int:
        return len(self.added_j) - 1

    def truth(self, others: Sequence[Blocks]) -> Truth:
        """The mean, with an interval to which the others contribute how much blocks vary."""
        count, extra = len(self.added_j), float(self.extra.mean())
        theirs = sum(one.freedom for one in others)
        usual = sum(one.squares for one in others) / theirs if theirs else 0.0
        weight = min(theirs, OTHERS)
        freedom, half_j = self.freedom + weight, np.inf
        if freedom:
            rms = float(np.sqrt((self.squares + weight * usual) / freedom))
            half_j = student_975(freedom) * rms * float(self.drawn_j.mean() / np.sqrt(count)) / extra
        each_j, waiting_j = (float((joules / self.extra).mean()) for joules in (self.added_j, self.waiting_j))
        half_j = np.hypot(half_j, NORMAL_975 * REST_RMS * waiting_j)
        return Truth(each_j, float(half_j), self.executions, count, waiting_j)


def _one(
    stretches: Sequence[Stretch], number: int, metered: Metered, each_s: float, idle_w: float
) -> tuple[float, float, float] | None:
    """What one block drew, what of it was added, and what was taken off that for waiting."""
    block = stretches[number]
    around = [
        *plain(stretches[:number], block.ease)[-NEAR:],
        *plain(stretches[number + 1 :], block.ease)[:NEAR],
    ]
    known = [one for one in (block, *around) if metered.knows(one)]
    if block not in known or len(known) < 2:
        return None
    base = [one for one in known if one is not block]
    steps = sum(one.steps for one in base)
    step_j = sum(metered.energy_j(one) for one in base) / steps
    step_s = sum(one.seconds for one in base) / steps
    drawn_j = metered.energy_j(block)
    added_j = drawn_j - block.steps * step_j
    added_s = block.seconds - block.steps * step_s
    waiting_j = (added_s - block.extra * each_s) * idle_w if each_s else 0.0
    return drawn_j, added_j - waiting_j, waiting_j


def step_energy_j(stretches: Sequence[Stretch], metered: Metered) -> float:
    """What a plain step draws."""
    base = plain(stretches)
    steps = sum(one.steps for one in base)
    return sum(metered.energy_j(one) for one in base) / steps if steps else 0.0
