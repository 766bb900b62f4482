"""Whether a GPU was held at its power limit: there, what is added changes the clocks of everything else."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from joulemap.recording import Recording
from joulemap.units import fmt_share
from joulemap.validating.metered import Metered
from joulemap.validating.stretch import Stretch, plain

NEAR = 0.95
"""Of the limit: a controller keeps a little below."""
LIMIT = "power_limit_w"


def remarks(recording: Recording, metered: Metered, stretches: Sequence[Stretch]) -> list[str]:
    """What to say of plain steps that draw as much as the GPU may, and of clocks that were not always the
    same."""
    device = metered.power.domain.device
    _, limits_w = recording.facts(f"{device} {LIMIT}")
    base = [one for one in plain(stretches) if metered.knows(one)]
    seconds = sum(one.seconds for one in base)
    limit_w = float(np.median(limits_w)) if len(limits_w) else np.inf
    level_w = sum(metered.energy_j(one) for one in base) / seconds if seconds else 0.0
    said = []
    if level_w >= NEAR * limit_w:
        said.append(
            f"{device} drew {fmt_share(level_w / limit_w)} of the {limit_w:.0f} W that it may: there, an "
            "execution that is added changes the clocks of all others."
        )
    return [*said, *_of_clocks(device, metered, stretches, bool(said))]


def _of_clocks(device: str, metered: Metered, stretches: Sequence[Stretch], limited: bool) -> list[str]:
    clocks = metered.clocks
    if clocks is None:
        return [_UNKNOWN] if limited else []
    seen = [one.clock_mhz for one in stretches if one.clock_mhz > 0]
    where = "here" if clocks.waiting_w else "by calibration, since waits tell nothing of it"
    return [
        f"{device} ran at {min(seen):.0f} to {max(seen):.0f} MHz. Energy goes with the power "
        f"{clocks.power:.2f} ± {clocks.half:.2f} of clocks {where}; truths are those at "
        f"{clocks.usual_mhz:.0f} MHz."
    ]


_UNKNOWN = (
    "So the truth of what draws much may come out too low, and that of what draws little too high: too "
    "little is known of clocks to tell."
)
