"""Energy against size: a program, run with one size after the other, and a line through what it drew."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from joulemap.accounting.account import Account
from joulemap.accounting.fit import Fit, fit
from joulemap.api import account, load
from joulemap.call_energy import account_calls_of
from joulemap.errors import InputError
from joulemap.traces import Float64
from joulemap.units import NS_PER_S

PLACE = "{size}"
"""Stands for the size in a program's arguments."""

TOTAL = "all domains"


@dataclass(frozen=True, slots=True)
class Trial:
    """One run to be made: with which size, and the how manieth of it."""

    size: float
    run: int

    @property
    def name(self) -> str:
        """What its recording is called."""
        return f"size-{self.size:.12g}-run-{self.run}.joulemap"

    def arguments(self, words: Sequence[str]) -> list[str]:
        """A program's words with the size in its place."""
        return [word.replace(PLACE, f"{self.size:.12g}") for word in words]


@dataclass(frozen=True)
class Measured:
    """What a run drew, by domain: gross, or above the baseline."""

    trial: Trial
    path: Path
    seconds: float
    energy_j: Mapping[str, float]
    provenance: Mapping[str, str] = field(default_factory=dict)


def trials(sizes: Iterable[float], repeat: int, seed: int) -> list[Trial]:
    """Every size so many times, in an order of chance: what drifts over an hour must not pass for a slope."""
    planned = [Trial(size, run) for run in range(1, repeat + 1) for size in dict.fromkeys(sizes)]
    random.Random(seed).shuffle(planned)
    return planned


def measured(
    trial: Trial, path: Path, api: str | None = None, baseline_w: Mapping[str, float] | None = None
) -> Measured:
    """What the recording of a run says: of the whole program, or of the calls of one API."""
    if api is not None:
        return _of_calls(trial, path, api, baseline_w)
    recording = load(path)
    footprint = account(recording)
    footprint = footprint if baseline_w is None else footprint.net(baseline_w)
    window = recording.info.window_ns or (0, 0)
    return Measured(
        trial,
        path,
        (window[1] - window[0]) / NS_PER_S,
        {one.domain.name: _drawn_j(one) for one in footprint.accounts},
        {one.domain.name: one.domain.provenance for one in footprint.accounts},
    )


def _drawn_j(one: Account) -> float:
    """What was drawn for the program while it ran, idle included."""
    return one.measured_j - one.other_processes_j - one.outside_j - one.baseline_j


def _of_calls(trial: Trial, path: Path, api: str, baseline_w: Mapping[str, float] | None) -> Measured:
    calls, found = account_calls_of(load(path), baseline_w)
    chosen = calls.api.codes == calls.api.code(api)
    if not chosen.any():
        known = ", ".join(sorted(set(calls.api)))
        raise InputError(f"{path} has no call of {api}.", f"It has {known or 'none'}.")

    def inclusive(own_j: Float64) -> float:
        """With the calls inside; one inside another of the same API counts once."""
        within = found.calls.parent
        outermost = chosen & ~np.where(within >= 0, chosen[within], False)
        return float(found.calls.with_inner(own_j)[outermost].sum())

    energy = {}
    for one in found.domains:
        own_j = one.energy_j if baseline_w is None else one.net_j
        energy[one.domain.name] = inclusive(one.energy_j if own_j is None else own_j)
    seconds = float((calls.end_ns - calls.start_ns)[chosen].sum()) / NS_PER_S
    return Measured(
        trial, path, seconds, energy, {one.domain.name: one.domain.provenance for one in found.domains}
    )


def fits(runs: Sequence[Measured]) -> dict[str, Fit]:
    """A line for each domain, and for all together where there are several."""
    size = [run.trial.size for run in runs]
    names = [name for name in runs[0].energy_j if all(name in run.energy_j for run in runs)] if runs else []
    found = {name: fit(size, [run.energy_j[name] for run in runs]) for name in names}
    if len(names) > 1:
        found[TOTAL] = fit(size, [sum(run.energy_j[name] for name in names) for run in runs])
    return found
