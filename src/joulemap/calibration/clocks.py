"""How the energy of an execution goes with the clocks of a GPU, which a power limit lowers.

By itself a large product draws all that a GPU may, and runs at lower clocks than in a program, where cheaper
operations come in between; what moves memory runs at higher ones. So costs are told at the program's clocks.
On an H200 energy goes with a power of the clocks, from 0.3 for what draws little to 0.8 for large products:
one that is proportional to what an operation draws at the highest clocks. How proportional is measured with
every calibration in which clocks are lowered, by the operations that lower them: with waits in between they
run at the highest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from joulemap.calibration.cost import Cost, Replay, window
from joulemap.traces import PowerTrace

RISE = 1.75
"""The power itself goes with about this power of the clocks, for what is limited by it."""
STEEPEST = 2.0
DOUBT = 0.2
"""How far off such a power of the clocks is, as an rms: five calibrations of an H200 found 0.22 to 0.79 per
kilowatt, which is so much for what draws 900 W."""
TELLING = 0.03
"""An operation tells something where its clocks are higher by so much."""
UNKNOWN = 0.5
"""And where nothing is known of it, so that none is applied."""


@dataclass(frozen=True, slots=True)
class Response:
    """Energy goes with ``per_w`` times the power at ``highest_mhz`` as a power of clocks."""

    highest_mhz: float
    per_w: float

    def exponent(self, cost: Cost) -> float:
        """The power of the clocks with which the energy of an operation goes."""
        return min(self.per_w * _highest_w(cost, self.highest_mhz), STEEPEST)

    def to_json(self) -> dict[str, float]:
        return {"highest_mhz": self.highest_mhz, "per_w": self.per_w}

    @classmethod
    def from_json(cls, content: Mapping[str, Any] | None) -> Response | None:
        if content is None:
            return None
        return cls(float(content["highest_mhz"]), float(content["per_w"]))


def at_clocks(cost: Cost, clock_mhz: float, response: Response | None) -> Cost:
    """The cost at other clocks; as it is where either clocks are unknown."""
    if not clock_mhz or not cost.clock_mhz:
        return cost
    apart = float(np.log(clock_mhz / cost.clock_mhz))
    exponent, doubt = (0.0, UNKNOWN) if response is None else (response.exponent(cost), DOUBT)
    energy_j = cost.energy_j * float(np.exp(exponent * apart))
    return replace(cost, energy_j=energy_j, rms=float(np.hypot(cost.rms, doubt * apart)), clock_mhz=clock_mhz)


@dataclass(frozen=True, slots=True)
class Eased:
    """An operation that ran with waits of ``wait_s`` in between, so that nothing limited its clocks."""

    operation: Replay
    waits: Replay
    wait_s: float


def response(
    costs: Mapping[str, Cost], eased: Sequence[Eased], power: PowerTrace, idle_w: float
) -> Response | None:
    """From what operations took with waits in between, against what they take at the clocks that each has by
    itself; None where none ran at other clocks than these."""
    highest_mhz = max((one.clock_mhz for one in costs.values()), default=0.0)
    found = [_apart(one, costs, power, idle_w, highest_mhz) for one in eased]
    telling = [one for one in found if one is not None]
    if not telling:
        return None
    rise, watts = np.array(telling, np.float64).T
    return Response(highest_mhz, max(float(watts @ rise / (watts @ watts)), 0.0))


def _apart(
    eased: Eased, costs: Mapping[str, Cost], power: PowerTrace, idle_w: float, highest_mhz: float
) -> tuple[float, float] | None:
    """By how much more an operation took than it does by itself (as a logarithm), and its watts times how
    much higher clocks were (likewise), from which that comes."""
    ran, cost = eased.operation, costs.get(eased.operation.key)
    seen = window(power, ran.level_ns, ran.end_ns)
    if seen is None or cost is None or not cost.clock_mhz:
        return None
    span = seen.begin_ns, seen.end_ns
    clock_mhz, runs = ran.clock_between(*span), ran.executions_between(*span)
    energy_j = seen.energy_j - idle_w * eased.wait_s * eased.waits.executions_between(*span)
    higher = float(np.log(clock_mhz / cost.clock_mhz)) if clock_mhz else 0.0
    if higher < TELLING or not runs or energy_j <= 0:
        return None
    rise = float(np.log(energy_j / (runs * cost.energy_j)))
    return rise, _highest_w(cost, highest_mhz) * higher


def _highest_w(cost: Cost, highest_mhz: float) -> float:
    """What an operation would draw at the highest clocks."""
    return cost.power_w * float((highest_mhz / cost.clock_mhz) ** RISE)
