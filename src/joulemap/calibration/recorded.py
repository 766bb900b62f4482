"""The calibration that a recording carries, as weights for its accounting."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from joulemap.accounting.alike import told_apart
from joulemap.accounting.supply import supply
from joulemap.calibration.book import Calibration
from joulemap.calibration.busy import Busy
from joulemap.calibration.operation import Operation, all_on_device, own_seconds, places
from joulemap.calibration.unsigned import no_signatures
from joulemap.calibration.weights import Weights, weigh, what_is_left
from joulemap.errors import InputError
from joulemap.recording import Recording
from joulemap.recording.names import SIGNATURES, VALUES
from joulemap.traces import EventTrace, PowerTrace, Steps
from joulemap.units import NS_PER_S, fmt_share

CALIBRATION = "calibration"
_CALL = ("op", "shapes", "strides", "types")
CLOCK = "sm_clock_mhz"
_SOUND = (0.9, 1.1)
"""Outside of this the costs do not add up to what was measured."""
_CONSTANT = 0.001
"""Watts that differ by less do not change."""
_AGAIN = "joulemap calibrate REC --again measures all of it anew."
_WORTH_SAYING = 0.005
"""What adds less than that to the sum is not told apart."""


@dataclass(frozen=True, slots=True)
class Closure:
    """What costs, waiting, and guesses of what has no cost are, as parts of what was measured."""

    costs: float
    waiting: float
    guessed: float

    @property
    def total(self) -> float:
        return self.costs + self.waiting + self.guessed

    @property
    def is_told(self) -> bool:
        """Whether it is costs that add up, rather than guesses."""
        return self.costs > self.guessed

    @property
    def is_sound(self) -> bool:
        return _SOUND[0] <= self.total <= _SOUND[1]

    def said(self, provenance: str) -> str:
        """In words, with what it is made of."""
        if not self.is_told:
            return (
                f"No closure: costs are {fmt_share(self.costs)} of what was {provenance}, waiting "
                f"{fmt_share(self.waiting)}, and the rest has no cost."
            )
        guessed = self.guessed > _WORTH_SAYING
        more = f", {fmt_share(self.guessed)} of it guessed for what has no cost" * guessed
        return f"Closure: costs and waiting add up to {fmt_share(self.total)} of what was {provenance}{more}."


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

    def notes(self) -> list[str]:
        """How much is calibrated, and whether it adds up."""
        said = [
            f"{fmt_share(self.weights.covered)} of the busy time of {self.calibration.device} is calibrated; "
            "the rest shares what these costs leave."
        ]
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
    calibration = known.at(_clock_mhz(recording, known.device))
    events = recording.events()
    whole = recording.steps() if steps is None else steps
    here = places(events, calibration.device, signatures(recording), whole)
    weights = weigh(events, here, calibration, steps=whole)
    left = Busy.of(events, calibration.device, here, whole).leaves(known.costs, known.skipped)
    drawn = _drawn(recording, calibration) if power is None else power
    if drawn is None or whole is None or not whole.traced.any():
        return Calibrated(weights, calibration, None, left=left)
    found = _sums(events, told_apart(whole), drawn, weights, calibration)
    if found.measured_j <= 0:
        return Calibrated(weights, calibration, None, left=left)
    unknown_j = found.work_j * weights.unknown_j / (weights.known_j + weights.unknown_j)
    part = what_is_left(found.work_j - unknown_j, unknown_j, found.measured_j - found.waiting_j)
    weights = weigh(events, here, calibration, part, whole)
    sums_j = found.work_j - unknown_j, found.waiting_j, unknown_j
    closure = Closure(*(one / found.measured_j for one in sums_j))
    return Calibrated(weights, calibration, closure, drawn.domain.provenance, left)


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


@dataclass(frozen=True, slots=True)
class _Sums:
    """What costs say of all steps, of work and of waiting, and what was measured of them."""

    work_j: float
    waiting_j: float
    measured_j: float


def _sums(
    events: EventTrace, steps: Steps, power: PowerTrace, weights: Weights, calibration: Calibration
) -> _Sums:
    """A traced step stands for those of its label, and what a step takes longer than its work is waiting. A
    CPU is slower while it is traced, in all that it does: work takes as much of a step then as otherwise."""
    step = np.where(events.step >= 0, events.step, steps.at(events.start_ns))
    rows = all_on_device(events, calibration.device) & (step >= 0)
    own_s = own_seconds(events)
    work_j = np.bincount(step[rows], (weights.watts * own_s)[rows], minlength=len(steps))
    work_s = np.bincount(step[rows], own_s[rows], minlength=len(steps))
    length_s = (steps.end_ns - steps.start_ns) / NS_PER_S
    all_j = all_waiting_j = measured_j = 0.0
    for label in np.unique(steps.label.codes[steps.traced]).tolist():
        alike = steps.label.codes == label
        models = alike & steps.traced
        slower = length_s[models].mean() / length_s[alike].mean() if calibration.is_of_cpu else 1.0
        waiting_s = np.maximum(slower * length_s[alike] - work_s[models].mean(), 0.0).sum() / slower
        all_j += float(alike.sum() * work_j[models].mean() / slower)
        all_waiting_j += float(calibration.idle_w * waiting_s)
        spans = zip(steps.start_ns[alike].tolist(), steps.end_ns[alike].tolist(), strict=True)
        measured_j += sum(power.energy_between(start, end) for start, end in spans)
    return _Sums(all_j, all_waiting_j, measured_j)
