"""The replays of a calibration: a program of its own, metered but not traced, and watched while it runs."""

from __future__ import annotations

import json
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from joulemap.calibration.shared import own_power_of_replays
from joulemap.errors import InputError
from joulemap.recorder.budget import Plan
from joulemap.recorder.run import run
from joulemap.recording import Recording
from joulemap.traces import PowerTrace
from joulemap.units import NS_PER_S

_PROGRAM = "joulemap.frameworks.torch.replay"
_LOOKS_EVERY_S = 0.25
_ASKED_TO_END = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_TOOK_DOWN = "PyTorch ended while it ran."
_WAYS = ((2, 1.0), (2, 0.5), (1, 0.5))
"""How often to replay an operation, and how many seconds each time, for a counter that updates every 100 ms.
Less costs little (``studies.accuracy.budget``), and what is not replayed at all is shared by time."""
USUAL_PERIOD_S = 0.1
BUILDING_S = 0.5
"""Until an operation is built, captured and warm, and a GPU's clocks are level."""
EASED_PART, SHORT_S = 0.2, 20.0
"""What part of the budget is kept to tell how energy goes with a GPU's clocks, unless it is so short that all
of it is needed for the first pass."""
AGAIN_PART = 0.15
"""What part is kept where there is time for one pass over all: the largest are replayed again in it, so that
it is known what another pass would have told."""


class Interrupted(InputError):
    """By whoever waits for them."""


@dataclass(frozen=True)
class Replays:
    """What to replay, of how much of the busy time each is, most first; ``known`` is calibrated already."""

    device: str
    shares: Mapping[str, float]
    known: float
    budget_s: float
    passes: int
    seconds: float
    idle_s: float
    enough: float
    worth: float
    flags: Mapping[str, Any] = field(default_factory=dict)
    values: Mapping[str, Sequence[bytes]] = field(default_factory=dict)
    """What operands held in the program, as far as that was seen."""
    refined: Sequence[str] = ()
    """What was replayed once before, most busy time first: again, after the first pass over all else."""

    @property
    def eased_s(self) -> float:
        """What may go into how energy goes with clocks."""
        return eased_part_s(self.device, self.budget_s)

    @property
    def first_s(self) -> float:
        """What may go into the first pass."""
        return first_pass_s(self.budget_s, self.passes, self.seconds, self.idle_s, self.eased_s)

    @property
    def goal(self) -> float:
        """The share of the busy time that is calibrated where time is no matter."""
        covered = self.known
        for share in self.shares.values():
            if covered >= self.enough and share < self.worth:
                break
            covered += share
        return covered

    def after(self, lines: Sequence[Mapping[str, Any]], took_s: float) -> Replays:
        """What is left to be replayed when this was, or could not be, in so many seconds; nothing where none
        of the budget is."""
        tried = {one.get("key") for one in lines}
        done = {one.get("key") for one in lines if "skipped" not in one}
        left_s = self.budget_s - took_s
        shares = {key: share for key, share in self.shares.items() if key not in tried and left_s > 0}
        known = self.known + sum(share for key, share in self.shares.items() if key in done)
        return replace(self, shares=shares, known=known, budget_s=max(left_s, self.seconds))

    def write(self, path: Path) -> None:
        """For the program that replays; values are in a file beside it."""
        held, sizes = path.with_suffix(".values"), {}
        with held.open("wb") as file:
            for key, pieces in self.values.items():
                file.writelines(pieces)
                sizes[key] = [len(one) for one in pieces]
        parts_s = {"first_s": self.first_s, "eased_s": self.eased_s}
        listed = {"shares": list(self.shares.items()), "values": list(sizes.items())}
        path.write_text(json.dumps({**vars(self), **parts_s, **listed, "held": str(held)}))


@dataclass(frozen=True)
class Bought:
    """How far the replays are: the share of the busy time that is calibrated by now, what it will be when the
    budget is spent, and what part of the budget is."""

    covered: float
    reaches: float
    spent: float


Watching = Callable[[Bought], None]


def eased_part_s(device: str, budget_s: float) -> float:
    """What may go into how energy goes with the clocks of a GPU."""
    return EASED_PART * budget_s if device.startswith("cuda") and budget_s > SHORT_S else 0.0


def first_pass_s(budget_s: float, passes: int, seconds: float, idle_s: float, eased_s: float) -> float:
    """What of a budget may go into the first pass; where there is none for another, a part is kept if it buys
    anything."""
    left_s = budget_s - eased_s
    if passes > 1:
        return left_s / passes - idle_s
    kept_s = AGAIN_PART * left_s
    return left_s - idle_s - (kept_s if kept_s >= idle_s + seconds + BUILDING_S else 0.0)


def way(needed: int, budget_s: float, idle_s: float, period_s: float, eased_s: float) -> tuple[int, float]:
    """How often to replay each of so many operations, and for how long: as well as the budget allows for all
    of them, for a meter that updates every ``period_s``."""
    slower = max(period_s / USUAL_PERIOD_S, 1.0)
    for passes, usual_s in _WAYS:
        seconds = usual_s * slower
        if needed * (seconds + BUILDING_S) <= first_pass_s(budget_s, passes, seconds, idle_s, eased_s):
            break
    return passes, seconds


def affordable(budget_s: float, passes: int, seconds: float, idle_s: float, eased_s: float) -> int:
    """How many operations that is enough for; one in any case."""
    first_s = first_pass_s(budget_s, passes, seconds, idle_s, eased_s)
    return max(int((first_s - seconds) / (seconds + BUILDING_S)) + 1, 1)


def replayed(
    plan: Replays, watching: Watching | None = None
) -> tuple[list[dict[str, Any]], list[PowerTrace]]:
    """Replay what the budget buys: what was done when, and what each domain drew for it meanwhile. An
    operation that takes PyTorch down with it is left out by name, and those after it begin anew."""
    every: list[dict[str, Any]] = []
    powers: list[PowerTrace] = []
    while True:
        begin_s = time.monotonic()
        lines, drawn = _attempt(plan, watching)
        every += lines
        powers = _one_after_the_other(powers, drawn)
        if any(one.get("key") == "" for one in lines):
            return every, powers
        if not plan.shares:
            raise InputError(
                "PyTorch ended while nothing was replayed: it does not work here any more.",
                "python -c 'import torch; torch.ones(1)' may say why. What was known before is kept.",
            )
        every += (broken := _broken(plan, lines))
        plan = plan.after([*lines, *broken], time.monotonic() - begin_s)


def _one_after_the_other(earlier: Sequence[PowerTrace], later: Sequence[PowerTrace]) -> list[PowerTrace]:
    """What domains drew in several attempts, with what nobody metered in between as a gap."""
    before = {one.domain.name: one for one in earlier if len(one)}
    return [_then(before[one.domain.name], one) if one.domain.name in before else one for one in later]


def _then(earlier: PowerTrace, later: PowerTrace) -> PowerTrace:
    if not len(later):
        return earlier
    edges_ns = np.concatenate((earlier.edges_ns, later.edges_ns))
    energy_j = np.concatenate((earlier.energy_j, [0.0], later.energy_j))
    return PowerTrace(later.domain, edges_ns, energy_j, np.concatenate((earlier.gap, [True], later.gap)))


def _broken(plan: Replays, lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the end came in, if it was not one that could be told."""
    seen = {one.get("key") for one in lines}
    if lines and "skipped" in lines[-1]:
        return []
    return [{"key": key, "skipped": _TOOK_DOWN} for key in plan.shares if key not in seen][:1]


def _attempt(plan: Replays, watching: Watching | None) -> tuple[list[dict[str, Any]], list[PowerTrace]]:
    with tempfile.TemporaryDirectory() as scratch:
        told, result, path = (Path(scratch) / name for name in ("plan.json", "result.jsonl", "r.joulemap"))
        plan.write(told)
        with _watched(plan, result, watching):
            ran = run(
                ["-m", _PROGRAM, str(told), str(result)], path, Plan(overhead=0.0), output_to_errors=True
            )
        if ran.problem is not None:
            raise ran.problem
        if ran.code == -signal.SIGINT:
            raise Interrupted("The replays were interrupted.", "What was known before is kept.")
        if -ran.code in _ASKED_TO_END:
            raise InputError("The replays were interrupted.", "What was known before is kept.")
        recording = Recording.open(path)
        lines = _lines(result)
        return lines, [own_power_of_replays(recording, power, lines) for power in recording.power()]


def bought(plan: Replays, lines: Sequence[Mapping[str, Any]]) -> Bought:
    """How far these lines are. What is replayed once is bought: the later passes are paid for."""
    passes = [one for one in lines if one.get("key") and "skipped" not in one]
    seen = {one["key"] for one in passes}
    covered = plan.known + sum(plan.shares.get(key, 0.0) for key in seen)
    failed = {one["key"] for one in lines if "skipped" in one}
    to_come = [share for key, share in plan.shares.items() if key not in seen | failed]
    spent_s = (lines[-1]["end_ns"] - lines[0]["start_ns"]) / NS_PER_S if lines else 0.0
    each_s = spent_s / len(passes) if passes else plan.seconds
    more = max(int((plan.first_s - spent_s) / each_s), 0)
    reaches = min(covered + sum(to_come[:more]), max(covered, plan.goal))
    return Bought(covered, reaches, min(spent_s / plan.budget_s, 1.0))


@contextmanager
def _watched(plan: Replays, result: Path, watching: Watching | None) -> Iterator[None]:
    """Tells how far it is, now and then, while something else waits for its end."""
    if watching is None:
        yield
        return
    ready, over = threading.Event(), threading.Event()

    def look() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are for who waits
        ready.set()
        while not over.wait(_LOOKS_EVERY_S):
            watching(bought(plan, _lines(result)))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    ready.wait()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _lines(result: Path) -> list[dict[str, Any]]:
    """Every line that is whole."""
    text = result.read_text() if result.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
