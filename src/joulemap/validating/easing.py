"""Truths of a GPU that draws nearly all that it may.

At its power limit a GPU changes its clocks with whatever is added, and with its clocks what everything else
costs. So there, blocks and the steps between them are eased: after each execution of a target the GPU waits,
for as long as that takes. It is below its limit then, and clocks are the same whatever is repeated.

What is found so is true at the clocks of eased steps. Plain steps tell what the same work takes at the
program's own: both are compared without what is drawn in waits, which is what is drawn in rests. That a host
is slow at times, and has the GPU wait in either, is no difference then. It is the work of a whole step of
which they tell (``joulemap.validating.laws`` has what differs from that).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from joulemap.accounting.student import NORMAL_975, student_975
from joulemap.traces import Float64
from joulemap.validating.metered import Metered
from joulemap.validating.stretch import Stretch, plain

ABOVE = 0.6
"""Of its power limit: a GPU that draws more may come to it when something is repeated."""
EASED = 1.0
"""Waits, in what one execution takes."""
REST_RMS = 0.05
"""How far the power in waits is from that in rests: 115 to 132 W and 123 to 136 W in five runs on an H200."""
LATER = 0.35
"""The power of clocks with which work takes more time at lower ones: products nearly 1, what moves memory 0.
It counts with the power in rests only."""
LAW_RMS, ALIKE_RMS = 0.1, 0.25
"""How far off the power of clocks is with which an operation's energy goes: by its costs, and where it is
said to be that of all work. On an H200 it is 0.3 to 1.1 for single operations."""
WHOLE = 0.6
"""And about that for whole steps."""
FEWEST = 3
"""Stretches of each kind, before they are believed."""
FAR = 5.0
"""A stretch that is so many times as far off as most has had something else come between."""


@dataclass(frozen=True, slots=True)
class Easing:
    """What the work of a step takes at the program's own clocks, as a part of what it takes at those of eased
    steps, with half of its 95 % interval; and both clocks, 0 where nobody looked. ``spread`` is by how much
    the clocks of the blocks differ from those of the steps between them, relative to these: their mean."""

    scale: float
    half: float
    eased_mhz: float
    plain_mhz: float
    spread: float

    @property
    def apart(self) -> float:
        """The logarithm of the clocks of eased steps over the program's own; where nobody looked, as far as
        what work takes says."""
        if self.eased_mhz and self.plain_mhz:
            return abs(float(np.log(self.eased_mhz / self.plain_mhz)))
        return abs(float(np.log(self.scale))) / WHOLE

    @classmethod
    def of(cls, metered: Metered, stretches: Sequence[Stretch], work_s: float) -> Easing | None:
        """None where nothing was eased, nothing is known of rests, or too few stretches say what it changes.
        ``work_s`` is how long the GPU works in a traced step, which comes after a rest: its clocks are as
        high as those of eased ones, and operations last as long (to 1 % in three programs on an H200)."""
        known = [one for one in stretches if metered.knows(one)]
        kinds = [plain(known, ease) for ease in (0.0, EASED)]
        if min(map(len, kinds)) < FEWEST or not metered.rest_w:
            return None
        above = [_usual(np.array([_above_rest_j(metered, one) for one in kind])) for kind in kinds]
        plain_mhz, eased_mhz = map(_clock, kinds)
        later = (eased_mhz / plain_mhz) ** LATER if plain_mhz and eased_mhz else 1.0
        plain_j = float(above[0].mean()) + metered.rest_w * work_s * later
        eased_j = float(above[1].mean()) + metered.rest_w * work_s
        errors = [float(of_kind.std(ddof=1) / np.sqrt(len(of_kind))) for of_kind in above]
        chance = student_975(min(map(len, above)) - 1) * np.hypot(errors[0] / plain_j, errors[1] / eased_j)
        waits_s = abs(_step_s(kinds[1]) - _step_s(kinds[0]))
        doubt = NORMAL_975 * REST_RMS * metered.rest_w * waits_s / eased_j
        blocks = [one for one in known if one.target >= 0 and one.ease == EASED and one.steps]
        return cls(
            scale=plain_j / eased_j,
            half=float(np.hypot(chance, doubt)) * plain_j / eased_j,
            eased_mhz=eased_mhz,
            plain_mhz=plain_mhz,
            spread=_spread(blocks, eased_mhz),
        )


def _above_rest_j(metered: Metered, stretch: Stretch) -> float:
    """What each step of it drew above what is drawn in rests."""
    return metered.step_j(stretch) - metered.rest_w * stretch.seconds / stretch.steps


def _step_s(stretches: Sequence[Stretch]) -> float:
    return sum(one.seconds for one in stretches) / sum(one.steps for one in stretches)


def _usual(values: Float64) -> Float64:
    """Without those that are far off."""
    off = np.abs(values - np.median(values))
    return values[off <= FAR * max(float(np.median(off)), 1e-9 * float(np.median(values)))]


def _clock(stretches: Sequence[Stretch]) -> float:
    """The mean of clocks, by time."""
    known = [one for one in stretches if one.clock_mhz > 0]
    seconds = sum(one.seconds for one in known)
    return sum(one.clock_mhz * one.seconds for one in known) / seconds if seconds else 0.0


def _spread(blocks: Sequence[Stretch], eased_mhz: float) -> float:
    targets = {one.target for one in blocks}
    clocks = [_clock([one for one in blocks if one.target == target]) for target in targets]
    off = [abs(mhz / eased_mhz - 1) for mhz in clocks if mhz and eased_mhz]
    return float(np.mean(off)) if off else 0.0
