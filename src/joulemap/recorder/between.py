"""The time that no traced operation covers, so that none of it passes for idle.

A program works outside its steps too: it imports, builds, compiles, loads, saves. And in steps it does things
that are no operations of a framework. On the CPU that time gets names of its own, and the processor time that
the program used then; on an accelerator, where nothing runs then, it stays idle time.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, pairwise
from operator import itemgetter
from typing import Any

import numpy as np

from joulemap.program import BETWEEN, SLICE, START_UP
from joulemap.recorder.journal import COMPILED, TRACED, UNTRACED
from joulemap.traces import EventTrace, Int64, Steps

AFTER = "(after the last step)"
COMPILATION, TRACING, ALL = "(compilation)", "(tracing)", "(the whole program)"
BESIDE = "(between operations)"
LANE = "joulemap"

Step = tuple[int, int, str, int]
Span = tuple[int, int, str]


def in_order(steps: Iterable[Step], window_ns: tuple[int, int]) -> list[Step]:
    """Steps inside the window, one after the other; where two overlap, the later one starts later."""
    kept: list[Step] = []
    free_ns = window_ns[0]
    for start_ns, end_ns, label, seen in sorted(steps):
        start_ns, end_ns = max(start_ns, free_ns), min(end_ns, window_ns[1])
        if end_ns > start_ns:
            kept.append((start_ns, end_ns, label, seen))
            free_ns = end_ns
    return kept


def with_slices_between(steps: Sequence[Step], end_ns: int) -> list[Step]:
    """Slices of time are examples of all the time around them: fill the gaps from the first one on."""
    first = next((number for number, step in enumerate(steps) if step[2] == SLICE), None)
    if first is None:
        return list(steps)
    filled = list(steps[:first])
    following = [*steps[first + 1 :], (end_ns, end_ns, "", UNTRACED)]
    for step, after in zip(steps[first:], following, strict=True):
        filled.append(step)
        if step[2] == SLICE and after[0] > step[1]:
            filled.append((step[1], after[0], SLICE, UNTRACED))
    return filled


def since_first_step(steps: Sequence[Step]) -> tuple[int, list[Step]]:
    """When the first step began, and the steps from there on: a program that has steps only starts up before
    them, and slices of that are no example of what follows. One without has only slices."""
    first = next((number for number, step in enumerate(steps) if step[2] != SLICE), 0)
    return (steps[first][0] if steps else 0), list(steps[first:])


def steps_table(steps: Sequence[Step]) -> Steps:
    """As the accounting knows them. One that compiled is no example of others, and not among them."""
    steps = [step for step in steps if step[3] != COMPILED]
    return Steps.from_columns(
        start_ns=[step[0] for step in steps],
        end_ns=[step[1] for step in steps],
        traced=np.array([step[3] == TRACED for step in steps], bool),
        label=[step[2] for step in steps],
    )


def named_spans(
    steps: Sequence[Step],
    sessions: Sequence[Mapping[str, Any]],
    window_ns: tuple[int, int],
    traced: Sequence[EventTrace] = (),
    compilations: Sequence[tuple[int, int]] = (),
) -> EventTrace:
    """Runtime events on the CPU for all time in the window that no step explains, and for that of traced
    steps in which none of the events that were ``traced`` ran there. ``compilations`` are one after the
    other, in steps or not."""
    gaps = chain.from_iterable(_split(gap, compilations) for gap in _gaps(steps, window_ns))
    spans = [*gaps, *_beside(steps, traced)]
    spans += [(start, end, COMPILATION) for start, end, _, seen in steps if seen == COMPILED]
    spans += [span for session in sessions for span in _tracing(session)]
    spans = [(max(a, window_ns[0]), min(b, window_ns[1]), name) for a, b, name in spans]
    spans = [span for span in spans if span[1] > span[0]]
    return EventTrace.from_columns(
        name=[span[2] for span in spans],
        device="CPU",  # whichever socket its threads run on
        start_ns=np.array([span[0] for span in spans], np.int64),
        end_ns=np.array([span[1] for span in spans], np.int64),
        lane=LANE,
        kind="runtime",
    )


def _gaps(steps: Sequence[Step], window_ns: tuple[int, int]) -> Iterable[Span]:
    if not steps:
        yield (*window_ns, ALL)
        return
    yield window_ns[0], steps[0][0], START_UP
    for step, after in pairwise(steps):
        yield step[1], after[0], BETWEEN
    yield steps[-1][1], window_ns[1], AFTER


def _split(gap: Span, compilations: Sequence[tuple[int, int]]) -> Iterable[Span]:
    """A gap, and what was compiled in it."""
    begin_ns, end_ns, name = gap
    first = bisect_right(compilations, begin_ns, key=itemgetter(1))
    for start_ns, until_ns in compilations[first : bisect_left(compilations, (end_ns, 0))]:
        yield begin_ns, start_ns, name
        begin_ns = min(until_ns, end_ns)
        yield max(start_ns, gap[0]), begin_ns, COMPILATION
    yield begin_ns, end_ns, name


def _beside(steps: Sequence[Step], traced: Sequence[EventTrace]) -> Iterable[Span]:
    start_ns, end_ns = _busy(traced)
    for begin_ns, until_ns, _, seen in steps:
        if seen != TRACED:
            continue
        some = slice(np.searchsorted(end_ns, begin_ns), np.searchsorted(start_ns, until_ns))
        borders = [begin_ns, *np.column_stack((start_ns[some], end_ns[some])).ravel().tolist(), until_ns]
        yield from ((a, b, BESIDE) for a, b in zip(borders[::2], borders[1::2], strict=True) if b > a)


def _busy(traced: Sequence[EventTrace]) -> tuple[Int64, Int64]:
    """When anything ran on a CPU: stretches from start to end, with gaps between them."""
    on_cpu = [
        events.take(events.device.isin(word for word in events.device.words if word.startswith("CPU")))
        for events in traced
    ]
    start_ns, end_ns = (
        np.concatenate([np.zeros(0, np.int64), *(getattr(one, name) for one in on_cpu)])
        for name in ("start_ns", "end_ns")
    )
    if not len(start_ns):
        return start_ns, end_ns
    order = np.argsort(start_ns, kind="stable")
    start_ns, until_ns = start_ns[order], np.maximum.accumulate(end_ns[order])
    apart = start_ns[1:] > until_ns[:-1]
    return start_ns[np.append(True, apart)], until_ns[np.append(apart, True)]


def _tracing(session: Mapping[str, Any]) -> Iterable[Span]:
    yield int(session["opened_ns"]), int(session["started_ns"]), TRACING
    yield int(session["closing_ns"]), int(session["closed_ns"]), TRACING
