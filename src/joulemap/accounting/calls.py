"""The energy of calls: stretches of time that nest in their threads, each with what was drawn meanwhile.

A call's own energy is the program's part of every domain over the call's true interval, without the calls
that were measured inside it. Where several threads are in calls at once they share equally, as operations do
(the ``exact`` rule). What is drawn while no thread is in a call is the *rest*, by name of the time it falls
into. Calls and rest add up to what was measured, and ``check`` says so.

On an accelerator a call gets what the device draws while the call lasts, whoever started the work: launches
that outlive their call are the next one's, unless calls are fenced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from joulemap.accounting.lanes import OP
from joulemap.accounting.student import NORMAL_975
from joulemap.accounting.sums import sums_by
from joulemap.accounting.supply import Curve, Supply, supply
from joulemap.accounting.sweep import Actors, share_out
from joulemap.accounting.uncertainty import EDGE_RMS
from joulemap.calls.table import Calls
from joulemap.devices import Domain, roots
from joulemap.errors import ConservationError, InputError
from joulemap.processes import ProcessShares
from joulemap.traces import Float64, Int64, PowerTrace
from joulemap.units import NS_PER_S

NO_CALL = -1
START_UP, BETWEEN, AFTER = "(start-up)", "(between calls)", "(after the last call)"
GATE, TAIL, WHOLE = "(waiting for the gate)", "(waiting after the call)", "(the whole program)"
_TOLERANCE = 1e-9


@dataclass(frozen=True, eq=False)
class Stretches:
    """Calls as columns, in order of their start. ``parent`` is the row of the call around it, or -1."""

    start_ns: Int64
    end_ns: Int64
    parent: Int64
    thread: Int64
    waited_ns: Int64 = field(default_factory=lambda: np.zeros((0, 2), np.int64))
    """Of isolated calls: when the wait before each began, and when the wait after it ended; 0 where none."""

    @classmethod
    def of(
        cls,
        call: Int64,
        parent: Int64,
        thread: Int64,
        start_ns: Int64,
        end_ns: Int64,
        waited_ns: Int64 | None = None,
    ) -> Stretches:
        """From numbers of calls, some of which may be lost: a call whose parent is not there has none."""
        order = np.argsort(call)
        place = np.minimum(np.searchsorted(call[order], parent), max(len(call) - 1, 0))
        found = np.asarray(parent != NO_CALL)
        if len(call):
            found &= call[order][place] == parent
        rows = np.where(found, order[place] if len(call) else place, NO_CALL)
        waits = np.zeros((len(call), 2), np.int64) if waited_ns is None else waited_ns
        return cls(start_ns, np.maximum(end_ns, start_ns), rows, thread, waits)

    @classmethod
    def of_table(cls, calls: Calls) -> Stretches:
        """From the calls of a recording."""
        waited_ns = np.column_stack((calls.gate_start_ns, calls.tail_end_ns))
        return cls.of(calls.call, calls.parent, calls.thread, calls.start_ns, calls.end_ns, waited_ns)

    def __len__(self) -> int:
        return len(self.start_ns)

    def with_inner(self, amounts: Float64) -> Float64:
        """Each call's amount with those of all calls inside it."""
        total: Float64 = amounts.copy()
        depth = self.depth
        by_depth = np.argsort(-depth, kind="stable")
        borders = np.flatnonzero(np.diff(-depth[by_depth])) + 1
        for rows in np.split(by_depth, borders):
            inner = rows[self.parent[rows] != NO_CALL]
            total += sums_by(self.parent[inner], total[inner], len(self))
        return total

    @property
    def depth(self) -> Int64:
        """How many calls are around each."""
        depth = np.zeros(len(self), np.int64)
        rows, around = np.arange(len(self)), self.parent
        while True:
            inside = around != NO_CALL
            rows, around = rows[inside], around[inside]
            if not len(rows):
                return depth
            depth[rows] += 1
            around = self.parent[around]

    @property
    def outermost(self) -> Int64:
        """The outermost call around each, which may be itself."""
        top = np.arange(len(self))
        while True:
            above = self.parent[top]
            if (above == NO_CALL).all():
                return top
            top = np.where(above == NO_CALL, top, above)


@dataclass(frozen=True, eq=False)
class DomainCalls:
    """One domain's energy over the calls and the rest. ``seconds`` is the time that fell to each call: its
    share where threads shared, the program's part where processes did."""

    domain: Domain
    period_s: float
    energy_j: Float64
    seconds: Float64
    rms_j: Float64
    rest_j: Mapping[str, float]
    rest_s: Mapping[str, float]
    other_processes_j: float
    outside_j: float
    measured_j: float
    baseline_w: Float64 | None = None
    """What the domain draws when idle, at each call; None where it is not known."""
    lag_j: Float64 | None = None
    """Of isolated calls, what was drawn above the baseline between the call's end and calm."""

    @property
    def net_j(self) -> Float64 | None:
        """Each call's own energy above the baseline."""
        return None if self.baseline_w is None else self.energy_j - self.baseline_w * self.seconds

    def rest_net_j(self) -> dict[str, float] | None:
        """The rest above the baseline; next to nothing where the program only waited."""
        if self.baseline_w is None:
            return None
        watts = float(np.median(self.baseline_w)) if len(self.baseline_w) else 0.0
        return {name: joules - watts * self.rest_s[name] for name, joules in self.rest_j.items()}

    def check(self) -> DomainCalls:
        """measured = calls + rest + other processes + outside, or it is a bug."""
        parts = float(self.energy_j.sum()) + sum(self.rest_j.values())
        parts += self.other_processes_j + self.outside_j
        if abs(parts - self.measured_j) > _TOLERANCE * max(self.measured_j, 1e-6):
            raise ConservationError(
                f"{self.domain.name}: calls and rest are {parts} J of {self.measured_j} J measured."
            )
        return self


@dataclass(frozen=True, eq=False)
class CallFootprint:
    """Every call's energy, over all domains that add up."""

    calls: Stretches
    domains: Sequence[DomainCalls]

    @cached_property
    def energy_j(self) -> Float64:
        """Without the calls inside it."""
        return self._sum([domain.energy_j for domain in self.domains])

    @cached_property
    def inclusive_j(self) -> Float64:
        return self.calls.with_inner(self.energy_j)

    @property
    def net_j(self) -> Float64 | None:
        """Own energy above the baseline, where that is known of every domain."""
        return self._sum_known([domain.net_j for domain in self.domains])

    @property
    def lag_j(self) -> Float64 | None:
        return self._sum_known([domain.lag_j for domain in self.domains])

    @property
    def rms_j(self) -> Float64:
        """What the meters cannot resolve at the edges of each call."""
        return np.sqrt(self._sum([domain.rms_j**2 for domain in self.domains]))

    def interval_j(self) -> tuple[Float64, Float64]:
        """The 95 % interval of ``energy_j``: wide where a call is shorter than the meters' updates."""
        half = NORMAL_975 * self.rms_j
        return np.maximum(self.energy_j - half, 0.0), self.energy_j + half

    @property
    def measured_j(self) -> float:
        return sum(domain.measured_j for domain in self.domains)

    @property
    def other_processes_j(self) -> float:
        return sum(domain.other_processes_j for domain in self.domains)

    @property
    def outside_j(self) -> float:
        return sum(domain.outside_j for domain in self.domains)

    def rest_j(self) -> dict[str, float]:
        """What was drawn outside of calls, by the name of the time."""
        return _added([domain.rest_j for domain in self.domains])

    def rest_net_j(self) -> dict[str, float] | None:
        """The same above the baseline."""
        parts = [domain.rest_net_j() for domain in self.domains]
        known = [part for part in parts if part is not None]
        return _added(known) if parts and len(known) == len(parts) else None

    def check(self) -> CallFootprint:
        """Raise where a domain's parts do not add up."""
        for domain in self.domains:
            domain.check()
        return self

    def _sum(self, columns: Sequence[Float64]) -> Float64:
        return np.asarray(np.sum([np.zeros(len(self.calls)), *columns], axis=0), np.float64)

    def _sum_known(self, columns: Sequence[Float64 | None]) -> Float64 | None:
        known = [column for column in columns if column is not None]
        return self._sum(known) if columns and len(known) == len(columns) else None


def account_calls(
    calls: Stretches,
    power: Sequence[PowerTrace],
    *,
    window_ns: tuple[int, int] | None = None,
    shares: Mapping[str, ProcessShares] | None = None,
    baseline_w: Mapping[str, float] | None = None,
    baseline_s: float | None = None,
) -> CallFootprint:
    """Give every domain's energy to the calls and the rest.

    ``baseline_w`` is the idle power of each domain. With ``baseline_s`` calls are isolated: the baseline of
    each is what was drawn in so many seconds before it, and the domain's whole energy is the program's, for
    the gate has made sure that nothing else runs.
    """
    adding = {domain.name for domain in roots([trace.domain for trace in power])}
    found = []
    for trace in power:
        if trace.domain.name in adding:
            one = _account(calls, trace, window_ns, None if baseline_s is not None else shares)
            if baseline_s is not None:
                one = _isolated(one, calls, trace, baseline_s)
            elif trace.domain.name in (baseline_w or {}):
                watts = np.full(len(calls), (baseline_w or {})[trace.domain.name])
                one = replace(one, baseline_w=watts)
            found.append(one.check())
    return CallFootprint(calls, tuple(found))


def _account(
    calls: Stretches,
    trace: PowerTrace,
    window_ns: tuple[int, int] | None,
    shares: Mapping[str, ProcessShares] | None,
) -> DomainCalls:
    sorted_out = supply(trace, window_ns=window_ns, shares=shares, loading_apart=False)
    lasting = calls.end_ns > calls.start_ns
    spans = _rest_spans(calls, window_ns or _extent(trace))
    marks = np.unique(np.array([edge for span in spans for edge in span[1:]], np.int64))
    curves = [sorted_out.energy, sorted_out.seconds]
    (energy, seconds), _ = share_out(_actors(calls, lasting), curves, marks)
    return DomainCalls(
        domain=trace.domain,
        period_s=trace.period_s,
        energy_j=_scattered(energy.charge, lasting),
        seconds=_scattered(seconds.charge, lasting),
        rms_j=_rms_j(calls, sorted_out),
        rest_j=_rest(spans, marks, energy.idle_until_mark, energy.idle),
        rest_s=_rest(spans, marks, seconds.idle_until_mark, seconds.idle),
        other_processes_j=sorted_out.other_processes_j,
        outside_j=sorted_out.outside_j,
        measured_j=sorted_out.measured_j,
    )


def _actors(calls: Stretches, lasting: NDArray[np.bool_]) -> Actors:
    lane = np.unique(calls.thread, return_inverse=True)[1].astype(np.int32)
    count = int(lasting.sum())
    return Actors(calls.start_ns[lasting], calls.end_ns[lasting], lane[lasting], np.full(count, OP, np.int32))


def _scattered(charges: Float64, lasting: NDArray[np.bool_]) -> Float64:
    """Calls without length get nothing; rounding may leave a negative speck."""
    everyone = np.zeros(len(lasting))
    everyone[lasting] = np.maximum(charges, 0.0)
    return everyone


def _rest_spans(calls: Stretches, window_ns: tuple[int, int]) -> list[tuple[str, int, int]]:
    """The times that are neither before the window nor after it, by name; inner ones come later."""
    begin, end = window_ns
    if not len(calls):
        return [(WHOLE, begin, end)]
    first = min(max(int(calls.start_ns.min()), begin), end)
    last = min(max(int(calls.end_ns.max()), first), end)
    spans = [(START_UP, begin, first), (BETWEEN, first, last), (AFTER, last, end)]
    for row in np.flatnonzero(calls.waited_ns.any(axis=1)).tolist():
        before_ns, after_ns = calls.waited_ns[row].tolist()
        if before_ns:
            spans.append((GATE, before_ns, int(calls.start_ns[row])))
        if after_ns:
            spans.append((TAIL, int(calls.end_ns[row]), after_ns))
    return [(name, max(a, begin), min(b, end)) for name, a, b in spans if min(b, end) > max(a, begin)]


def _rest(
    spans: Sequence[tuple[str, int, int]], marks: Int64, until: Float64, total: float
) -> dict[str, float]:
    """What is idle in each span. The waits lie inside the other three, which lose them."""
    rest: dict[str, float] = {}
    around = [span for span in spans if span[0] not in (GATE, TAIL)]
    for name, begin, end in spans:
        amount = float(np.diff(until[np.searchsorted(marks, [begin, end])])[0])
        rest[name] = rest.get(name, 0.0) + amount
        if name in (GATE, TAIL):
            for outer, start, stop in around:
                inside = [max(begin, start), min(end, stop)]
                if inside[1] > inside[0]:
                    part = float(np.diff(until[np.searchsorted(marks, inside)])[0])
                    rest[outer] -= part
    speck = total - sum(rest.values())  # rounding, and nothing else: the spans cover the window
    if rest:
        rest[next(iter(rest))] += speck
    elif total:
        rest[WHOLE] = total
    return rest


def _rms_j(calls: Stretches, sorted_out: Supply) -> Float64:
    """What the meter cannot tell at the edges: an update more or less at each, at the power around it. A call
    with others inside has more edges, but no more than there are updates."""
    period_ns = round(sorted_out.period_s * NS_PER_S)
    length_s = (calls.end_ns - calls.start_ns) / NS_PER_S
    around_j = _between(sorted_out.energy, calls.start_ns - period_ns, calls.end_ns + period_ns)
    power_w = around_j / np.maximum(length_s + 2 * sorted_out.period_s, 1e-9)
    inner = np.bincount(calls.parent[calls.parent != NO_CALL], minlength=len(calls))
    pairs = np.minimum(1 + inner, 1 + length_s / max(sorted_out.period_s, 1e-9))
    return np.asarray(EDGE_RMS * sorted_out.period_s * power_w * np.sqrt(pairs), np.float64)


def _isolated(one: DomainCalls, calls: Stretches, trace: PowerTrace, baseline_s: float) -> DomainCalls:
    """The baseline just before each outermost call, for it and what is inside; and the lag after it."""
    if baseline_s <= 0:
        raise InputError("A baseline takes some time.", "Give the protocol a baseline above 0 s.")
    top = calls.outermost
    start, end, after = calls.start_ns[top], calls.end_ns, calls.waited_ns[:, 1]
    before = np.maximum(start - round(baseline_s * NS_PER_S), trace.edges_ns[0] if len(trace) else start)
    seen_s = np.maximum(start - before, 1) / NS_PER_S
    baseline_w = (trace.energy_until(start) - trace.energy_until(before)) / seen_s
    waited_s = np.maximum(after - end, 0) / NS_PER_S
    lag_j = trace.energy_until(np.maximum(after, end)) - trace.energy_until(end)
    return replace(one, baseline_w=baseline_w, lag_j=np.where(after > 0, lag_j - baseline_w * waited_s, 0.0))


def _between(curve: Curve, start_ns: Int64, end_ns: Int64) -> Float64:
    if not len(curve.amount):
        return np.zeros(len(start_ns))
    until = np.concatenate(([0.0], np.cumsum(curve.amount)))
    origin = curve.edges_ns[0]
    at = [np.interp(t_ns - origin, curve.edges_ns - origin, until) for t_ns in (start_ns, end_ns)]
    return np.asarray(at[1] - at[0], np.float64)


def _extent(trace: PowerTrace) -> tuple[int, int]:
    return (int(trace.edges_ns[0]), int(trace.edges_ns[-1])) if len(trace) else (0, 0)


def _added(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: sum(part.get(name, 0.0) for part in parts) for name in names}
