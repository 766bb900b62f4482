"""Truths of a GPU that draws nearly all that it may.

At its power limit a GPU changes its clocks with whatever is added, and with its clocks what everything else
costs. So there, blocks and the steps between them are eased: after each target the GPU waits, for as long as
one execution takes. It is below its limit then, clocks are the same whatever is repeated, and what is drawn
in the waits cancels.

What is found so is true at the clocks of eased steps. Plain steps tell what the same work takes at the
program's own; and steps that wait twice as long, what the work of the eased ones takes without their waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from joulemap.accounting.student import student_975
from joulemap.traces import Float64
from joulemap.validating.metered import Metered
from joulemap.validating.stretch import Stretch, plain

ABOVE = 0.6
"""Of its power limit: a GPU that draws more may come to it when something is repeated."""
EASED, TWICE = 1.0, 2.0
"""Waits, in what one execution takes; and those of the steps that tell what waits draw."""
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

    @classmethod
    def of(cls, metered: Metered, stretches: Sequence[Stretch]) -> Easing | None:
        """None where nothing was eased, or too few stretches say what that changes."""
        known = [one for one in stretches if metered.knows(one)]
        kinds = [plain(known, ease) for ease in (0.0, EASED, TWICE)]
        if min(map(len, kinds)) < FEWEST:
            return None
        joules = [_usual(np.array([metered.step_j(one) for one in kind])) for kind in kinds]
        (plain_j, eased_j, twice_j) = (float(of_kind.mean()) for of_kind in joules)
        work_j = eased_j - (twice_j - eased_j) * EASED / (TWICE - EASED)
        errors = [float(of_kind.std(ddof=1) / np.sqrt(len(of_kind))) for of_kind in joules]
        part = TWICE / (TWICE - EASED)
        work_error = float(np.hypot(part * errors[1], (part - 1) * errors[2]))
        relative = float(np.hypot(errors[0] / plain_j, work_error / work_j))
        freedom = min(map(len, joules)) - 1
        blocks = [one for one in known if one.target >= 0 and one.ease == EASED and one.steps]
        return cls(
            scale=plain_j / work_j,
            half=student_975(freedom) * relative * plain_j / work_j,
            eased_mhz=_clock(kinds[1]),
            plain_mhz=_clock(kinds[0]),
            spread=_spread(blocks, _clock(kinds[1])),
        )


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
