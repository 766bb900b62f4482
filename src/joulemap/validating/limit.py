"""Whether a GPU was held at its power limit: there, what is added changes the clocks of everything else."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from joulemap.recording import Recording
from joulemap.units import fmt_share
from joulemap.validating.easing import Easing
from joulemap.validating.metered import Metered
from joulemap.validating.stretch import Stretch, plain

NEAR = 0.95
"""Of the limit: a controller keeps a little below."""
LIMIT = "power_limit_w"
MOST_SPREAD = 0.01
"""Of clocks, from one eased block to the next."""


def power_limit_w(recording: Recording, device: str) -> float:
    """What a device may draw; infinite where that is not known."""
    _, limits_w = recording.facts(f"{device} {LIMIT}")
    return float(np.median(limits_w)) if len(limits_w) else np.inf


def remarks(
    recording: Recording,
    metered: Metered,
    stretches: Sequence[Stretch],
    easing: Easing | None,
    with_laws: bool = False,
) -> list[str]:
    """What to say of plain steps that draw as much as the GPU may, and of how that was kept from the truths:
    of each by a law of its own, or of all alike."""
    device = metered.power.domain.device
    limit_w = power_limit_w(recording, device)
    base = [one for one in plain(stretches) if metered.knows(one)]
    seconds = sum(one.seconds for one in base)
    level_w = sum(metered.energy_j(one) for one in base) / seconds if seconds else 0.0
    said = []
    if level_w >= NEAR * limit_w:
        said.append(
            f"{device} drew {fmt_share(level_w / limit_w)} of the {limit_w:.0f} W that it may: there, an "
            "execution that is added changes the clocks of all others."
        )
    elif level_w and np.isfinite(limit_w) and any(one.ease for one in stretches):
        said.append(
            f"{device} drew {fmt_share(level_w / limit_w)} of the {limit_w:.0f} W that it may, to which "
            "executions that are added may take it."
        )
    if easing is not None:
        said += _of_easing(device, easing, with_laws)
    elif any(one.ease for one in stretches):
        said.append(_TOO_FEW)
    elif said:
        said.append(_UNKNOWN)
    return said


def _of_easing(device: str, easing: Easing, with_laws: bool) -> list[str]:
    clocks, laws = "", ", each as its cost goes with clocks" if with_laws else ""
    if easing.eased_mhz and easing.plain_mhz:
        clocks = f", at {easing.eased_mhz:.0f} MHz instead of {easing.plain_mhz:.0f}"
    said = [
        f"So in blocks {device} waited after each target{clocks}. At the program's own clocks its work takes "
        f"{easing.scale:.3f} ± {easing.half:.3f} of what it takes there, and so do the truths{laws}."
    ]
    if easing.spread > MOST_SPREAD:
        said.append(
            f"Clocks of blocks still differ by {fmt_share(easing.spread)} from those of the steps between: "
            "truths may be off by about as much."
        )
    return said


_TOO_FEW = (
    "Truths are those of steps in which the GPU waits after each target, at higher clocks than the "
    "program's: there was not the time to see what these change. Give it a larger --budget."
)
_UNKNOWN = "So the truth of what draws much may come out too low, and that of what draws little too high."
