"""When to read a sensor.

A cheap sensor is read at a fixed rate. NVML's energy counter blocks for about 4 ms a call and changes only
every 100 ms, so its schedule learns when it changes: ``Updates``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from joulemap.meters.beat import Beat
from joulemap.meters.meter import Schedule
from joulemap.units import NS_PER_S

TAKEN = (0.25, 0.6)
"""Where in a call its value is taken, as a share of the call: of all hypotheses only these agree with the
published recordings of an H200, in which calls took 2 to 33 ms."""
GAP_S = 2e-4
LATEST_S = 5e-3
SHARP_S = 1.5e-3
"""Where edges are known this well, a check now and then will do."""
CHECK_S, DOUBT_S = 1.5, 0.3
"""How often a reading goes close to an edge where they are known well, and at least how often where not."""
SIDES = (0, 1, 0, -1)
"""At the edge, after it, at it, before it."""
ASIDE_S = 1e-3
VERNIER = 0.9
"""Where calls must be saved before the updates are learnt: steps of less than a period, in periods, slide
along the updates and meet every phase."""


@dataclass(frozen=True, slots=True)
class Every:
    """At a fixed rate, on a grid of absolute times: a late reading does not delay those after it."""

    period_s: float

    def next_ns(self, now_ns: int) -> int:
        """The next point of the grid."""
        period_ns = round(self.period_s * NS_PER_S)
        return (now_ns // period_ns + 1) * period_ns

    def saw(self, before_ns: int, after_ns: int, changed: bool) -> None:
        """A fixed rate does not depend on what is read."""

    def stamp_ns(self, before_ns: int, after_ns: int) -> int:
        """The middle of the reading."""
        return (before_ns + after_ns) // 2


class Updates:
    """Between the updates of a slow counter, so that each is seen, and stamped with the time it happened.

    Once a :class:`~joulemap.meters.beat.Beat` has learnt when the updates come, one reading in the middle
    between two of them sees the earlier one, and its stamp is the edge that was learnt; a call that is late
    or takes long is no matter there. Now and then, and more often while the edges are not known well, a
    further reading goes right to an edge, where its answer halves the guesses, or to one side of it, to see
    whether the updates still come when they did.

    ``sensors`` that are read one after the other share what calls may cost: with n of them, each sees every
    nth update, stamped as well as before.
    """

    def __init__(self, period_s: float, share_of_core: float = 0.045, burst_s: float = 0.1) -> None:
        self.period_s = period_s
        self.share_of_core = share_of_core
        self.burst_s = burst_s
        self.sensors = 1
        self._beat = Beat(period_s)
        self._origin_ns: int | None = None
        self._after_s = self._duration_s = self._late_s = self._checked_s = 0.0
        self._credit_s = self.burst_s
        self._surprises = self._turn = 0
        self._changed = False
        self._planned_ns = self._last_ns = self._this_ns = 0

    def next_ns(self, now_ns: int) -> int:
        """The planned reading, or at once where it is overdue or the clock was set back."""
        longest_s = max(10 * self.period_s * self.sensors, 1.0)
        set_back = self._planned_ns - now_ns > longest_s * NS_PER_S
        return now_ns + 1 if set_back else max(self._planned_ns, now_ns + 1)

    def saw(self, before_ns: int, after_ns: int, changed: bool) -> None:
        """Learn from a reading, then plan the next one."""
        if self._origin_ns is None or before_ns < self._origin_ns + round(self._after_s * NS_PER_S):
            self._start(before_ns, after_ns)
        else:
            before, after = self._relative(before_ns), self._relative(after_ns)
            self._note_lateness((before_ns - self._planned_ns) / NS_PER_S)
            self._spend(before, after)
            early, late = (before + share * (after - before) for share in TAKEN)
            self._judge(self._beat.saw(early, late, changed), late)
            self._changed = changed
            self._after_s = after
        self._last_ns, self._this_ns = self._this_ns, _taken_by(before_ns, after_ns)
        self._planned_ns = after_ns + max(round((self._plan() - self._after_s) * NS_PER_S), 1)

    def stamp_ns(self, before_ns: int, after_ns: int) -> int:
        """When the value changed that the last reading saw: after ``saw`` for the same reading, later than
        the stamps of readings before it, and not later than the reading. Of the first reading only that
        is known."""
        latest_ns = _taken_by(before_ns, after_ns)
        if not self._changed:
            return latest_ns
        edge_ns = (self._origin_ns or 0) + round(self._beat.last_s * NS_PER_S)
        return min(max(edge_ns, self._last_ns + 1), latest_ns)

    @property
    def spread_s(self) -> float:
        """How well the time of an update is known: the range of nearly all guesses."""
        return self._beat.spread_s

    def _relative(self, t_ns: int) -> float:
        return (t_ns - (self._origin_ns or 0)) / NS_PER_S

    def _start(self, before_ns: int, after_ns: int) -> None:
        """The first reading, or the clock went backwards: nothing is known."""
        self._origin_ns = self._this_ns = before_ns
        self._after_s = self._duration_s = self._relative(after_ns)
        self._checked_s, self._changed = 0.0, False
        self._forget(self._after_s / 2)

    def _forget(self, now_s: float) -> None:
        self._beat.forget(now_s)
        self._surprises = 0

    def _spend(self, before_s: float, after_s: float) -> None:
        """Keep account of the time that calls take; what is saved counts up to one burst."""
        took = after_s - before_s
        self._duration_s += 0.1 * (min(took, 3 * self._duration_s) - self._duration_s)
        earned = self.share_of_core / self.sensors * (after_s - self._after_s)
        self._credit_s = min(self._credit_s + earned, self.burst_s) - took

    def _note_lateness(self, late_s: float) -> None:
        """How long after its plan a reading usually starts, on a busy machine; rare long waits aside."""
        self._late_s += 0.1 * (min(max(late_s, 0.0), LATEST_S) - self._late_s)

    def _judge(self, expected: float | None, now_s: float) -> None:
        """A reading that hardly any guess explains may be an update that did not come. After a second one
        they start over, or where no calls are left for that, are less sure."""
        if expected is None:
            return
        if expected > 0.05:
            self._surprises = max(self._surprises - 1, 0) if expected > 0.95 else self._surprises
            return
        self._surprises += 2
        if self._surprises > 2 and self._credit_s > 0:
            self._forget(now_s)
        elif self._surprises > 2:
            self._beat.widen(0.01 * self.period_s)

    def _plan(self) -> float:
        """The next time to read, in seconds since the first reading."""
        beat = self._beat
        if beat.spread_s > self.period_s / 4:
            return self._after_s - self._duration_s + self._search_step()
        closely = self._start_for(beat.next_s + self._aside_s())
        if self._looks_closely() and closely > self._after_s:
            self._checked_s = beat.next_s
            self._turn += self._surprises == 0
            return closely
        return self._start_for(beat.next_s + (self.sensors - 0.5) * beat.period_s)

    def _search_step(self) -> float:
        pace = max(self._duration_s + GAP_S, self.period_s / 20)
        return pace if self._credit_s > 0 else VERNIER * self.period_s

    def _looks_closely(self) -> bool:
        """Whether the next reading goes to the edge. Not when the last one was old: then an update has not
        been seen yet, and would be missed where the next reading is late."""
        in_doubt = self._beat.spread_s > SHARP_S or self._surprises > 0
        every_s = self.sensors * (DOUBT_S if in_doubt else CHECK_S)
        due = self._beat.next_s - self._checked_s > every_s
        return self._changed and (due or (in_doubt and self._credit_s > 0))

    def _aside_s(self) -> float:
        """Where at the edge to look. At it, while it is not known well; then on either side in turn, where
        the answer is known unless the updates come at another time than they did."""
        if self._beat.spread_s > SHARP_S and not self._surprises:
            return 0.0
        return SIDES[self._turn % len(SIDES)] * (self._beat.spread_s / 2 + ASIDE_S)

    def _start_for(self, moment_s: float) -> float:
        """When to start a call that takes its value at a moment."""
        return moment_s - (TAKEN[0] + TAKEN[1]) / 2 * self._duration_s - self._late_s


def share_calls(schedules: Iterable[Schedule]) -> None:
    """Let the sensors of one family share what its calls may cost, however many there are."""
    learning = [schedule for schedule in schedules if isinstance(schedule, Updates)]
    for schedule in learning:
        schedule.sensors = len(learning)


def _taken_by(before_ns: int, after_ns: int) -> int:
    """By when a call has taken its value."""
    return before_ns + round(TAKEN[1] * (after_ns - before_ns))
