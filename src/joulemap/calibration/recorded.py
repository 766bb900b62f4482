"""The calibration that a recording carries, as weights for its accounting."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from joulemap.accounting.supply import supply
from joulemap.calibration.book import Calibration
from joulemap.calibration.busy import Busy
from joulemap.calibration.closure import Closure, Sums
from joulemap.calibration.operation import Operation, Place, places
from joulemap.calibration.unsigned import no_signatures
from joulemap.calibration.weights import Weights, weigh, what_is_left
from joulemap.errors import InputError
from joulemap.recording import Recording
from joulemap.recording.names import SIGNATURES, VALUES
from joulemap.traces import EventTrace, PowerTrace, Steps
from joulemap.units import fmt_share

CALIBRATION = "calibration"
_CALL = ("op", "shapes", "strides", "types")
CLOCK = "sm_clock_mhz"
_CONSTANT = 0.001
"""Watts that differ by less do not change."""
_AGAIN = "joulemap calibrate REC --again measures all of it anew."


@dataclass(frozen=True, eq=False)
class Calibrated:
    """Weights for the events of a recording, and what to say about them."""

    weights: Weights
    calibration: Calibration
    closure: Closure | None
    provenance: str = "measured"
    """Of what the closure is a part: read off a meter, or estimated."""
    left: bool = True
    """Whether there are operations that nobody has tried to replay, and that would be."""
    of: str = ""
    of_model: Sequence[str] = ()
    """The device on which costs were measured, where that is another one, and others of its model."""
    by_time: Sequence[str] = ()
    """Of these, those without a cost."""

    def notes(self) -> list[str]:
        """How much is calibrated, and whether it adds up."""
        device, others = self.of or self.calibration.device, len(self.of_model)
        more = f" and {others} more of its model" * bool(others)
        by = f", by what operations took on {device}" * bool(others)
        said = [
            f"{fmt_share(self.weights.covered)} of the busy time of {device}{more} is calibrated{by}; "
            "the rest shares what these costs leave."
        ]
        said += [f"{one} ran nothing that has a cost, and is shared by time." for one in self.by_time]
        if self.closure is not None:
            said.append(self.closure.said(self.provenance))
        if not self.weights.looked:
            look = " joulemap run --calibrate looks." * (not self.calibration.is_of_cpu)
            said.append(
                "Nobody has looked which operands are in a cache: costs of small operations may be off by a "
                f"quarter and more.{look}"
            )
        return said

    def warnings(self, budget: str = "--budget", again: str = _AGAIN) -> list[str]:
        """That it does not add up, and why that may be. ``budget`` is the option that has more replayed, and
        ``again`` says how to measure anew."""
        if self.closure is None or (self.closure.is_told and self.closure.is_sound):
            return []
        if not self.closure.is_told:
            more = f"a longer {budget} replays more operations, as far as they can be"
            none = f"the rest is not of operations that can be replayed, so that no longer {budget} has more"
            return [f"Little is calibrated: {more if self.left else none}."]
        return [f"The closure should be 90 to 110 %. {self._likely_cause()} {again}"]

    def _likely_cause(self) -> str:
        where = "at its power cap, at other clocks or " * (not self.calibration.is_of_cpu)
        return f"Was the device {where}used by another process, in the recording or while it was calibrated?"


def calibrated(
    recording: Recording, steps: Steps | None = None, power: PowerTrace | None = None
) -> Calibrated:
    """Of a recording that ``joulemap calibrate`` has seen, at the clocks that the device had in it. The
    closure is that of ``steps`` and of what the program drew, ``power``: those of the recording, where others
    are not given."""
    content = recording.info.extra.get(CALIBRATION)
    if content is None:
        raise InputError(
            "The recording is not calibrated.",
            f"joulemap calibrate {recording.path} measures its operations."
            if signatures(recording)
            else f"Nor can it be. {no_signatures(recording).message}",
        )
    known = Calibration.from_json(content)
    whole = recording.steps() if steps is None else steps
    of = known.devices if power is None else _read_by(power, known)
    found = Devices.of(recording, known, whole, of)
    weights = found.weighed()
    drawn = [_drawn(recording, one) if power is None else power for one in found.calibrations]
    pairs = list(zip(found.calibrations, drawn, strict=True))
    sums = Sums.of(found.events, whole, pairs, weights)
    bare = Calibrated(weights, found.calibration, None, "", found.left, of[0], of[1:], list(found.without))
    if sums is None:
        return bare
    unknown_j = sums.work_j * weights.unknown_j / (weights.known_j + weights.unknown_j)
    known_j = sums.work_j - unknown_j
    part = what_is_left(known_j, unknown_j, sums.measured_j - sums.waiting_j)
    closure = Closure(*(one / sums.measured_j for one in (known_j, sums.waiting_j, unknown_j)))
    provenance = next(its.domain.provenance for its in drawn if its is not None)
    return replace(bare, weights=found.weighed(part), closure=closure, provenance=provenance)


def _read_by(power: PowerTrace, known: Calibration) -> list[str]:
    """The device that a meter is of, where that is one of those."""
    of = [one for one in known.devices if power.domain.name in known.on(one).idle_weight]
    return of or [known.device]


@dataclass(frozen=True, eq=False)
class Devices:
    """Those of a recording that have a cost for anything they ran: what each takes at its clocks, and where
    its operations are. And what keeps those busy that have none, and stay shared by time."""

    events: EventTrace
    steps: Steps | None
    calibration: Calibration
    parts: Mapping[str, tuple[Calibration, Sequence[Place], Busy]]
    without: Mapping[str, Busy]

    @classmethod
    def of(
        cls, recording: Recording, known: Calibration, steps: Steps | None, devices: Sequence[str]
    ) -> Devices:
        events, rows, parts = recording.events(), signatures(recording), {}
        for device in devices:
            here = places(events, device, rows, steps)
            at = known.on(device).at(_clock_mhz(recording, device))
            parts[device] = at, here, Busy.of(events, device, here, steps)
        kept = [one for one in devices if parts[one][-1].covered(known.costs) > 0] or devices[:1]
        alike = {one: parts[one][0].domain for one in kept[1:]}
        return cls(
            events,
            steps,
            replace(parts[kept[0]][0], alike=alike),
            {one: parts[one] for one in kept},
            {one: busy for one, (*_, busy) in parts.items() if one not in kept},
        )

    @property
    def calibrations(self) -> list[Calibration]:
        return [one for one, _, _ in self.parts.values()]

    @property
    def left(self) -> bool:
        """Whether there are operations that nobody has tried to replay, and that would be."""
        every = [*(one for _, _, one in self.parts.values()), *self.without.values()]
        return Busy.joined(every).leaves(self.calibration.costs, self.calibration.skipped)

    def weighed(self, rest: float = 1.0) -> Weights:
        """All their events, where what has no cost weighs ``rest`` times as much as its like."""
        each = {
            device: weigh(self.events, here, at, rest, self.steps)
            for device, (at, here, _) in self.parts.items()
        }
        whole = Weights.joined(self.events, each)
        busy_s = whole.busy_s + sum(one.total_s for one in self.without.values())
        return replace(whole, covered=whole.covered * whole.busy_s / busy_s, busy_s=busy_s)


def in_order(powers: Sequence[PowerTrace]) -> list[PowerTrace]:
    """What to calibrate first: GPUs, then what draws the most; of other devices last what is constant, such
    as an estimate of the memory by its size, which says nothing of what ran."""

    def rank(power: PowerTrace) -> tuple[bool, bool, float]:
        watts = power.power_w[~power.gap]
        constant = not len(watts) or float(np.ptp(watts)) <= _CONSTANT * float(watts.mean())
        return not power.domain.device.startswith("GPU"), constant, -power.total_j

    return sorted(powers, key=rank)


def _drawn(recording: Recording, known: Calibration) -> PowerTrace | None:
    """By the meter that was read, as far as that is known."""
    every = [one for one in in_order(recording.power()) if one.domain.device == known.device]
    power = next((one for one in every if known.domain in ("", one.domain.name)), None)
    return None if power is None else own_power(recording, power)


def own_power(recording: Recording, power: PowerTrace) -> PowerTrace:
    """A domain's power without the part of other processes."""
    own = supply(power, shares=recording.shares()).energy
    return PowerTrace(power.domain, own.edges_ns, own.amount, power.gap_at(own.edges_ns[:-1]))


def _clock_mhz(recording: Recording, device: str) -> float:
    """The mean clocks of a GPU in steps like those that were traced; 0 where nobody looked."""
    steps = recording.steps()
    if steps is None or not len(steps):
        return 0.0
    t_ns, mhz = recording.facts(f"{device} {CLOCK}")
    alike = np.isin(steps.label.codes, steps.label.codes[steps.traced])
    number = steps.at(t_ns)
    mhz = mhz[(number >= 0) & alike[number]]
    return float(mhz.mean()) if len(mhz) else 0.0


def signatures(recording: Recording) -> list[Mapping[str, Any]]:
    """What the operations of a recording were called with."""
    table = recording.table(SIGNATURES)
    return [] if table is None else list(table.to_pylist())


def costs_by_name(recording: Recording) -> dict[str, frozenset[str]]:
    """What operations with a name were called with, and what each cost; nothing where nobody has calibrated
    it."""
    content = recording.info.extra.get(CALIBRATION)
    if content is None:
        return {}
    costs = {one.key: cost.energy_j for one, cost in Calibration.from_json(content).costs.items()}
    found: dict[str, set[str]] = {}
    for row in signatures(recording):
        key = Operation.of(row).key
        found.setdefault(row["name"], set()).add(f"{key} {costs.get(key)}")
    return {name: frozenset(those) for name, those in found.items()}


def values(recording: Recording, operations: Iterable[Operation]) -> dict[str, list[bytes]]:
    """What the tensors of some operations held, by the keys of those of which that is known. Generated
    kernels go by their code, which is where others have scalars."""
    table = recording.table(VALUES)
    rows = [] if table is None else table.to_pylist()
    held = {(*(row[name] for name in _CALL), row.get("code") or ""): row["pieces"] for row in rows}
    found = {}
    for one in operations:
        call = tuple(getattr(one, name) for name in _CALL)
        pieces = held.get((*call, one.scalars), held.get((*call, "")))
        if pieces is not None:
            found[one.key] = pieces
    return found
