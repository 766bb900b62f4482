"""How the energy of an execution goes with the clocks of a GPU, which a power limit lowers.

By itself a large product draws all that a GPU may, and runs at lower clocks than in a program, where cheaper
operations come in between; what moves memory runs at higher ones. So costs are told at the program's clocks.
What lowers them is replayed with waits in between, too, where it runs at the highest ones: then its cost is
known at both, and at what is in between by a power of the clocks.

On an H200 that is from 0.3 to 1.1 for single operations that lower clocks, and about 0.3 for what draws
little. So what all of them tell together is said of what there was no time to replay with waits, and of what
lowers nothing, by a power that is proportional to what an operation draws at the highest clocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
"""An operation is known at two clocks where one is higher by so much."""
FALLS = 0.95
"""What took less than so much of it at higher clocks was not metered well: nothing does that. On an H200 one
of 40 operations was told to, by a seventh; metered again, it took more there."""
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
    cost = _nearer(cost, clock_mhz)
    apart = float(np.log(clock_mhz / cost.clock_mhz))
    exponent, doubt = (0.0, UNKNOWN) if response is None else (response.exponent(cost), DOUBT)
    return replace(
        cost,
        energy_j=cost.energy_j * float(np.exp(exponent * apart)),
        rms=float(np.hypot(cost.rms, doubt * apart)),
        clock_mhz=clock_mhz,
        scaled_s=cost.seconds * float(np.exp(-apart)),
    )


def _nearer(cost: Cost, clock_mhz: float) -> Cost:
    """The cost at these clocks, or at those next to them, of the ones at which it was found and all in
    between. With waits it was replayed once."""
    if not cost.eased_mhz:
        return cost
    both, joules = np.log([cost.clock_mhz, cost.eased_mhz]), np.log([cost.energy_j, cost.eased_j])
    seconds = np.log([cost.seconds, cost.eased_s or cost.seconds * cost.clock_mhz / cost.eased_mhz])
    at = float(np.clip(np.log(clock_mhz), *sorted(both)))
    part = (at - both[0]) / (both[1] - both[0])
    return replace(
        cost,
        energy_j=float(np.exp(joules @ [1 - part, part])),
        seconds=float(np.exp(seconds @ [1 - part, part])),
        rms=float(cost.rms * np.hypot(1 - part, part * np.sqrt(cost.passes))),
        clock_mhz=float(np.exp(at)),
        eased_j=0.0,
        eased_mhz=0.0,
        eased_s=0.0,
    )


@dataclass(frozen=True, slots=True)
class Eased:
    """An operation that ran with waits of ``wait_s`` in between, so that nothing limited its clocks."""

    operation: Replay
    waits: Replay
    wait_s: float


def with_eased(
    costs: Mapping[str, Cost], eased: Sequence[Eased], power: PowerTrace, idle_w: float
) -> dict[str, Cost]:
    """Costs with what operations took with waits in between, where these had them run at higher clocks."""
    found = dict(costs)
    for one in eased:
        cost = costs.get(one.operation.key)
        told = None if cost is None else _told(one, power, idle_w)
        if cost is not None and told is not None and cost.clock_mhz:
            joules, seconds, mhz = told
            if np.log(mhz / cost.clock_mhz) >= TELLING and joules >= FALLS * cost.energy_j:
                higher = replace(cost, eased_j=joules, eased_mhz=mhz, eased_s=min(seconds, cost.seconds))
                found[one.operation.key] = higher
    return found


def _told(eased: Eased, power: PowerTrace, idle_w: float) -> tuple[float, float, float] | None:
    """What an execution took without its waits, in joules and seconds, and at which clocks; None where the
    meter did not see it."""
    ran = eased.operation
    seen = window(power, ran.level_ns, ran.end_ns)
    if seen is None:
        return None
    span = seen.begin_ns, seen.end_ns
    clock_mhz, runs = ran.clock_between(*span), ran.executions_between(*span)
    waited_s = eased.wait_s * eased.waits.executions_between(*span)
    energy_j, seconds = seen.energy_j - idle_w * waited_s, seen.seconds - waited_s
    if not clock_mhz or not runs or energy_j <= 0 or seconds <= 0:
        return None
    return energy_j / runs, seconds / runs, clock_mhz


def response(costs: Iterable[Cost]) -> Response | None:
    """From what operations take with waits in between, against what they take at the clocks that each has by
    itself; None where nothing lowers clocks."""
    costs = list(costs)
    highest_mhz = max((one.clock_mhz for one in costs), default=0.0)
    telling = [one for one in costs if one.eased_mhz]
    if not telling:
        return None
    rise = np.array([np.log(one.eased_j / one.energy_j) for one in telling])
    higher = np.array([np.log(one.eased_mhz / one.clock_mhz) for one in telling])
    watts = higher * [_highest_w(one, highest_mhz) for one in telling]
    return Response(highest_mhz, max(float(watts @ rise / (watts @ watts)), 0.0))


def _highest_w(cost: Cost, highest_mhz: float) -> float:
    """What an operation would draw at the highest clocks."""
    return cost.power_w * float((highest_mhz / cost.clock_mhz) ** RISE)
