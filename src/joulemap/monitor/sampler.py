"""The sampling loop. It owns time; meters only read.

Every channel says when it wants to be read next, and gets absolute deadlines: a late reading does not
delay those after it. About once a second what was read is handed over as a :class:`Batch`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from joulemap.devices import Domain
from joulemap.errors import MeterError
from joulemap.meters.available import OpenMeters, open_meters
from joulemap.meters.meter import Meter
from joulemap.meters.remarks import Remarks
from joulemap.monitor.facts import Fact, FactsThread
from joulemap.monitor.family import Family
from joulemap.monitor.lane import ANSWER_S, END_S, Lane
from joulemap.monitor.quality import Quality, Score
from joulemap.monitor.timeline import Timeline
from joulemap.monitor.track import Note
from joulemap.traces import ClockAnchor, PowerTrace
from joulemap.units import NS_PER_S, fmt_seconds

BATCH_NS = NS_PER_S
"""How often what was read is handed over."""
MOST_NOTES = 100
STEP_NS = 50_000_000
"""The system clock was stepped when it moves this far against the monotonic clock within a second."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What was learnt until ``t_ns``, about a second's worth. Parts of power chain from batch to batch."""

    t_ns: int
    power: Sequence[PowerTrace]
    facts: Sequence[Fact]
    notes: Sequence[Note]
    quality: Quality
    """Of this batch alone."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What is known at the end."""

    quality: Quality
    anchor: ClockAnchor
    notes: Sequence[Note]


class Waiter(Protocol):
    """How the loop sleeps: up to some seconds, or until somebody wants something."""

    def wait(self, seconds: float) -> bool:
        """Sleep; True where a batch is wanted at once."""
        ...

    @property
    def stopped(self) -> bool:
        """Whether the loop shall end."""
        ...


def _open(meters: Sequence[Meter]) -> OpenMeters:
    opened = open_meters(meters)
    if not opened.channels:
        reasons = [f"{name}: {probe.reason}" for name, probe in opened.left_out.items()]
        what = f"Nothing can be metered. {' '.join(reasons)}".strip()
        raise MeterError(what, "joulemap doctor says what can be done.")
    return opened


class Sampler:
    """Reads the channels of some meters until it is stopped: one meter in the loop itself, several each in a
    thread of its own, so that a driver that blocks delays nobody else's deadlines."""

    def __init__(
        self,
        meters: Sequence[Meter],
        timeline: Timeline | None = None,
        cpu_s: Callable[[], float] = time.process_time,
    ) -> None:
        self.timeline = timeline or Timeline.start()
        self._notes: list[Note] = []
        self._all_notes: list[Note] = []
        self._remarks = Remarks()
        opened = _open(meters).opened
        self._meters = [one.meter for one in opened]
        self._families = [Family(one, self.timeline) for one in opened if one.channels]
        self._facts: list[FactsThread] = []
        self._cpu_s = cpu_s
        start_ns = self.timeline.now_ns()
        self._score, self._whole_score = Score(start_ns, cpu_s), Score(start_ns, cpu_s)
        self._ahead_ns = 0
        self.batch_every_ns = BATCH_NS

    @property
    def domains(self) -> list[Domain]:
        """What is metered."""
        return [channel.domain for family in self._families for channel in family.channels]

    def prime(self) -> None:
        """Take the first reading of every channel, before the loop starts."""
        for family in self._families:
            family.read_due(None)

    def run(self, waiter: Waiter, hand_over: Callable[[Batch], None]) -> Summary:
        """Sample until the waiter is stopped, then close the meters."""
        with self._asking_for_facts():
            if len(self._families) == 1:
                self._run_alone(self._families[0], waiter, hand_over)
            else:
                self._run_lanes(waiter, hand_over)
        hand_over(self._batch(last=True))
        self.close()
        return self.summary()

    @contextmanager
    def _asking_for_facts(self) -> Iterator[None]:
        self._facts = [FactsThread(meter, self.timeline) for meter in self._meters]
        try:
            yield
        finally:
            for facts in self._facts:
                facts.stop()
            for facts in self._facts:
                facts.end()

    def _run_alone(self, family: Family, waiter: Waiter, hand_over: Callable[[Batch], None]) -> None:
        now_ns, wait = self.timeline.now_ns, waiter.wait
        due_ns = family.read_due(now_ns())
        flush_ns = now_ns() + self.batch_every_ns
        while not waiter.stopped:
            wait_ns = min(due_ns, flush_ns) - now_ns()
            wanted = wait(wait_ns / NS_PER_S if wait_ns > 0 else 0.0)
            woke_ns = now_ns()
            due_ns = family.read_due(None if wanted else woke_ns)
            if wanted or woke_ns >= flush_ns:
                hand_over(self._batch())
                flush_ns = now_ns() + self.batch_every_ns
        family.read_last()

    def _run_lanes(self, waiter: Waiter, hand_over: Callable[[Batch], None]) -> None:
        now_ns = self.timeline.now_ns
        lanes = [Lane(family, self.timeline) for family in self._families]
        try:
            flush_ns = now_ns() + self.batch_every_ns
            while not waiter.stopped:
                wanted = waiter.wait(max(flush_ns - now_ns(), 0) / NS_PER_S)
                if wanted:
                    _read_all(lanes)
                if wanted or now_ns() >= flush_ns:
                    hand_over(self._batch())
                    flush_ns = now_ns() + self.batch_every_ns
        finally:
            _end(lanes)

    def read(self) -> Batch:
        """Read every channel once, now, without a loop: for who wants a number now and then."""
        self.prime()
        return self._batch()

    def close(self) -> None:
        """Let go of the meters."""
        for family in self._families:
            family.close()

    def summary(self) -> Summary:
        """How it went so far."""
        quality = self._whole_score.quality(self.timeline.now_ns())
        return Summary(quality, self.timeline.anchor(), tuple(self._all_notes))

    def _batch(self, last: bool = False) -> Batch:
        t_ns = self.timeline.now_ns()
        self._watch_system_clock(t_ns)
        power: list[PowerTrace] = []
        for family in self._families:
            parts, notes, tally = family.take(t_ns, last)
            power += parts
            self._notes += notes
            self._score.add(tally)
            self._whole_score.add(tally)
        facts = self._take_facts(t_ns)
        return Batch(t_ns, power, facts, self._take_notes(), self._take_quality(t_ns))

    def _take_facts(self, t_ns: int) -> list[Fact]:
        """With a note where one changes what the energy means."""
        facts = [fact for thread in self._facts for fact in thread.take()]
        said = self._remarks.new({fact.name: fact.value for fact in facts})
        self._notes += [Note(t_ns, text) for text in said]
        return facts

    def _take_notes(self) -> list[Note]:
        room = MOST_NOTES - 1 - len(self._all_notes)
        notes, self._notes = self._notes, []
        if notes and len(notes) > room:
            more = Note(notes[-1].t_ns, "There is more to note than is kept.")
            notes = [*notes[:room], more] if room >= 0 else []
        self._all_notes += notes
        return notes

    def _take_quality(self, t_ns: int) -> Quality:
        score, self._score = self._score, Score(t_ns, self._cpu_s)
        return score.quality(t_ns)

    def _watch_system_clock(self, t_ns: int) -> None:
        ahead_ns = self.timeline.system_ahead_ns()
        moved_ns, self._ahead_ns = ahead_ns - self._ahead_ns, ahead_ns
        if abs(moved_ns) > STEP_NS:
            way, by = "forward" if moved_ns > 0 else "back", fmt_seconds(round(abs(moved_ns) / NS_PER_S, 2))
            text = f"The system clock was set {way} by {by}; the power goes on by the clock of the start."
            self._notes.append(Note(t_ns, text))


def _read_all(lanes: Sequence[Lane]) -> None:
    """Everything, now; a lane that hangs is not waited for."""
    for lane in lanes:
        lane.ask()
    until_s = time.monotonic() + ANSWER_S
    for lane in lanes:
        lane.answer(until_s)


def _end(lanes: Sequence[Lane]) -> None:
    for lane in lanes:
        lane.stop()
    until_s = time.monotonic() + END_S
    for lane in lanes:
        lane.end(until_s)
