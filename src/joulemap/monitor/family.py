"""The channels of one meter, and how they are read. Families do not wait for each other: each may have a
thread of its own, and one whose driver hangs or breaks is said, and leaves a gap, while the others go on.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress

from joulemap.errors import JoulemapError, MeterError
from joulemap.meters.available import OpenMeter
from joulemap.meters.meter import Channel, LateChannel
from joulemap.meters.schedule import Every
from joulemap.monitor.quality import Tally
from joulemap.monitor.timeline import Timeline
from joulemap.monitor.track import Note, Track
from joulemap.traces import PowerTrace
from joulemap.units import NS_PER_S, fmt_seconds

HANGS_NS = 2 * NS_PER_S
"""A reading that takes this long hangs. Nobody knows when its value was taken, so the next one counts."""


class _Reader:
    """A channel, its track and its deadline."""

    def __init__(self, channel: Channel, now_ns: int) -> None:
        schedule = channel.schedule
        self.channel = channel
        self.track = Track(channel.domain, channel.quantity, channel.wraps_at_j)
        self.read = channel.read
        self.next_ns, self.saw, self.stamp_ns = schedule.next_ns, schedule.saw, schedule.stamp_ns
        self.grid_ns = round(schedule.period_s * NS_PER_S) if type(schedule) is Every else 0
        self.apart_ns = self.grid_ns or round((channel.domain.update_period_s or 0.0) * NS_PER_S)
        self.value: float | None = None
        self.due_ns = now_ns

    def take(self, value: float, before_ns: int, after_ns: int) -> None:
        """Keep a reading. A schedule that learns when the sensor updates knows better than the middle of
        the call what time a new value is of."""
        if self.grid_ns:  # nothing is learnt from its readings: the short way, 250 times a second
            self.track.saw((before_ns + after_ns) // 2, value)
            self.due_ns = (after_ns // self.grid_ns + 1) * self.grid_ns
            return
        changed, self.value = value != self.value, value
        self.saw(before_ns, after_ns, changed)
        middle_ns = (before_ns + after_ns) // 2
        self.track.saw(self.stamp_ns(before_ns, after_ns) if changed else middle_ns, value)
        self.due_ns = self.next_ns(after_ns)


class Family:
    """Reads the channels of one meter when they are due. One thread reads; another may take what there is."""

    def __init__(self, opened: OpenMeter, timeline: Timeline) -> None:
        self.name = opened.meter.name
        self._timeline = timeline
        self._offset_ns, self._monotonic_ns = timeline.offset_ns, timeline.monotonic_ns
        start_ns = timeline.now_ns()
        self._readers = [_Reader(channel, start_ns) for channel in opened.channels]
        self._tally = Tally()
        self._lock = threading.Lock()  # of tracks and tally; never held while a sensor is read
        self._notes: list[Note] = []
        self._reading: tuple[_Reader, int] | None = None
        self._hung: str | None = None
        self._broken = False

    @property
    def channels(self) -> Sequence[Channel]:
        """What it reads."""
        return [reader.channel for reader in self._readers]

    def read_due(self, due_by_ns: int | None) -> int:
        """Read the channels whose deadline has come; all of them where that is None. The next deadline."""
        for reader in self._readers:
            if due_by_ns is None:
                self._read(reader)
            elif reader.due_ns <= due_by_ns:
                self._read(reader, reader.due_ns)
        return min([reader.due_ns for reader in self._readers])

    def read_last(self) -> None:
        """Every channel once more, and those whose readings arrive late until all are there."""
        self.read_due(None)
        for reader in self._readers:
            for _ in range(reader.channel.settle() if isinstance(reader.channel, LateChannel) else 0):
                self._read(reader)

    def _read(self, reader: _Reader, due_ns: int | None = None) -> None:
        """One reading, late or not where it had a deadline. Whatever a driver throws is a reading that
        failed, and is tried again."""
        offset_ns, monotonic_ns = self._offset_ns, self._monotonic_ns  # now, without a call
        before_ns = offset_ns + monotonic_ns()
        self._reading = reader, before_ns
        try:
            value = reader.read()
        except Exception as error:  # noqa: BLE001 - a vendor's library may raise anything
            self._failed(reader, before_ns, error)
        else:
            after_ns = offset_ns + monotonic_ns()
            with self._lock:
                if after_ns - before_ns > HANGS_NS:
                    self._tally.failed += 1
                    reader.due_ns = reader.next_ns(after_ns)
                else:
                    reader.take(value, before_ns, after_ns)
                if due_ns is not None:
                    self._tally.late(before_ns - due_ns, reader.apart_ns)
        self._reading = None

    def _failed(self, reader: _Reader, before_ns: int, error: Exception) -> None:
        reason = error.message if isinstance(error, MeterError) else f"{type(error).__name__}: {error}"
        with self._lock:
            self._tally.failed += 1
            reader.track.failed(before_ns, reason)
            reader.due_ns = reader.next_ns(self._timeline.now_ns())

    def take(self, t_ns: int, last: bool) -> tuple[list[PowerTrace], list[Note], Tally]:
        """What was learnt since this was last called, from any thread."""
        with self._lock:
            self._watch(t_ns)
            lost = last and (self._broken or self._hung is not None)
            parts = [self._part(reader.track, t_ns, last, lost) for reader in self._readers]
            notes, self._notes = self._notes, []
            for reader in self._readers:
                notes += reader.track.notes
                reader.track.notes = []
            tally, self._tally = self._tally, Tally()
        return [part for part in parts if part is not None], notes, tally

    def _part(self, track: Track, t_ns: int, last: bool, lost: bool) -> PowerTrace | None:
        if lost:
            track.lost(t_ns)
        return track.finish() if last else track.take()

    def _watch(self, t_ns: int) -> None:
        """Whether a reading hangs, said once; and when it does no more."""
        reading = self._reading
        since_ns = t_ns - reading[1] if reading is not None else 0
        if self._hung is None and reading is not None and since_ns > HANGS_NS:
            self._hung = reading[0].channel.domain.name
            seconds = fmt_seconds(since_ns / NS_PER_S)
            self._notes.append(Note(t_ns, f"{self._hung} has not answered for {seconds}; it is waited for."))
        elif self._hung is not None and since_ns <= HANGS_NS:
            self._notes.append(Note(t_ns, f"{self._hung} answers again."))
            self._hung = None

    def give_up(self, t_ns: int) -> None:
        """It did not end when it was told to: its energy is unknown from its last reading on."""
        self._broken = True
        names = ", ".join(channel.domain.name for channel in self.channels)
        with self._lock:
            self._notes.append(Note(t_ns, f"{names}: the meter {self.name} did not come to an end."))

    def broke(self, error: Exception) -> None:
        """Something of ours went wrong; the other families go on."""
        self._broken = True
        text = f"The meter {self.name} broke off ({type(error).__name__}: {error}). Please report this."
        with self._lock:
            self._notes.append(Note(self._timeline.now_ns(), text))

    def close(self) -> None:
        """Let go of the channels; not of those that are still being read, which would be worse."""
        if self._reading is not None:
            return
        for channel in self.channels:
            with suppress(JoulemapError, OSError):
                channel.close()
