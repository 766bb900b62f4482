"""Whether a GPU was held at its power limit: there nothing that is added costs what it draws by itself."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from joulemap.recording import Recording
from joulemap.traces import Float64, PowerTrace
from joulemap.units import fmt_share
from joulemap.validating.truth import Stretch, energy_j

NEAR = 0.95
"""Of the limit: a controller keeps a little below."""
LIMIT, CLOCK = "power_limit_w", "sm_clock_mhz"


def remarks(recording: Recording, power: PowerTrace, base: Sequence[Stretch]) -> list[str]:
    """What to say of plain steps that draw as much as the GPU may. What is repeated and draws much lowers the
    clocks of everything else, which then draws less; what draws little raises them."""
    limits_w = _facts(recording, f"{power.domain.device} {LIMIT}")
    seconds = sum(one.seconds for one in base)
    if not len(limits_w) or seconds <= 0:
        return []
    limit_w = float(np.median(limits_w))
    level_w = sum(energy_j(one, power) for one in base) / seconds
    if level_w < NEAR * limit_w:
        return []
    clocks_mhz = _facts(recording, f"{power.domain.device} {CLOCK}")
    varied = f", at clocks of {clocks_mhz.min():.0f} to {clocks_mhz.max():.0f} MHz" if len(clocks_mhz) else ""
    return [
        f"{power.domain.device} drew {fmt_share(level_w / limit_w)} of the {limit_w:.0f} W that it may"
        f"{varied}: there, an execution that is added changes the clocks of all others, so that the truth of "
        "what draws much may come out too low, and that of what draws little too high."
    ]


def _facts(recording: Recording, name: str) -> Float64:
    table = recording.table("facts")
    rows = [] if table is None else table.to_pylist()
    return np.array([row["value"] for row in rows if row["name"] == name], np.float64)
