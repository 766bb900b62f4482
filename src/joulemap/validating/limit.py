"""A GPU that is held at its power limit: there, what is added changes the clocks of everything else.

Let a plain step cost E at the power P, all that the GPU may draw, and let executions that are added cost e
and take t by themselves. Power stays P, so that clocks must change: they go down for what draws more than P
and up for what draws less, and the energy of all others with them. Where energy goes with some power of the
clocks and time with another, a step costs (E + e)^(1 - a) (E + P t)^a then, which is E + (1 - a) e + a P t to
first order, with one and the same a for whatever is added. So what repeating shows is drawn towards P t, the
share by time.

Waiting tells a: it costs idle power whatever the clocks are, and needs no model of any operation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from joulemap.recorder.experiment import WAITING
from joulemap.recording import Recording
from joulemap.traces import Float64, PowerTrace
from joulemap.units import fmt_share
from joulemap.validating.truth import FEWEST, Stretch, Truth, energy_j, plain, truths

NEAR = 0.95
"""Of the limit: a controller keeps a little below."""
MOST_BY_TIME = 0.8
"""Where more than that goes by time, what is left of an operation's own cost cannot be seen."""
ALMOST_ALL = 0.95
LIMIT, CLOCK = "power_limit_w", "sm_clock_mhz"


@dataclass(frozen=True, slots=True)
class Limit:
    """What plain steps draw, of how much; ``by_time`` is the a of above with half of its 95 % interval, None
    where too few waits were added to know it."""

    device: str
    limit_w: float
    level_w: float
    step_j: float
    clocks_mhz: tuple[float, float] | None
    by_time: float | None = None
    half: float = 0.0

    @property
    def is_known(self) -> bool:
        return self.by_time is not None and self.by_time <= MOST_BY_TIME

    def freed(self, truth: Truth, busy_s: float) -> Truth:
        """What an execution costs by itself, of what it made a step cost more; ``busy_s`` is the device's
        time for all executions in a plain step."""
        if self.by_time is None or not self.is_known or not truth.executions:
            return truth
        at_level_j = self.level_w * busy_s / truth.executions
        alone = partial(self._alone_j, again=truth.again, at_level_j=at_level_j)
        energy_j = alone(truth.energy_j, self.by_time)
        of_truth_j = alone(truth.energy_j + truth.half_j, self.by_time) - energy_j
        of_waits_j = alone(truth.energy_j, min(self.by_time + self.half, ALMOST_ALL)) - energy_j
        half_j = float(np.hypot(of_truth_j, of_waits_j))
        return replace(truth, energy_j=energy_j, half_j=half_j, limit_j=truth.energy_j - energy_j)

    def _alone_j(self, added_j: float, by_time: float, again: float, at_level_j: float) -> float:
        """The e of above, of one of ``again`` executions that cost ``added_j`` each."""
        together_j, by_time_j = (self.step_j + again * one for one in (added_j, at_level_j))
        whole_j = (max(together_j, 0.0) / by_time_j**by_time) ** (1 / (1 - by_time))
        return float((whole_j - self.step_j) / again)

    def remarks(self) -> list[str]:
        """What to say of it."""
        clocks = self.clocks_mhz
        at = "" if clocks is None else f", at clocks of {clocks[0]:.0f} to {clocks[1]:.0f} MHz"
        part = fmt_share(self.level_w / self.limit_w)
        drew = f"{self.device} drew {part} of the {self.limit_w:.0f} W that it may{at}"
        changes = f"{drew}: there, an execution that is added changes the clocks of all others"
        if self.by_time is None or not self.is_known:
            return [
                f"{changes}, so that the truth of what draws much may come out too low, and that of what "
                "draws little too high."
            ]
        part = f"{fmt_share(self.by_time)} ± {100 * self.half:.1f} %"
        return [
            f"{changes}. Waits that were added show that {part} of what one costs goes by its time there; "
            "that is taken off the truths."
        ]

    def to_json(self) -> Mapping[str, Any]:
        return asdict(self)


def is_reached(recording: Recording, power: PowerTrace, base: Sequence[Stretch]) -> bool:
    """Whether plain steps draw as much as the device may."""
    return _of_plain(recording, power, base) is not None


def limit_of(
    recording: Recording, power: PowerTrace, stretches: Sequence[Stretch], idle_w: float
) -> Limit | None:
    """The limit that plain steps were held at, and what waits say about it; None where they drew less."""
    found = _of_plain(recording, power, plain(stretches))
    waits = [one for one in stretches if one.target == WAITING and one.extra]
    truth = truths(_everything(stretches), stretches, power).get(WAITING)
    if found is None or truth is None or truth.blocks < FEWEST or idle_w <= 0:
        return found
    wait_s = sum(one.waited_s for one in waits) / sum(one.extra for one in waits)
    by_time = _by_time(found, truth.energy_j, wait_s, idle_w)
    half = _by_time(found, truth.energy_j + truth.half_j, wait_s, idle_w) - by_time
    return replace(found, by_time=max(by_time, 0.0), half=half)


def _by_time(limit: Limit, added_j: float, wait_s: float, idle_w: float) -> float:
    """How much of the change in clocks shows in energy: 1 for all, where the rest is time that is saved."""
    together_j = limit.step_j + added_j
    dearer = np.log((together_j - wait_s * idle_w) / limit.step_j)
    quicker = np.log(limit.step_j / (together_j - wait_s * limit.level_w))
    return float(dearer / (dearer + quicker))


def _everything(stretches: Sequence[Stretch]) -> dict[int, float]:
    """All that was ever repeated."""
    return dict.fromkeys((one.target for one in stretches if one.extra), 0.0)


def _of_plain(recording: Recording, power: PowerTrace, base: Sequence[Stretch]) -> Limit | None:
    limits_w = _facts(recording, f"{power.domain.device} {LIMIT}")
    known = [one for one in base if len(power) and one.end_ns <= power.edges_ns[-1]]
    seconds = sum(one.seconds for one in known)
    if not len(limits_w) or seconds <= 0:
        return None
    limit_w = float(np.median(limits_w))
    level_w = sum(energy_j(one, power) for one in known) / seconds
    if level_w < NEAR * limit_w:
        return None
    clocks = _facts(recording, f"{power.domain.device} {CLOCK}")
    varied = (float(clocks.min()), float(clocks.max())) if len(clocks) else None
    step_j = level_w * seconds / max(sum(one.steps for one in known), 1)
    return Limit(power.domain.device, limit_w, level_w, step_j, varied)


def _facts(recording: Recording, name: str) -> Float64:
    table = recording.table("facts")
    rows = [] if table is None else table.to_pylist()
    return np.array([row["value"] for row in rows if row["name"] == name], np.float64)
