"""One variant of a program: its recordings, and what each name drew in every one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np

from joulemap.accounting.footprint import Footprint
from joulemap.accounting.student import NORMAL_975
from joulemap.accounting.sums import sums_by
from joulemap.accounting.uncertainty import EDGE_RMS, Blocks, intervals
from joulemap.comparing.names import Rule, matched
from joulemap.program import SEPARATOR
from joulemap.traces import Float64, Steps

By = Literal["module", "tensor", "op", "phase", "device"]
BYS: tuple[By, ...] = ("module", "tensor", "op", "phase", "device")

WHOLE = "whole program"
"""All that was drawn while recording: attributed and idle."""


@dataclass(frozen=True, slots=True)
class Run:
    """A recording, accounted, how many steps it has, and the ``costs`` by which it was shared, by name."""

    name: str
    footprint: Footprint
    steps: int
    costs: Mapping[str, frozenset[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Amount:
    """An energy in one recording, its standard error within that recording, whether that is known, and what
    sharing by time alone gives. ``cost_j`` is how far off the ``costs`` may be that it was shared by."""

    energy_j: float
    error_j: float
    known: bool
    time_based_j: float
    cost_j: float = 0.0
    costs: frozenset[str] = frozenset()

    def per(self, count: int) -> Amount:
        """The same of one of ``count`` equal parts."""
        return replace(
            self,
            energy_j=self.energy_j / count,
            error_j=self.error_j / count,
            time_based_j=self.time_based_j / count,
            cost_j=self.cost_j / count,
        )


@dataclass(frozen=True, eq=False)
class Variant:
    """Repeats of one variant."""

    label: str
    runs: tuple[Run, ...]

    def __len__(self) -> int:
        return len(self.runs)

    @cached_property
    def names(self) -> list[str]:
        """Every name of an operation in any recording."""
        return list(dict.fromkeys(word for run in self.runs for word in run.footprint.name.words))

    def spelled_like(self, base: Variant, rules: Sequence[Rule]) -> Variant:
        """The same with the base's names for the same things."""
        words = dict(zip(self.names, matched(self.names, base.names, rules), strict=True))
        runs = [
            replace(run, footprint=_renamed(run.footprint, words), costs=_renamed_costs(run.costs, words))
            for run in self.runs
        ]
        return Variant(self.label, tuple(runs))

    def summarised(self) -> Variant:
        """Layers of a kind as one."""
        runs = [replace(run, footprint=run.footprint.summarised()) for run in self.runs]
        return Variant(self.label, tuple(runs))

    def amounts(self, by: By, per_step: bool = False) -> list[dict[str, Amount]]:
        """By recording, what each name drew: the whole program first, then idle, then what was asked."""
        return [_amounts(run, by, per_step) for run in self.runs]

    def tensors(self) -> dict[str, tuple[float, float]]:
        """Mean energy (STEF, in J) and power while active (STPF, in W) of each summarised tensor."""
        energy: dict[str, list[float]] = {}
        power: dict[str, list[float]] = {}
        for run in self.runs:
            rows = run.footprint.summarised().rollup(keep=())
            for name, joules, seconds in zip(
                rows.name, rows.energy_j.tolist(), rows.active_s.tolist(), strict=True
            ):
                energy.setdefault(name, []).append(joules)
                power.setdefault(name, []).append(joules / seconds if seconds else 0.0)
        return {name: (float(np.mean(energy[name])), float(np.mean(power[name]))) for name in energy}


def _renamed(footprint: Footprint, words: dict[str, str]) -> Footprint:
    name = footprint.name.mapped([words[word] for word in footprint.name.words])
    return footprint.rollup(name, keep=("op", "phase", "device", "domain"))


def _renamed_costs(costs: Mapping[str, frozenset[str]], words: dict[str, str]) -> dict[str, frozenset[str]]:
    found: dict[str, frozenset[str]] = {}
    for name, those in costs.items():
        word = words.get(name, name)
        found[word] = found.get(word, frozenset()) | those
    return found


def _amounts(run: Run, by: By, per_step: bool) -> dict[str, Amount]:
    """What each is, with how far off it is for its spread and for its costs."""
    found = _each(run.footprint, by)
    if run.footprint.cost_rms_j.any():
        within = _each(_without_costs(run.footprint), by)
        found = {name: _split(one, within[name], _costs_of(run, name, by)) for name, one in found.items()}
    return {name: amount.per(run.steps) if per_step else amount for name, amount in found.items()}


def _each(footprint: Footprint, by: By) -> dict[str, Amount]:
    found = {WHOLE: _whole(footprint)}
    for account in footprint.accounts:
        low, high = account.idle_interval_j(footprint.blocks)
        known = int((account.idle_block_j > 0).sum()) >= 2
        by_time_j = account.idle_time_based_j
        found[f"{account.domain.name} idle"] = _amount(account.idle_j, low, high, known, by_time_j)
    if by == "module":
        for _, node in footprint.tree().walk():
            by_time_j = node.energy_j if node.time_based_j is None else node.time_based_j
            found[node.path] = _amount(node.energy_j, node.low_j, node.high_j, node.spread, by_time_j)
    else:
        rows = footprint.rollup(footprint.name if by == "tensor" else getattr(footprint, by), keep=())
        numbers = (rows.energy_j, rows.low_j, rows.high_j, rows.has_spread, rows.time_based_j)
        columns = zip(rows.name, *(column.tolist() for column in numbers), strict=True)
        for name, energy, low, high, known, by_time_j in columns:
            found[name] = _amount(energy, low, high, known, by_time_j)
    return found


def _without_costs(footprint: Footprint) -> Footprint:
    """As if all costs were exact."""
    accounts = tuple(replace(one, cost_rms_j=0.0) for one in footprint.accounts)
    return replace(footprint, accounts=accounts, cost_rms_j=np.zeros(len(footprint)))


def _split(both: Amount, within: Amount, costs: frozenset[str]) -> Amount:
    """The error of costs apart from the others: squares add."""
    cost_j = float(np.sqrt(max(both.error_j**2 - within.error_j**2, 0.0)))
    return replace(within, cost_j=cost_j, costs=costs)


def _costs_of(run: Run, name: str, by: By) -> frozenset[str]:
    """Of a module with all in it, or of an operation; of what runs through the program, of all of it."""
    inside = by in ("module", "tensor") and not name.endswith(" idle")
    chosen = [
        those
        for one, those in run.costs.items()
        if not inside or one == name or one.startswith(name + SEPARATOR)
    ]
    return frozenset().union(*chosen)


def _amount(energy_j: float, low_j: float, high_j: float, known: bool, time_based_j: float) -> Amount:
    """The longer side of the interval: below, zero may cut it short."""
    half_j = max(high_j - energy_j, energy_j - low_j)
    return Amount(energy_j, half_j / NORMAL_975, known, time_based_j)


def _whole(footprint: Footprint) -> Amount:
    accounts = footprint.accounts
    energy_j = footprint.attributed_j + footprint.idle_j
    block_j, blocks = _blocks(footprint)
    drawn_j = [a.measured_j - a.outside_j - a.other_processes_j for a in accounts]
    meter = [
        EDGE_RMS * a.period_s * drawn / max(a.covered_s, 1e-9)
        for a, drawn in zip(accounts, drawn_j, strict=True)
    ]
    rms_j = float(np.sqrt(np.sum(np.square(meter))))
    low, high = intervals(np.array([energy_j]), block_j[None, :], blocks, np.array([rms_j]))
    return _amount(energy_j, float(low[0]), float(high[0]), int((block_j > 0).sum()) >= 2, energy_j)


def _blocks(footprint: Footprint) -> tuple[Float64, Blocks]:
    """What was drawn in stretches of steps: of the traced ones, which are told apart by their kind; where
    these are too few, of all steps, since every one is metered."""
    accounts = footprint.accounts
    if len(footprint.blocks) >= 2 or not any(len(account.step_j) for account in accounts):
        block_j = footprint.block_j.sum(axis=0) + sum(account.idle_block_j for account in accounts)
        return np.asarray(block_j), footprint.blocks
    step_j: Float64 = np.sum([account.step_j for account in accounts], axis=0)
    blocks = Blocks.of(Steps.from_columns(start_ns=range(len(step_j)), end_ns=range(1, len(step_j) + 1)))
    return sums_by(blocks.of_step, step_j, len(blocks)), blocks
