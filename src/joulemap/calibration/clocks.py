"""How the energy of an execution goes with the clocks of a GPU, which a power limit lowers.

By itself a large product draws all that a GPU may, and runs at lower clocks than in a program, where cheaper
operations come in between; what moves memory runs at higher ones. So costs are told at the program's clocks.
What lowers them is replayed with waits in between, too, where it runs at the highest ones: then its cost is
known at both, and at what is in between by a power of the clocks.

On an H200 that is from 0.3 to 1.5 for single operations that lower clocks, and about 0.3 for what draws
little. So what all of them tell together is said of what there was no time to replay with waits, and of what
lowers nothing, by a power that is proportional to what an operation draws at the highest clocks.

That goes down to a level: what runs at 1,500 MHz on an H200 takes no less than at 1,750. Lower clocks save
energy as they need less voltage, which most likely is the lowest that there is from there on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

import numpy as np

from joulemap.accounting.student import student_975
from joulemap.calibration.cost import Cost, Replay, window
from joulemap.traces import PowerTrace

RISE = 1.75
"""The power goes with about this power of the clocks, for what is limited by it. One of it is time."""
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
ENOUGH, FINE = 4, 0.005
"""So many operations that lower clocks tell how far down energy goes with them, to half a percent."""


@dataclass(frozen=True, slots=True)
class Response:
    """Energy goes with ``per_w`` times the power at ``highest_mhz`` as a power of clocks, down to
    ``level_mhz``; below it is as it is there."""

    highest_mhz: float
    per_w: float
    level_mhz: float = 0.0

    def rise(self, cost: Cost, clock_mhz: float) -> float:
        """How much more an operation takes at other clocks than at its own: the logarithm of the factor."""
        exponent = min(self.per_w * self._highest_w(cost), STEEPEST)
        return exponent * (self.counted(clock_mhz) - self.counted(cost.clock_mhz))

    def watts_risen(self, cost: Cost) -> float:
        """What an operation draws at the highest clocks, times how much higher they are with waits."""
        return self._highest_w(cost) * (self.counted(cost.eased_mhz) - self.counted(cost.clock_mhz))

    def counted(self, clock_mhz: float) -> float:
        """The logarithm of clocks as far as energy goes with them."""
        return float(np.log(max(clock_mhz, self.level_mhz)))

    def _highest_w(self, cost: Cost) -> float:
        """What an operation would draw at the highest clocks."""
        faster = self.highest_mhz / cost.clock_mhz
        dearer = (RISE - 1) * (self.counted(self.highest_mhz) - self.counted(cost.clock_mhz))
        return cost.power_w * faster * float(np.exp(dearer))

    def to_json(self) -> dict[str, float]:
        return {"highest_mhz": self.highest_mhz, "per_w": self.per_w, "level_mhz": self.level_mhz}

    @classmethod
    def from_json(cls, content: Mapping[str, Any] | None) -> Response | None:
        if content is None:
            return None
        highest_mhz, per_w = float(content["highest_mhz"]), float(content["per_w"])
        return cls(highest_mhz, per_w, float(content.get("level_mhz", 0.0)))


def at_clocks(cost: Cost, clock_mhz: float, response: Response | None) -> Cost:
    """The cost at other clocks; as it is where either clocks are unknown."""
    if not clock_mhz or not cost.clock_mhz:
        return cost
    cost = _nearer(cost, clock_mhz, response or _NO_LAW)
    apart = float(np.log(clock_mhz / cost.clock_mhz))
    rise, doubt = (0.0, UNKNOWN) if response is None else (response.rise(cost, clock_mhz), DOUBT)
    return replace(
        cost,
        energy_j=cost.energy_j * float(np.exp(rise)),
        rms=float(np.hypot(cost.rms, doubt * apart)),
        clock_mhz=clock_mhz,
        scaled_s=cost.seconds * float(np.exp(-apart)),
    )


_NO_LAW = Response(0.0, 0.0)


def _nearer(cost: Cost, clock_mhz: float, response: Response) -> Cost:
    """The cost at these clocks, or at those next to them, of the ones at which it was found and all in
    between. With waits it was replayed once."""
    if not cost.eased_mhz:
        return cost
    both, joules = np.log([cost.clock_mhz, cost.eased_mhz]), np.log([cost.energy_j, cost.eased_j])
    seconds = np.log([cost.seconds, cost.eased_s or cost.seconds * cost.clock_mhz / cost.eased_mhz])
    at = float(np.clip(np.log(clock_mhz), *sorted(both)))
    part = (at - both[0]) / (both[1] - both[0])
    own, seen, eased = map(response.counted, (cost.clock_mhz, float(np.exp(at)), cost.eased_mhz))
    risen = (seen - own) / (eased - own) if eased > own else part
    return replace(
        cost,
        energy_j=float(np.exp(joules @ [1 - risen, risen])),
        seconds=float(np.exp(seconds @ [1 - part, part])),
        rms=float(cost.rms * np.hypot(1 - risen, risen * np.sqrt(cost.passes))),
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
    itself; None where nothing lowers clocks. The level is where it fits them best."""
    costs = list(costs)
    highest_mhz = max((max(one.clock_mhz, one.eased_mhz) for one in costs), default=0.0)
    telling = [one for one in costs if one.eased_mhz]
    if not telling:
        return None
    off, plain = _law(telling, highest_mhz, 0.0)
    if len(telling) < ENOUGH:
        return plain
    lowest = float(np.log(highest_mhz / min(one.clock_mhz for one in telling)))
    levels_mhz = highest_mhz * np.exp(-np.arange(TELLING, max(lowest, 2 * TELLING), FINE))
    off_there, law = min((_law(telling, highest_mhz, one) for one in levels_mhz.tolist()), key=itemgetter(0))
    return law if off_there < _by_chance(len(telling)) * off else plain


def _by_chance(count: int) -> float:
    """How little a level must leave of what is off without, squared: with few operations one more number
    always fits better. A test of it (Fisher's), with a chance of one in twenty. On an H200 levels left 0.35
    and 0.41; of eight operations 0.50 are asked for, of seven 0.43."""
    freedom = count - 2
    return 1 / (1 + student_975(freedom) ** 2 / freedom)


def _law(telling: Sequence[Cost], highest_mhz: float, level_mhz: float) -> tuple[float, Response]:
    """How far off the nearest law with such a level is from what operations tell, squared; and that law."""
    unit = Response(highest_mhz, 1.0, level_mhz)
    rise = np.array([np.log(one.eased_j / one.energy_j) for one in telling])
    watts = np.array([unit.watts_risen(one) for one in telling])
    law = replace(unit, per_w=max(float(watts @ rise / max(watts @ watts, 1e-12)), 0.0))
    said = np.array([law.rise(one, one.eased_mhz) for one in telling])
    return float(((rise - said) ** 2).sum()), law
