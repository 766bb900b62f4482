"""Beside the program: finds the targets in its traced steps, and orders repetitions until enough is known.

It reads what the monitor and the program's side have written so far, and writes orders that the program takes
when it comes to them. The program never waits for it: without an order its steps are plain.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from joulemap.calibration.operation import busy_s
from joulemap.calibration.recorded import in_order, own_power
from joulemap.errors import JoulemapError, MeterError
from joulemap.frameworks.imported import ImportedTrace
from joulemap.frameworks.raw import read_raw
from joulemap.recorder.experiment import EASED_STEP, ORDERS, PLAIN, TARGETS, Tail
from joulemap.recorder.journal import JOURNAL, TRACED, one_by_one
from joulemap.recording import Recording
from joulemap.recording.folder import RAW
from joulemap.traces import Float64, PowerTrace, Steps
from joulemap.units import NS_PER_S, fmt_share
from joulemap.validating import gate
from joulemap.validating.easing import ABOVE, EASED, Easing
from joulemap.validating.kind import of_kind
from joulemap.validating.limit import power_limit_w
from joulemap.validating.metered import Metered
from joulemap.validating.plan import (
    AS_IT_IS,
    EASED_EXTRA,
    LONGER,
    Turns,
    Wanted,
    extra,
    steps_of_block,
    times,
)
from joulemap.validating.report import SPENT
from joulemap.validating.stretch import Stretch, plain
from joulemap.validating.target import Target, targets
from joulemap.validating.truth import Truth, truths

LOOK_S = 0.5
"""How often to look, at plain steps as at blocks: on a CPU what that takes counts as the program's, and
cancels only where it is the same in both."""
MOST_TRIES = 20
AFTERWARDS = 2
"""Steps that follow the traced ones before these are looked at."""
AHEAD = 2
"""Blocks that are ordered before the last one is over, so that the program need not wait for the next."""
TELLING = 3
"""Blocks that tell how long they take; before, nobody knows how many there is time for."""
SETTLING_S = 0.05
"""So much longer than the meter's period a rest is: it updates in it, and knows of the last work then."""
HARDLY_WAITS = 0.9
"""A GPU that works so much of the time does not wait for its host."""
REACHED_IN = 8
"""Plain steps in which each target is executed, unless it cannot be reached (a module in a compiled graph):
then no block is spent on it."""
PATIENCE_S = 10.0
"""How long to wait for level power; then the next block begins all the same, and is counted."""


class Referee:
    """A thread. What it knows at the end: targets, those that were refused with the reason, and stretches."""

    def __init__(self, recording: Path, folder: Path, wanted: Wanted, say: Callable[[str], None]) -> None:
        self._path, self._folder, self._wanted, self._say = recording, folder, wanted, say
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._guarded, name="joulemap validate", daemon=True)
        self._steps: list[tuple[int, int, str]] = []
        self._traced: list[tuple[int, int, str]] = []
        self._program = Tail(recording / RAW / JOURNAL)
        self._answers = Tail(folder / JOURNAL)
        self._sessions = self._since = self._told_ns = 0
        self._untraced: list[tuple[int, int, str]] = []
        self.label = ""
        self.domain = ""
        self._work_s = 0.0
        self._device = ""
        self._ease: float | None = None
        self.targets: list[Target] = []
        self.refused: dict[int, str] = {}
        self.stretches: list[Stretch] = []
        self.problem = ""
        self.blocks = self.restless = 0
        self.stopped = False
        self.reached = "the program ended before it was traced"

    def start(self) -> Referee:
        self._thread.start()
        return self

    def stop(self) -> None:
        """The program has ended: read what it said last."""
        self._over.set()
        self._thread.join()
        self._listen()

    def _guarded(self) -> None:
        try:
            self._run()
        except JoulemapError as error:
            self.problem = error.message
        except Exception as error:  # noqa: BLE001 - the program and its recording go on
            self.problem = f"{type(error).__name__}: {error}"
        if self._wanted.stop and not self._over.is_set():
            self._interrupt()

    def _run(self) -> None:
        while not self._sessions or self._since < AFTERWARDS:
            if self._over.wait(LOOK_S):
                return
            self._listen()
        trace = next((one for one in read_raw(self._path / RAW) if one.framework == "torch"), None)
        if trace is None:
            self.problem = "no step of PyTorch was traced"
            return
        self._choose(trace)
        if self.targets:
            self._order_all()

    def _choose(self, trace: ImportedTrace) -> None:
        """Targets on the device that draws most of those with operations; a GPU before a CPU."""
        rows = [asdict(one) for one in trace.signatures]
        events = trace.events.take(of_kind(trace.events, self._traced_steps(), self.label))
        count = sum(label == self.label for *_, label in self._traced)
        for power in in_order(self._recording().power()):
            wanted = (count, self._wanted.least_share, self._wanted.modules)
            self.targets = targets(events, power.domain.device, rows, *wanted)
            if self.targets:
                self.domain = power.domain.name
                self._device = power.domain.device
                self._work_s = busy_s(events, self._device) / count
                self._tell(power.domain.device)
                return
        least = fmt_share(self._wanted.least_share)
        self.problem = f"no device with a meter ran an operation that takes {least} of its time"

    def _traced_steps(self) -> Steps:
        return Steps.from_columns(
            start_ns=[start_ns for start_ns, *_ in self._traced],
            end_ns=[end_ns for _, end_ns, _ in self._traced],
            label=[label for *_, label in self._traced],
        )

    @property
    def waits(self) -> bool:
        """Whether the device waits for its host."""
        return self.busy < HARDLY_WAITS

    @property
    def busy(self) -> float:
        """The part of a step in which a GPU works. A host is slower while that is traced, and gets slower and
        faster by itself: so all other steps say."""
        plainly = [end_ns - start_ns for start_ns, end_ns, label in self._untraced if label == self.label]
        if not self._device.startswith("GPU") or not (plainly or plain(self.stretches)):
            return 1.0
        step_s = self._step_s() if plain(self.stretches) else float(np.median(plainly)) / NS_PER_S
        return self._work_s / step_s

    def _tell(self, device: str) -> None:
        """The program's side of what is to be repeated."""
        said = {
            "device": "cuda" if device.startswith("GPU") else "cpu",
            "label": self.label,
            "stop": self._wanted.stop,
            "operations": [one.to_json() for one in self.targets if one.kind == "operation"],
            "modules": [one.to_json() for one in self.targets if one.kind == "module"],
        }
        part = self._folder / f"{TARGETS}.part"
        part.write_text(json.dumps(said))
        part.replace(self._folder / TARGETS)
        self._told_ns = time.time_ns()

    def _order_all(self) -> None:
        """Until everything is known well enough, the time is up, or the program ends."""
        turns, begin_s = Turns(self._wanted), time.monotonic()
        until_s = begin_s + self._wanted.budget_s
        self.reached = "the program ended first"
        while self._may_order(until_s):
            power = self._look()
            open_ = self._open()
            affords = self._affords(time.monotonic() - begin_s)
            target = turns.next([*open_, *self._references(power)], self._truths(open_, power), affords)
            if target is None:
                enough = "all is known as well as was asked for"
                self.reached = enough if open_ else "nothing of it can be executed again"
                return
            self._order(target, power)
            left_s = max(until_s - time.monotonic(), 0.0)
            far = f"{turns.known} of {len(open_)} known well enough, {left_s:.0f} s left"
            self._say(f"block {self.blocks}: {target.name}; {far}")

    def _affords(self, spent_s: float) -> float:
        """How many more blocks the budget buys, by what those so far took; any number until that is known."""
        over = self.blocks - self._under_way()
        if over < TELLING:
            return np.inf
        return over * max(self._wanted.budget_s / spent_s - 1, 0.0)

    def _interrupt(self) -> None:
        """End the program, now that enough is known, or nothing can be."""
        if not self._told_ns:
            self._tell("CPU")
        self.stopped = True
        self._write({"stop": True})

    def _open(self) -> list[Target]:
        """What can be executed again."""
        return [one for one in self.targets if one.number not in self.refused]

    def _references(self, power: PowerTrace) -> list[Target]:
        """What eased blocks refer to; whether there are any is decided before the first."""
        if self._ease is None:
            near = self._plain_w(power) > ABOVE * self._limit_w()
            self._ease = EASED if near and not self.waits else 0.0
        return [AS_IT_IS] if self._ease else []

    def _limit_w(self) -> float:
        """What the device may draw; a file that is just being written is read again."""
        for _ in range(MOST_TRIES):
            with suppress(JoulemapError):
                return power_limit_w(self._recording(), self._device)
            self._over.wait(LOOK_S)
        return np.inf

    def _plain_w(self, power: PowerTrace) -> float:
        """What is drawn in steps before anything is changed."""
        return float(np.median(gate.samples_w(self._plain_steps(), power)))

    def _truths(self, some: Iterable[Target], power: PowerTrace) -> dict[int, Truth]:
        metered = Metered.of(power, self.stretches)
        idle_w = metered.rest_w if self.waits or self._ease else 0.0
        easing = Easing.of(metered, self.stretches, self._work_s)
        return truths({one.number: one.step_s for one in some}, self.stretches, metered, idle_w, easing)

    def _may_order(self, until_s: float) -> bool:
        """Wait until another block may be ordered: a few ahead, while plain steps draw the same from one
        block to the next; once there is none ahead, when they are level. False where it is over."""
        while self._under_way():
            if self.problem or self._over.wait(LOOK_S):
                return False
            power = self._look()
            if self._is_spent(until_s):
                return False
            if self._under_way() < AHEAD and self._is_steady(power):
                return True
        return self._is_level(until_s)

    def _under_way(self) -> int:
        """Blocks that were ordered and are not over."""
        return self.blocks - sum(one.target != PLAIN for one in self.stretches)

    def _is_spent(self, until_s: float) -> bool:
        """Whether the time is up, though never before the first block is ordered."""
        if not self.blocks or time.monotonic() <= until_s:
            return False
        self.reached = SPENT
        return True

    def _is_steady(self, power: PowerTrace) -> bool:
        """Whether the plain steps between the last blocks drew the same; the first few cannot say."""
        levels = self._levels_w(power)
        return len(levels) < gate.SAMPLES or gate.is_level(levels, levels, power).stable

    def _is_level(self, until_s: float) -> bool:
        """Wait until the plain steps since the last block draw the same; not for ever. False where the budget
        is spent or the program has ended."""
        since_s: float | None = None
        while not self._over.wait(LOOK_S):
            if self._is_spent(until_s):
                return False
            power = self._look()
            samples = gate.samples_w(self._plain_steps(), power)
            if len(samples) < gate.SAMPLES:
                continue
            since_s = time.monotonic() if since_s is None else since_s
            level = gate.is_level(samples, self._levels_w(power), power).stable
            if level or time.monotonic() - since_s > PATIENCE_S:
                self.restless += not level
                return True
        return False

    def _plain_steps(self) -> list[gate.Step]:
        since_ns = max((one.end_ns for one in self.stretches if one.target != PLAIN), default=self._told_ns)
        labels = (self.label, self.label + EASED_STEP)
        return [(a, b) for a, b, label in self._steps if a >= since_ns and label in labels]

    def _levels_w(self, power: PowerTrace) -> Float64:
        """The power of the stretches between blocks, as far as it is known."""
        metered = Metered.of(power, self.stretches)
        rests = plain(self.stretches, self._ease or 0.0)
        known = [one for one in rests if metered.knows(one) and one.seconds > 0]
        return np.array([metered.energy_j(one) / one.seconds for one in known])

    def _order(self, target: Target, power: PowerTrace) -> None:
        rest_ease = self._ease or 0.0
        count = times(target, self._wanted, EASED_EXTRA if rest_ease else extra(self.busy))
        ease = 0.0 if target == AS_IT_IS else rest_ease
        waits = 1 + ease
        added_s = (count - 1) * target.share * waits * min(self.busy, 1.0) * self._step_s()
        steps, rest = steps_of_block(
            self._eased_s(ease) + added_s,
            self._eased_s(rest_ease),
            power.period_s,
            shared=power.domain.device.startswith("CPU"),
        )
        self._write(
            {
                "target": target.number,
                "times": count,
                "ease": ease,
                "steps": steps * LONGER if target == AS_IT_IS else steps,
                "rest": rest,
                "rest_ease": rest_ease,
                "pause_s": self._pause_s(power.period_s),
            }
        )
        self.blocks += 1

    def _pause_s(self, period_s: float) -> float:
        """At borders a GPU that waits in between may as well rest, until the meter has all of what was
        before."""
        return period_s + SETTLING_S if self.waits or self._ease else 0.0

    def _step_s(self) -> float:
        """How long a plain step takes."""
        base = plain(self.stretches)
        if base:
            return sum(one.seconds for one in base) / sum(one.steps for one in base)
        spans = self._plain_steps()
        return (spans[-1][1] - spans[0][0]) / NS_PER_S / len(spans)

    def _eased_s(self, ease: float) -> float:
        """How long a step takes in which the GPU waits after each target."""
        waits = sum(one.share for one in self._open() if one.kind == "operation")
        return self._step_s() * (1 + ease * waits)

    def _write(self, order: Mapping[str, Any]) -> None:
        with (self._folder / ORDERS).open("a") as file:
            file.write(json.dumps(order) + "\n")

    def _recording(self) -> Recording:
        return Recording.open(self._path)

    def _look(self) -> PowerTrace:
        """What is known by now; a file that is just being written is read again."""
        self._listen()
        for _ in range(MOST_TRIES):
            with suppress(JoulemapError):
                recording = self._recording()
                trace = next(one for one in recording.power() if one.domain.name == self.domain)
                return own_power(recording, trace)
            self._over.wait(LOOK_S)
        raise MeterError(f"the power of {self.domain} cannot be read any more")

    def _listen(self) -> None:
        """What the program's side has said since: its steps, and how the orders went."""
        for what, content in _lines(self._program):
            if what == "step":
                start_ns, end_ns, label, seen = content
                self._steps.append((start_ns, end_ns, label))
                if seen != TRACED and not self._told_ns:
                    self._untraced.append((start_ns, end_ns, label))
                self.label = label if seen == TRACED and not self.label else self.label
                if seen == TRACED:
                    self._traced.append((start_ns, end_ns, label))
                self._since += 1
            elif what == "session" and content.get("steps"):
                self._sessions, self._since = self._sessions + bool(self._traced), 0
        for what, content in _lines(self._answers):
            if what == "stretch":
                self._keep(Stretch.of(content))
            elif what == "refused":
                self.refused[content[0]] = content[1]
            elif what == "problem":
                self.problem = content

    def _keep(self, stretch: Stretch) -> None:
        self.stretches.append(stretch)
        unreached = [stretch.target] if stretch.target >= 0 and stretch.steps and not stretch.extra else []
        if stretch.target == PLAIN and stretch.steps >= REACHED_IN:
            unreached += [one.number for one in self.targets if not stretch.seen.get(one.number)]
        for number in unreached:
            self.refused.setdefault(number, "its executions could not be reached")


def _lines(tail: Tail) -> Iterator[tuple[str, Any]]:
    while (line := tail.next()) is not None:
        yield from one_by_one(*line)
