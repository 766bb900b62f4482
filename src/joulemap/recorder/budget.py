"""Which steps to trace, so that tracing costs no more than was allowed.

Tracing a step costs the start of the profiler, the slow-down while it runs, the stop, and what the next step
still takes longer. All of it is measured as it goes. After warm-up one session is always held, because
without one nothing can be said of what the energy went to; the next ones wait until the total is within the
budget again, and are spread over the run: the longer it lasts, the further apart. The budget is for
everything: what hooks and monitor cost all the time is estimated, a part is kept for what nobody sees, and
sessions have the rest.

So it is with each kind of step. Those that are given more or less than others of their model (prompts,
tokens) have a session of their own before the budget allows it if they take much of its time, as soon as that
costs no more than a few times the budget: of all the time so far, or of theirs.

How long a step takes untraced is the median of the last ones. A program that calls ahead of its results (JAX
computes asynchronously) has steps that return at once, and waits somewhere else for many of them together.
There only the mean says how long a step takes: from where nothing was left to compute to where nothing is.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from joulemap.program import unsized

DEFAULT_OVERHEAD = 0.01
WARM_UP = 3
"""Steps of a label that are not traced: compilation, and those after which it is known how long one takes."""
AGAIN, MUCH = 1, 0.1
"""The same of steps that are given more or less than others of their model, which were traced; and the part
of its time that makes them worth a session beyond the budget."""
MOST_MISSED = 4
"""So often is a session opened for a kind of step beyond the budget, if others come each time."""
BEYOND = 5
"""By how many times the budget: a short program of many sizes would be held up by little else."""
MOST_STEPS = 5
SESSION_S = 0.1
"""A session takes as many steps as fit in here, but one at least and five at most."""
APART = 0.05
"""Sessions lie at least this share of the time so far apart, so that a run of hours has not thousands."""
HOOKS_S, MONITOR = 1e-4, 0.001
"""What hooks take of a step, with what they displace in the processor's caches: ``benchmarks/hooks.py`` finds
48 µs in training on the host of an H200, and a few in inference. And the monitor of the time: half a percent
of a core, which the program feels where all cores are busy. Neither is measured as it goes."""
PLANNED = 0.8
"""So much of the budget is planned with. The rest is for what no clock of ours sees: a session leaves caches
and memory otherwise than it found them, and what hooks and monitor cost is estimated."""
FOR_SESSIONS = 0.25
"""What is left to sessions of that at least, however short the steps are."""
FOR_SLICES = 0.5
"""What slices may take of that: steps may yet come, and they are the better examples."""
RECENT = 31


@dataclass(frozen=True)
class Plan:
    """What the user wants: a share of the time for tracing, or everything, or these steps."""

    overhead: float = DEFAULT_OVERHEAD
    trace_all: bool = False
    steps: Sequence[tuple[int, int]] = ()
    """Ranges of step numbers, from 0, both ends included."""

    @property
    def asked_for(self) -> bool:
        """Whether the user says which steps are traced, whatever it costs."""
        return self.trace_all or bool(self.steps)


@dataclass
class Cost:
    """Seconds that tracing took from the program."""

    start_s: float = 0.0
    slow_down_s: float = 0.0
    stop_s: float = 0.0
    waited_s: float = 0.0
    """Before the start, for a device, where the program would not have waited for it."""
    after_s: float = 0.0
    """What the step after a session took longer than usual."""

    @property
    def total_s(self) -> float:
        return self.start_s + self.slow_down_s + self.stop_s + self.waited_s + self.after_s

    def add(self, other: Cost) -> None:
        self.start_s += other.start_s
        self.slow_down_s += other.slow_down_s
        self.stop_s += other.stop_s
        self.waited_s += other.waited_s
        self.after_s += other.after_s


@dataclass(eq=False)
class _Kind:
    """What is known of the steps of one label, and of all ``of_model``. So many sessions ``missed`` it: they
    were opened for it, and other steps came. Those called since nothing was left to compute took ``took_s``
    together; ``mean_s`` is what each took the last time, where they were called ahead."""

    of_model: list[_Kind] = field(default_factory=list, repr=False)
    seen: int = 0
    sessions: int = 0
    missed: int = 0
    lasted_s: float = 0.0
    untraced_s: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    called: int = 1  # the call that compiled: its result is computed in the steps after it
    took_s: float = 0.0
    mean_s: float | None = None

    @property
    def known(self) -> bool:
        """Whether one of the model's was traced."""
        return any(one.sessions for one in self.of_model)

    @property
    def must_be_traced(self) -> bool:
        """Whether nothing could be said of it otherwise, or of much of its model's time."""
        much = self.lasted_s >= MUCH * sum(one.lasted_s for one in self.of_model)
        return not self.sessions and (much or not self.known) and self.missed < MOST_MISSED

    def usual_s(self) -> float | None:
        median_s, mean_s = self._median_s(), self.mean_s
        if median_s is None or mean_s is None or mean_s / 2 < median_s <= mean_s:
            return median_s  # so that one step that took very long does not count
        return mean_s

    def longer_s(self, seconds: float) -> float:
        """How much longer than usual this is; nothing where that is not known."""
        usual_s = self.usual_s()
        return max(seconds - usual_s, 0.0) if usual_s is not None else 0.0

    def settled(self, waited_s: float) -> bool:
        """All that was called has been computed, after a wait: a long one where it was called ahead."""
        self.took_s += waited_s
        ahead = waited_s > (self._median_s() or 0.0) / 2
        self.mean_s = self.took_s / max(self.called, 1) if ahead else None
        return ahead

    def _median_s(self) -> float | None:
        return sorted(self.untraced_s)[len(self.untraced_s) // 2] if self.untraced_s else None


class Budget:
    """Decides at the border of each step, from what the steps and the sessions before have taken."""

    def __init__(self, plan: Plan, start_s: float) -> None:
        self.plan = plan
        self.spent = Cost()
        self.sessions = 0
        self._start_s = self._last_s = start_s
        self._dearest_s = 0.0
        self._kinds: dict[str, _Kind] = {}
        self._models: defaultdict[str, list[_Kind]] = defaultdict(list)
        self._last = self._wanted = _Kind()
        self._just_traced = False
        self._steps = 0

    def _kind(self, label: str) -> _Kind:
        known = self._kinds.get(label)
        if known is None:
            of_model = self._models[unsized(label)]
            known = self._kinds[label] = _Kind(of_model)
            of_model.append(known)
        return known

    def steps_to_trace(self, label: str, number: int, now_s: float) -> int:
        """How many steps to trace from this one on; 0 for none."""
        kind = self._kind(label)
        if self.plan.steps:
            return sum(
                min(last - number + 1, MOST_STEPS)
                for first, last in self.plan.steps
                if first <= number <= last
            )
        if self.plan.trace_all:
            return MOST_STEPS
        if self.plan.overhead <= 0 or len(kind.untraced_s) < (AGAIN if kind.known else WARM_UP):
            return 0
        self._wanted = kind
        if not kind.known:  # where it did not come, it may be one of the next
            more = min(2 * kind.missed, MOST_STEPS - 1)
            return (1 + more) * (kind.must_be_traced or self._may_spend(now_s))
        return self._fitting(kind) if self._may_spend(now_s) else self._beyond(kind, now_s)

    def is_calm(self, label: str) -> bool:
        """Whether the next session may begin a little later: it is not one that must be, or there is none."""
        none = self.plan.overhead <= 0
        return not self.plan.asked_for and (none or not self._kind(label).must_be_traced)

    @property
    def may_ever_slice(self) -> bool:
        """Whether slices of time could be traced at all."""
        return self.plan.trace_all or (self.plan.overhead > 0 and not self.plan.steps)

    def slice_to_trace(self, now_s: float) -> bool:
        """Whether to trace a slice of time, in a program whose steps are not known."""
        may = self.plan.trace_all or not self.sessions or self._may_spend(now_s, FOR_SLICES)
        return self.may_ever_slice and may

    def step_ended(self, label: str, seconds: float, *, traced: bool, compiled: bool) -> float:
        """Learn from a step. What a traced one took longer than usual is returned, and counts as cost."""
        kind = self._last = self._kind(label)
        kind.seen += 1
        self._steps += 1
        if compiled:
            return 0.0
        if traced:
            return kind.longer_s(seconds)
        if self._just_traced:  # no more than twice as long by our doing: it may have done something else
            self.spent.after_s += min(kind.longer_s(seconds), self.usual_s(label))
            self._just_traced = False
        kind.untraced_s.append(seconds)
        kind.lasted_s += seconds
        kind.called += 1
        kind.took_s += seconds
        return 0.0

    def steps_passed(self, label: str, seconds: Sequence[float]) -> None:
        """Learn from steps of one label, none of which was traced or compiled."""
        self.step_ended(label, seconds[0], traced=False, compiled=False)
        kind, others = self._last, seconds[1:]
        kind.seen += len(others)
        self._steps += len(others)
        kind.untraced_s.extend(others[-RECENT:])
        kind.lasted_s += sum(others)
        kind.called += len(others)
        kind.took_s += sum(others)

    def waited(self, seconds: float) -> float:
        """Before a session, the program's last steps were computed to their end; what it lost is returned.

        Where that takes long, the program calls ahead of a device that has no pause. The device goes on
        meanwhile, and the program would have waited for it somewhere else: that is time of these steps, and
        no cost. Where it takes less than half a step, it is the device that waits for the program, which was
        held up for as long.
        """
        return 0.0 if self._last.settled(seconds) else seconds

    def session_ended(self, labels: Sequence[str], cost: Cost, now_s: float) -> None:
        """Learn what a session cost."""
        self.sessions += 1
        self._just_traced = True
        self._last_s = now_s
        self.spent.add(cost)
        self._dearest_s = max(cost.total_s, 0.8 * self._dearest_s)
        for label in set(labels):
            self._kind(label).sessions += 1
        self._wanted.missed += not self._wanted.sessions
        self._wanted = _Kind()
        for kind in self._kinds.values():
            kind.called, kind.took_s = 0, 0.0

    def usual_s(self, label: str) -> float:
        """How long a step takes untraced; 0 where that is not known."""
        return self._kind(label).usual_s() or 0.0

    def share(self, now_s: float) -> float:
        """What tracing has cost so far, as a share of the time without it."""
        rest_s = now_s - self._start_s - self.spent.total_s
        return self.spent.total_s / rest_s if rest_s > 0 else 0.0

    def standing_s(self, now_s: float) -> float:
        """What hooks and monitor have cost so far, as an estimate."""
        return HOOKS_S * self._steps + MONITOR * (now_s - self._start_s)

    def _beyond(self, kind: _Kind, now_s: float) -> int:
        """How many steps to trace of another size beyond the budget. Each may cost what a session of one did:
        a profiler that stops has the more to write, the more it has seen."""
        if not kind.must_be_traced:
            return 0
        most, whole_s = BEYOND * self.plan.overhead, now_s - self._start_s - self.spent.total_s
        allowed_s = max(most * whole_s - self.spent.total_s, most * kind.lasted_s)
        return min(self._fitting(kind), int(allowed_s / max(self._dearest_s, 1e-9)))

    def _may_spend(self, now_s: float, part: float = 1.0) -> bool:
        elapsed_s = now_s - self._start_s
        if now_s - self._last_s < APART * elapsed_s:
            return False
        whole_s = PLANNED * self.plan.overhead * (elapsed_s - self.spent.total_s)
        allowed_s = max(whole_s - self.standing_s(now_s), FOR_SESSIONS * whole_s)
        return self.spent.total_s + self._dearest_s <= part * allowed_s

    def _fitting(self, kind: _Kind) -> int:
        usual_s = kind.usual_s() or SESSION_S
        return max(1, min(MOST_STEPS, int(SESSION_S / max(usual_s, 1e-6))))
