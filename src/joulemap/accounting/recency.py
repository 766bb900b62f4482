"""The paper's Algorithm 2, instant by instant: slow, plain, and the judge of everything else.

It walks from one timestamp to the next at which anything changes. At each it asks what is active and what
the most recent power reading is, and gives everyone active an equal share (by weight, where given).
Nothing here is shared with the fast rule: what they agree on was computed twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from joulemap.accounting.lanes import KERNEL, OP, RUNTIME, WORKER
from joulemap.accounting.supply import Curve
from joulemap.accounting.sweep import Actors, Shared
from joulemap.traces import Float64, Int64
from joulemap.units import NS_PER_S


def walk(actors: Actors, curves: Sequence[Curve], marks_ns: Int64) -> tuple[list[Shared], Float64]:
    """Share curves out as ``sweep.share_out`` does, by brute force."""
    timestamps = _timestamps(actors, curves, marks_ns)
    charges = np.zeros((len(curves), len(actors)))
    idle = np.zeros((len(curves), max(len(timestamps), 1)))
    active_s = np.zeros(len(actors))
    starting = np.argsort(actors.start_ns, kind="stable").tolist()
    running: set[int] = set()
    for instant, (now, after) in enumerate(pairwise(timestamps)):
        while starting and actors.start_ns[starting[0]] <= now:
            running.add(starting.pop(0))
        running = {event for event in running if actors.end_ns[event] > now}
        innermost = _innermost(actors, running)
        active_s[innermost] += (after - now) / NS_PER_S
        reading = np.array([_most_recent(curve, now) * ((after - now) / NS_PER_S) for curve in curves])
        active = _counting(actors, innermost)
        if active:
            weight = np.array([1.0 if actors.weight is None else actors.weight[event] for event in active])
            charges[:, active] += reading[:, None] * (weight / weight.sum())
        idle[:, instant + 1] = 0 if active else reading
    until = np.cumsum(idle, axis=1)
    at = np.searchsorted(timestamps, marks_ns)
    shared = [
        Shared(charge, total[at], float(total[-1])) for charge, total in zip(charges, until, strict=True)
    ]
    return shared, active_s


def _timestamps(actors: Actors, curves: Sequence[Curve], marks_ns: Int64) -> list[int]:
    times = [actors.start_ns, actors.end_ns, marks_ns, *(curve.edges_ns for curve in curves)]
    return sorted({int(t) for column in times for t in column})


def _most_recent(curve: Curve, now: int) -> float:
    """``Now(ts, …)`` of Algorithm 1: the reading with the largest timestamp that is not after now."""
    at = int(np.searchsorted(curve.edges_ns, now, side="right")) - 1
    if not 0 <= at < len(curve.amount):
        return 0.0
    return float(curve.amount[at] / ((curve.edges_ns[at + 1] - curve.edges_ns[at]) / NS_PER_S))


def _innermost(actors: Actors, running: set[int]) -> list[int]:
    """Of each lane the event that started last, the shortest of those that started together."""
    if actors.lane is None:
        return sorted(running)
    top: dict[object, int] = {}
    for event in running:
        lane = ("kernel", event) if actors.kind[event] == KERNEL else int(actors.lane[event])
        if lane not in top or _inside(actors, event) > _inside(actors, top[lane]):
            top[lane] = event
    return sorted(top.values())


def _inside(actors: Actors, event: int) -> tuple[int, int, int]:
    return (int(actors.start_ns[event]), -int(actors.end_ns[event]), event)


def _counting(actors: Actors, innermost: list[int]) -> list[int]:
    """Callers whose workers are busy do not count; runtime glue counts where nothing else runs."""
    group = actors.group
    if group is not None:
        busy = {int(group[event]) for event in innermost if actors.kind[event] == WORKER}
        innermost = [
            event for event in innermost if actors.kind[event] != OP or int(group[event]) not in busy
        ]
    working = [event for event in innermost if actors.kind[event] != RUNTIME]
    return working or innermost
