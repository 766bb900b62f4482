"""How the energy of single targets goes with clocks, by their costs: products more than what moves memory.

What plain steps tell of clocks is told of all work of a step. Costs are known at the program's clocks and at
those of eased steps, so that they tell what clocks change of a target, over what they change of everything
that has a cost. How much that is as a whole is not taken from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from joulemap.calibration.book import Calibration
from joulemap.calibration.operation import Place, on_device, own_seconds, places
from joulemap.calibration.recorded import CALIBRATION, signatures
from joulemap.calibration.weights import MOSTLY, known_parts
from joulemap.recording import Recording
from joulemap.traces import Steps
from joulemap.validating.easing import Easing
from joulemap.validating.kind import of_kind
from joulemap.validating.target import Name, Target

MUCH = 0.75
"""Of the device's work has a cost, or costs say nothing of how all of it goes with clocks."""


def laws(
    recording: Recording,
    targets: Sequence[Target],
    steps: Steps,
    label: str,
    easing: Easing | None,
    device: str,
) -> dict[int, float]:
    """By number of the target, of steps of this label on a device; none where clocks are not known, or costs
    of most of its work and of all."""
    content = recording.info.extra.get(CALIBRATION)
    if content is None or easing is None or not easing.eased_mhz or not easing.plain_mhz:
        return {}
    known, events = Calibration.from_json(content), recording.events()
    if device not in known.devices:
        return {}
    known = known.on(device)
    events = events.take(of_kind(events, steps, label))
    here = places(events, known.device, signatures(recording))
    busy_s = {(one.name, one.phase): one.busy_s for one in here}
    costed_s = {(one.name, one.phase): part.seconds for one, part in known_parts(here, known)}
    if (
        not costed_s
        or sum(costed_s.values()) < MUCH * own_seconds(events)[on_device(events, known.device)].sum()
    ):
        return {}
    told = [_joules(here, known.at(mhz)) for mhz in (easing.plain_mhz, easing.eased_mhz)]
    whole = _ratio(told, costed_s.keys())
    found = {}
    for target in targets:
        own = target.rows & costed_s.keys()
        of_all = sum(busy_s.get(name, 0.0) for name in target.rows)
        if own and sum(costed_s[name] for name in own) >= MOSTLY * of_all:
            found[target.number] = _ratio(told, own) / whole
    return found


def _joules(here: Sequence[Place], calibration: Calibration) -> dict[Name, float]:
    return {(one.name, one.phase): part.alone_j for one, part in known_parts(here, calibration)}


def _ratio(told: Sequence[Mapping[Name, float]], names: Iterable[Name]) -> float:
    plain_j, eased_j = (sum(joules[name] for name in names) for joules in told)
    return plain_j / eased_j
