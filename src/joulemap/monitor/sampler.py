"""The sampling loop. It owns time; meters only read.

Every channel says when it wants to be read next, and gets absolute deadlines: a late reading does not
delay those after it. About once a second what was read is handed over as a :class:`Batch`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from joulemap.devices import Domain
from joulemap.errors import JoulemapError, MeterError
from joulemap.meters.available import OpenMeters, open_meters
from joulemap.meters.meter import Channel, Meter
from joulemap.meters.schedule import Every
from joulemap.monitor.quality import Quality, Score
from joulemap.monitor.timeline import Timeline
from joulemap.monitor.track import Note, Track
from joulemap.traces import ClockAnchor, PowerTrace
from joulemap.units import NS_PER_S, fmt_seconds

BATCH_NS = FACTS_NS = NS_PER_S
"""How often what was read is handed over, and how often facts are looked up."""
MOST_NOTES = 100
STEP_NS = 50_000_000
"""The system clock was stepped when it moves this far against the monotonic clock within a second."""


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that explains the energy: a clock rate, a temperature, a load. The name ends in its unit."""

    t_ns: int
    name: str
    value: float


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


class _Reader:
    """A channel, its track and its deadline."""

    def __init__(self, channel: Channel, now_ns: int) -> None:
        self.channel = channel
        self.track = Track(channel.domain, channel.quantity, channel.wraps_at_j)
        self.read = channel.read
        self.next_ns, self.saw = channel.schedule.next_ns, channel.schedule.saw
        self.stamp_ns: Callable[[int, int], int] = getattr(channel.schedule, "stamp_ns", _middle)
        self.period_ns = round(getattr(channel.schedule, "period_s", 0.0) * NS_PER_S)
        self.fixed_rate = type(channel.schedule) is Every and self.period_ns > 0
        self.value: float | None = None
        self.due_ns = now_ns

    def take(self, value: float, before_ns: int, after_ns: int) -> None:
        """Keep a reading. A schedule that learns when the sensor updates knows better than the middle of
        the call what time a new value is of."""
        if self.fixed_rate:  # nothing is learnt from its readings: the short way, 250 times a second
            self.track.saw((before_ns + after_ns) // 2, value)
            self.due_ns = (after_ns // self.period_ns + 1) * self.period_ns
            return
        changed, self.value = value != self.value, value
        self.saw(before_ns, after_ns, changed)
        stamp_ns = self.stamp_ns if changed else _middle
        self.track.saw(stamp_ns(before_ns, after_ns), value)
        self.due_ns = self.next_ns(after_ns)


def _middle(before_ns: int, after_ns: int) -> int:
    return (before_ns + after_ns) // 2


def _open(meters: Sequence[Meter]) -> OpenMeters:
    opened = open_meters(meters)
    if not opened.channels:
        reasons = [f"{name}: {probe.reason}" for name, probe in opened.left_out.items()]
        what = f"Nothing can be metered. {' '.join(reasons)}".strip()
        raise MeterError(what, "joulemap doctor says what can be done.")
    return opened


class Sampler:
    """Reads the channels of some meters until it is stopped."""

    def __init__(
        self,
        meters: Sequence[Meter],
        timeline: Timeline | None = None,
        cpu_s: Callable[[], float] = time.process_time,
    ) -> None:
        self.timeline = timeline or Timeline.start()
        self._notes: list[Note] = []
        self._all_notes: list[Note] = []
        self._meters = _open(meters)
        start_ns = self.timeline.now_ns()
        self._readers = [_Reader(channel, start_ns) for channel in self._meters.channels]
        self._cpu_s = cpu_s
        self._score, self._whole_score = Score(start_ns, cpu_s), Score(start_ns, cpu_s)
        self._ahead_ns = self._facts_ns = 0
        self.batch_every_ns = BATCH_NS

    @property
    def domains(self) -> list[Domain]:
        """What is metered."""
        return [reader.channel.domain for reader in self._readers]

    def prime(self) -> None:
        """Take the first reading of every channel, before the loop starts."""
        self._read_due(None)

    def run(self, waiter: Waiter, hand_over: Callable[[Batch], None]) -> Summary:
        """Sample until the waiter is stopped, then close the meters."""
        now_ns, wait = self.timeline.now_ns, waiter.wait
        due_ns = self._read_due(now_ns())
        flush_ns = now_ns() + self.batch_every_ns
        while not waiter.stopped:
            wait_ns = min(due_ns, flush_ns) - now_ns()
            wanted = wait(wait_ns / NS_PER_S if wait_ns > 0 else 0.0)
            woke_ns = now_ns()
            due_ns = self._read_due(None if wanted else woke_ns)
            if wanted or woke_ns >= flush_ns:
                hand_over(self._batch())
                flush_ns = now_ns() + self.batch_every_ns
        self._read_due(None)
        hand_over(self._batch(last=True))
        self.close()
        return self.summary()

    def close(self) -> None:
        """Let go of the meters."""
        for reader in self._readers:
            with suppress(JoulemapError, OSError):
                reader.channel.close()

    def summary(self) -> Summary:
        """How it went so far."""
        quality = self._whole_score.quality(self.timeline.now_ns())
        return Summary(quality, self.timeline.anchor(), tuple(self._all_notes))

    def _read_due(self, due_by_ns: int | None) -> int:
        """Read the channels whose deadline has come; all of them where that is None. The next deadline."""
        offset_ns, monotonic_ns = self.timeline.offset_ns, self.timeline.monotonic_ns
        for reader in self._readers:
            due_ns = reader.due_ns
            if due_by_ns is not None and due_ns > due_by_ns:
                continue
            before_ns = offset_ns + monotonic_ns()
            try:
                value = reader.read()
            except MeterError as error:
                self._score.failed += 1
                reader.track.failed(before_ns, error.message)
                reader.due_ns = reader.next_ns(offset_ns + monotonic_ns())
                continue
            reader.take(value, before_ns, offset_ns + monotonic_ns())
            if due_by_ns is not None:
                late_ns = before_ns - due_ns
                self._score.late_ns.append(late_ns)
                if late_ns > reader.period_ns > 0:
                    self._score.missed += late_ns // reader.period_ns
        return min([reader.due_ns for reader in self._readers])

    def _batch(self, last: bool = False) -> Batch:
        t_ns = self.timeline.now_ns()
        self._watch_system_clock(t_ns)
        tracks = [reader.track for reader in self._readers]
        parts = [track.finish() if last else track.take() for track in tracks]
        for track in tracks:
            self._notes += track.notes
            track.notes = []
        power = [part for part in parts if part is not None]
        return Batch(t_ns, power, self._facts(t_ns), self._take_notes(), self._take_quality(t_ns))

    def _facts(self, t_ns: int) -> list[Fact]:
        if t_ns - self._facts_ns < FACTS_NS / 2:
            return []
        self._facts_ns = t_ns
        return [Fact(t_ns, *fact) for fact in self._meters.facts().items()]

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
        self._whole_score.add(score)
        return score.quality(t_ns)

    def _watch_system_clock(self, t_ns: int) -> None:
        ahead_ns = self.timeline.system_ahead_ns()
        moved_ns, self._ahead_ns = ahead_ns - self._ahead_ns, ahead_ns
        if abs(moved_ns) > STEP_NS:
            way = "forward" if moved_ns > 0 else "back"
            self._notes.append(
                Note(
                    t_ns,
                    f"The system clock was set {way} by {fmt_seconds(abs(moved_ns) / NS_PER_S)}; "
                    "the power goes on by the clock of the start.",
                )
            )
