"""What recording costs: a program with and without it, in turns, with an interval."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from joulemap.accounting.student import two_sided_t
from joulemap.api import account, load
from joulemap.energy import EnergyReader
from joulemap.errors import InputError
from joulemap.recorder.budget import Plan
from joulemap.recorder.child import Program
from joulemap.recorder.run import run
from joulemap.units import NS_PER_S

_PYTHON_IS_UP_S = 0.5


@dataclass(frozen=True, slots=True)
class Run:
    """One run: how long the program took, and what it drew."""

    seconds: float
    energy_j: float


@dataclass(frozen=True, slots=True)
class Cost:
    """What recording adds, as a part of what is there without it; with a 95 % interval from two pairs on."""

    relative: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Overhead:
    """Pairs of runs, each without recording and with it."""

    pairs: tuple[tuple[Run, Run], ...]

    @property
    def time(self) -> Cost:
        return _cost([(plain.seconds, recorded.seconds) for plain, recorded in self.pairs])

    @property
    def energy(self) -> Cost:
        return _cost([(plain.energy_j, recorded.energy_j) for plain, recorded in self.pairs])


def measure_overhead(
    program: Sequence[str], pairs: int, folder: Path, plan: Plan, advance: Callable[[float], None] | None
) -> Overhead:
    """Run a program in pairs; which of the two comes first turns from pair to pair. The recordings are kept
    in ``folder``, and what the program prints goes to standard error."""
    found = []
    for pair in range(pairs):
        path = folder / f"run-{pair}.joulemap"
        if pair % 2:
            recorded, plain = _recorded(program, path, plan), _plain(program)
        else:
            plain, recorded = _plain(program), _recorded(program, path, plan)
        found.append((plain, recorded))
        if advance is not None:
            advance((pair + 1) / pairs)
    return Overhead(tuple(found))


def _plain(program: Sequence[str]) -> Run:
    """Not recorded, but started in the same way: Python is up before the clock starts."""
    child = Program(program, output_to_errors=True)
    with EnergyReader() as reader:
        time.sleep(_PYTHON_IS_UP_S)
        before_j, begin_ns = reader.read().energy_j, time.monotonic_ns()
        child.go(b"")
        code = child.wait()
        seconds = (time.monotonic_ns() - begin_ns) / NS_PER_S
        drawn_j = reader.read().energy_j - before_j
    _check(program, code)
    return Run(seconds, drawn_j)


def _recorded(program: Sequence[str], path: Path, plan: Plan) -> Run:
    ran = run(program, path, plan, output_to_errors=True)
    _check(program, ran.code)
    if ran.problem is not None:
        raise ran.problem
    footprint = account(load(path))
    return Run(ran.seconds, footprint.attributed_j + footprint.idle_j)


def _check(program: Sequence[str], code: int) -> None:
    if code:
        raise InputError(f"{program[0]} failed (exit code {code}).", "Its precision cannot be told.")


def _cost(pairs: Sequence[tuple[float, float]]) -> Cost:
    """From the logarithms of the pairs' ratios: a pair shares the machine's mood."""
    ratios = np.log([recorded / plain for plain, recorded in pairs])
    middle = float(ratios.mean())
    if len(ratios) < 2:
        return Cost(float(np.expm1(middle)), None, None)
    (t,) = two_sided_t(np.array([0.05]), np.array([len(ratios) - 1.0]))
    half = float(t * ratios.std(ddof=1) / len(ratios) ** 0.5)
    return Cost(*(float(np.expm1(value)) for value in (middle, middle - half, middle + half)))
