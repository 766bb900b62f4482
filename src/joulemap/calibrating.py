"""Calibrating a recording: its operations, each replayed by itself while the meters are read.

The replays run as a program of their own, recorded like any other but not traced; what they cost goes into
the recording, and into the user's cache for the recordings to come.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from joulemap.calibration.book import Book, Calibration, Shelf
from joulemap.calibration.busy import Busy
from joulemap.calibration.clocks import Eased, response, with_eased
from joulemap.calibration.cost import Cost, Replay, costs, level_power_w
from joulemap.calibration.operation import WORTH, Operation, on_device, places
from joulemap.calibration.recorded import CALIBRATION, Devices, in_order, signatures, values
from joulemap.calibration.shared import part_of_others
from joulemap.calibration.unsigned import no_signatures
from joulemap.devices import Device
from joulemap.errors import InputError, MeterError
from joulemap.meters.estimate import WATTS_PER_CORE
from joulemap.recorder.finish import FLAGS
from joulemap.recorder.host import host
from joulemap.recording import Recording, RecordingInfo
from joulemap.recording.info import save_info
from joulemap.recording.names import VALUES
from joulemap.replaying import Replays, Watching, eased_part_s, replayed, way
from joulemap.traces import PowerTrace
from joulemap.units import fmt_pm

IDLE_S = 2.0
_NUMBER = re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
"""That of one GPU, after its model."""
_SHELF = "shelf"
"""What the costs in a recording belong to."""
_AS_CALLED, _AT_CLOCKS, _WITH_VALUES = " as called", " at both clocks", " with values of all"
_BY_OWN_TIME = " by own time"
"""Costs that were kept before replays were of the overload that was called are not found any more, nor those
of GPUs before each had its own law of clocks, nor of CPUs before each replay's own part was known; and where
a recording has what operands held, those of made-up values, or of others, are not."""
_UNCLEAR, _NO_UPDATE = "Its replays differ too much", "The meter did not update while it ran."
_LEAST_IDLE = 1e-3
"""A program's own share of a CPU that it does not use is nothing, and something must weigh something."""


@dataclass(frozen=True)
class Candidates:
    """What could be calibrated of a recording, and how much of the busy time that is, of a device and of
    those ``alike``, with whose meters they are read."""

    power: PowerTrace
    busy: Busy
    alike: Mapping[str, str]

    @property
    def device(self) -> str:
        return self.power.domain.device

    @classmethod
    def of(cls, recording: Recording) -> Candidates:
        """On the device that draws the most of those whose operations are known."""
        rows = signatures(recording)
        if not rows:
            raise no_signatures(recording)
        events, steps = recording.events(), recording.steps()
        for power in in_order(recording.power()):
            device = power.domain.device
            if places(events, device, rows, steps):
                alike = _alike(recording, device)
                found = {one: places(events, one, rows, steps) for one in (device, *alike)}
                parts = [Busy.of(events, one, here, steps) for one, here in found.items()]
                return cls(power, Busy.joined(parts), alike)
        raise InputError("No device with a meter ran any operation whose inputs are known.")


def calibrate(
    recording: Recording, budget_s: float, book: Book, watching: Watching | None = None, again: bool = False
) -> Calibration:
    """Replay what is not yet known, to the book or to the recording itself, within the budget, or everything
    ``again``; the recording has the costs then, and the book, if it can be written."""
    candidates = Candidates.of(recording)
    _check_surroundings(recording)
    shelf = _shelf(recording, candidates.power)
    own = None if again else _own(recording, shelf)
    kept = None if again else book.find(shelf)
    known = own if kept is None else _both(own, kept)
    before = {} if known is None else known.costs
    plan = _plan(candidates, {} if known is None else known.costs, budget_s, recording)
    if known is None or plan.goal > plan.known or plan.refined:
        lines, powers = replayed(plan, watching)
        found = understood(lines, _same_domain(powers, candidates.power), candidates.device)
        known = _both(own, book.add(shelf, found, candidates.busy.seconds if again else ()))
    here = replace(
        known,
        costs={one: cost for one, cost in known.costs.items() if one in candidates.busy.seconds},
        skipped={one: why for one, why in known.skipped.items() if one in candidates.busy.seconds},
        domain=candidates.power.domain.name,
        alike=candidates.alike,
    )
    book.reused = [one for one, cost in here.costs.items() if before.get(one) == cost]
    content = {**here.to_json(), _SHELF: shelf.key}
    save_info(recording.path, replace(recording.info, extra={**recording.info.extra, CALIBRATION: content}))
    return here


def _own(recording: Recording, shelf: Shelf) -> Calibration | None:
    """What the recording itself knows, where that was found as it would be now."""
    content = recording.info.extra.get(CALIBRATION, {})
    return Calibration.from_json(content) if content.get(_SHELF) == shelf.key else None


def _both(own: Calibration | None, kept: Calibration) -> Calibration:
    """What is kept for others, and beside it what a recording itself knows, or knows better."""
    if own is None:
        return kept
    better = {
        one for one, cost in own.costs.items() if one in kept.costs and cost.passes > kept.costs[one].passes
    }
    return own.joined(kept.without(better))


def covered_by(found: Calibration, recording: Recording) -> float:
    """The share of the busy time that is calibrated, as the accounting says it."""
    try:
        return Devices.of(recording, found, recording.steps(), found.devices).weighed().covered
    except InputError:  # nothing has a cost
        return 0.0


def left_to_time(found: Calibration, recording: Recording) -> list[str]:
    """Other devices of the same kind with operations, whose energy stays shared by time: those of another
    model, and those that ran nothing which has a cost."""
    events, own = recording.events(), Device.parse(found.device)
    devices = dict.fromkeys(power.domain.device for power in recording.power())
    others = [one for one in devices if one not in found.devices and Device.parse(one).kind == own.kind]
    without = Devices.of(recording, found, recording.steps(), found.devices).without
    return [*(one for one in others if on_device(events, one).any()), *without]


def _alike(recording: Recording, device: str) -> dict[str, str]:
    """Other GPUs that have worked and are of the same model, and with whose meters they are read: what an
    operation takes on one of them, it takes on the others."""
    which = recording.info.extra.get(FLAGS, {}).get("gpus", {})
    models = {name: _NUMBER.sub("", said).strip() for name, said in which.items()}
    model, events, found = models.get(_torch_device(device)), recording.events(), dict[str, str]()
    for power in in_order(recording.power()):
        other = power.domain.device
        of_model = model and other != device and models.get(_torch_device(other)) == model
        if of_model and on_device(events, other).any():
            found.setdefault(other, power.domain.name)
    return found


def _plan(
    candidates: Candidates, known: Mapping[Operation, Cost], budget_s: float, recording: Recording
) -> Replays:
    busy, covered = candidates.busy, candidates.busy.covered(known)
    shares = {one.key: its_s / busy.total_s for one, its_s in busy.seconds.items() if one not in known}
    reached = covered + np.cumsum(list(shares.values()))
    needed = max(int(np.searchsorted(reached, busy.enough)) + 1, sum(one >= WORTH for one in shares.values()))
    refined = [one.key for one in busy.seconds if one in known and known[one].passes == 1]
    device = _torch_device(candidates.device)
    asked = (min(needed, len(shares)) or len(refined), budget_s, IDLE_S, candidates.power.period_s)
    passes, seconds = way(*asked, eased_part_s(device, budget_s))
    return Replays(
        device=device,
        shares=shares,
        known=covered,
        budget_s=budget_s,
        passes=passes,
        seconds=seconds,
        idle_s=IDLE_S,
        enough=busy.enough,
        worth=WORTH,
        flags=recording.info.extra.get(FLAGS, {}),
        values=values(recording, candidates.busy.seconds),
        refined=refined,
    )


def understood(lines: Sequence[Mapping[str, Any]], power: PowerTrace, device: str) -> Calibration:
    """What the replays cost; an operation whose cost cannot be told from nothing is left out by name."""
    replays = [
        Replay(one["key"], one["start_ns"], one["end_ns"], one["executions"], one["marks"])
        for one in lines
        if one.get("key") and "skipped" not in one
    ]
    idle_w = _idle_w(lines, power)
    found = costs(replays, power)
    eased = [_eased(one) for one in lines if "eased" in one]
    clear = {key: cost for key, cost in found.items() if cost.is_clear}
    clear = with_eased(clear, eased, power, idle_w)
    skipped = {one.key: _unclear(found.get(one.key)) for one in replays if one.key not in clear}
    skipped |= {one["key"]: one["skipped"] for one in lines if "skipped" in one and one["key"] not in clear}
    busiest_w = max((cost.power_w for cost in clear.values()), default=1.0)
    return Calibration(
        device,
        max(idle_w, _LEAST_IDLE * busiest_w),
        {Operation.from_key(key): cost for key, cost in clear.items()},
        {Operation.from_key(key): why for key, why in skipped.items()},
        response(clear.values()),
        power.domain.name,
        part_of_others(lines),
    )


def _eased(line: Mapping[str, Any]) -> Eased:
    """An operation with waits in between: marks have how often of either."""
    marks = [(mark[0], mark[1], mark[-1]) for mark in line["marks"]]
    waits = [(mark[0], mark[2], mark[-1]) for mark in line["marks"]]
    many, waited = line["executions"]
    span = line["start_ns"], line["end_ns"]
    return Eased(
        Replay(line["eased"], *span, many, marks), Replay("", *span, waited, waits), float(line["wait_s"])
    )


def _unclear(cost: Cost | None) -> str:
    if cost is None:
        return _NO_UPDATE
    return f"{_UNCLEAR}: {fmt_pm(cost.energy_j, 'J', cost.half_j)}."


def nothing_found(found: Calibration, path: Path) -> InputError:
    """Why no operation has a cost, by the reason that most of them have, and what to do."""
    reasons = Counter(_UNCLEAR if why.startswith(_UNCLEAR) else why for why in found.skipped.values())
    if not reasons:
        return InputError("No operation was replayed.", f"joulemap calibrate {path} tries again.")
    [(why, many)] = reasons.most_common(1)
    if why in (_UNCLEAR, _NO_UPDATE):
        hint = f"Try again while nothing else runs, with a longer --budget: joulemap calibrate {path}"
    else:
        hint = f"joulemap calibrate {path} says why of each."
    return InputError(
        f"None of {len(found.skipped)} operations has a cost, {many} of them for this: {why.rstrip('.')}.",
        hint,
    )


def _idle_w(lines: Sequence[Mapping[str, Any]], power: PowerTrace) -> float:
    """What is drawn while nothing is replayed."""
    idle = [level_power_w(power, one["start_ns"], one["end_ns"]) for one in lines if one.get("key") == ""]
    levels = [one for one in idle if one is not None]
    if not levels:
        raise MeterError(
            f"{power.domain.name} could not be read while nothing ran.", "joulemap doctor says what works."
        )
    return float(np.mean(levels))


def _same_domain(powers: Sequence[PowerTrace], like: PowerTrace) -> PowerTrace:
    """The power of the same domain while the replays ran."""
    for power in powers:
        if power.domain.name == like.domain.name:
            return power
    raise MeterError(
        f"{like.domain.name} is not metered any more.", "Calibrate on the machine that made the recording."
    )


def _check_surroundings(recording: Recording) -> None:
    """What operations cost here says nothing about another machine, driver or version of the framework."""
    theirs, ours = _surroundings(recording.info), _surroundings(RecordingInfo(host=host(), versions=_torch()))
    for what, name in theirs.items():
        if name and name != ours[what]:
            raise InputError(
                f"The recording was made with another {what}: {name}, and this is {ours[what] or 'none'}.",
                "Calibrate where the recording was made, or record again.",
            )


def _surroundings(info: RecordingInfo) -> dict[str, str]:
    return {
        "machine": str(info.host.get("machine", "")),
        "driver": str(info.host.get("driver", "")),
        "version of PyTorch": info.versions.get("torch", "").partition("+")[0],
    }


def _torch() -> dict[str, str]:
    """The version that the replays will use."""
    try:
        return {"torch": version("torch")}
    except PackageNotFoundError:
        return {}


def _shelf(recording: Recording, power: PowerTrace) -> Shelf:
    host, versions = recording.info.host, recording.info.versions
    chosen = dict(recording.info.extra.get(FLAGS, {}))
    which = chosen.pop("gpus", {}).get(_torch_device(power.domain.device), "")
    chosen.pop("autocast", None)
    if _torch_device(power.domain.device) != "cpu":
        chosen.pop("threads", None)  # a GPU's costs do not depend on them
    scale = os.environ.get(WATTS_PER_CORE, "") if power.domain.provenance == "estimated" else ""
    told = _AT_CLOCKS if power.domain.device.startswith("GPU") else _BY_OWN_TIME
    with_values = _WITH_VALUES if recording.table(VALUES) is not None else ""
    return Shelf(
        str(host.get("machine", "")),
        " ".join(filter(None, (power.domain.device, which, power.domain.sensor, scale)))
        + f"{_AS_CALLED}{told}{with_values}",
        str(host.get("driver", "")),
        f"torch {versions.get('torch', '')}",
        chosen,
    )


def _torch_device(device: str) -> str:
    kind, _, number = device.partition(":")
    return f"cuda:{number or 0}" if kind == "GPU" else "cpu"
