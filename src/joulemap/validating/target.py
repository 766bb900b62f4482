"""What is validated: operations and modules of a program that take a part of its energy worth looking at.

Operations that ran at one place (one name, one phase) share that place's energy, so that no rule can tell
them apart there: they are one target, and are repeated together.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from joulemap.calibration.book import described
from joulemap.calibration.operation import Operation, Place, busy_s, places
from joulemap.frameworks.torch.inputs import tensors_of
from joulemap.frameworks.torch.launched import PREFIX
from joulemap.program import split
from joulemap.traces import KINDS, PHASES, EventTrace

LEAST_SHARE = 0.01
"""Of the device's busy time; what takes less is not worth the steps."""
MOST_MODULES = 6
_MOSTLY = 0.5

Name = tuple[str, str]
"""A qualified name and its phase."""


@dataclass(frozen=True, slots=True)
class Target:
    """Something that can be executed again. ``rows`` are the names that its energy stands under, ``share`` is
    its part of the device's busy time in the traced steps, ``step_s`` the device's time for it in a step,
    and ``each_s`` in one execution."""

    number: int
    kind: Literal["operation", "module", "reference"]
    name: str
    op: str
    operations: tuple[Operation, ...]
    rows: frozenset[Name]
    share: float
    step_s: float
    each_s: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """For the program's side."""
        if self.kind == "module":
            return {"target": self.number, "name": self.name}
        return {
            "target": self.number,
            "op": self.op,
            "operands": [tensors_of(one.shapes, one.types) for one in self.operations],
            "files": [_files(one) for one in self.operations],
            "cold": [one.cold for one in self.operations],
            "each_s": self.each_s,
        }


def _files(operation: Operation) -> Any:
    """The generated code that a kernel of inductor's own may be in; none of other operations."""
    return json.loads(operation.scalars) if operation.op.startswith(PREFIX) else []


def targets(
    events: EventTrace,
    device: str,
    signatures: Iterable[Mapping[str, Any]],
    steps: int,
    least_share: float = LEAST_SHARE,
    modules: int = MOST_MODULES,
) -> list[Target]:
    """The operations and modules of some traced ``steps`` that are worth validating, most first."""
    total_s = busy_s(events, device)
    here = places(events, device, signatures)
    if not total_s:
        return []
    found = [_target(alike, events, total_s) for alike in _alike(here)]
    found += _modules(here, total_s, modules)
    worth = sorted((one for one in found if one.share >= least_share), key=lambda one: -one.share)
    worth.sort(key=lambda one: one.kind, reverse=True)
    return [
        replace(one, number=number, step_s=one.share * total_s / steps) for number, one in enumerate(worth)
    ]


def work_s(some: Sequence[Target]) -> float:
    """How long the device works in a step, by what part of it a target is."""
    return some[0].step_s / some[0].share if some else 0.0


def _alike(here: Sequence[Place]) -> list[list[Place]]:
    """Places that have an operation in common, directly or through others."""
    group: dict[Operation, list[Place]] = {}
    for place in here:
        joined = [place]
        for operation in place.calls:
            known = group.get(operation, [])
            joined += [one for one in known if one not in joined]
        for operation in {operation for one in joined for operation in one.calls}:
            group[operation] = joined
    distinct = {id(one): one for one in group.values()}
    return list(distinct.values())


def _target(alike: Sequence[Place], events: EventTrace, total_s: float) -> Target:
    operations = tuple(dict.fromkeys(one for place in alike for one in place.calls))
    own = frozenset((place.name, place.phase) for place in alike)
    seconds = sum(place.busy_s for place in alike)
    first, *others = dict.fromkeys(described(operations))
    return Target(
        number=0,
        kind="operation",
        name=f"{first} and {len(others)} more" if others else first,
        op=operations[0].op,
        operations=operations,
        rows=own | _inside(events, own),
        share=seconds / total_s,
        step_s=0.0,
        each_s=seconds / sum(place.executions for place in alike),
    )


def _inside(events: EventTrace, own: frozenset[Name]) -> frozenset[Name]:
    """Names of what runs (mostly) inside of these operations, and so again when they do."""
    host = np.flatnonzero(events.kind.codes == KINDS.index("op"))
    if events.lane is None or not len(host):
        return frozenset()
    name, phase = events.name.codes[host].astype(np.int64), events.phase.codes[host]
    key = name * len(PHASES) + phase
    mine = np.isin(key, [events.name.code(one) * len(PHASES) + PHASES.index(phase) for one, phase in own])
    within = np.zeros(len(host), bool)
    for lane in np.unique(events.lane.codes[host[mine]]).tolist():
        there = events.lane.codes[host] == lane
        start, end = events.start_ns[host[mine & there]], events.end_ns[host[mine & there]]
        order = np.argsort(start)
        until = np.maximum.accumulate(end[order])
        before = np.searchsorted(start[order], events.start_ns[host], side="right") - 1
        within |= there & (before >= 0) & (events.end_ns[host] <= until[np.maximum(before, 0)])
    within &= ~mine
    calls = np.bincount(key, minlength=1)
    mostly = np.flatnonzero(np.bincount(key[within], minlength=len(calls)) > _MOSTLY * calls)
    return frozenset(
        (events.name.words[code // len(PHASES)], PHASES[code % len(PHASES)]) for code in mostly.tolist()
    )


def _modules(here: Sequence[Place], total_s: float, most: int) -> list[Target]:
    """Of modules that are the same thing many times, the one that takes most; their forward passes only."""
    inside: dict[str, list[Place]] = {}
    for place in here:
        path = split(place.name)[:-1]
        if place.phase == "forward" and path and not path[0].startswith("("):
            for depth in range(1, len(path) + 1):
                inside.setdefault("/".join(path[:depth]), []).append(place)
    found: dict[str, Target] = {}
    for name, parts in inside.items():
        if _is_list(name, parts):
            continue
        share = sum(place.busy_s for place in parts) / total_s
        kind = re.sub(r"\d+", "*", name)
        if kind not in found or share > found[kind].share:
            rows = frozenset((place.name, place.phase) for place in parts)
            found[kind] = Target(0, "module", name, "", (), rows, share, 0.0)
    return sorted(found.values(), key=lambda one: -one.share)[:most]


def _is_list(name: str, parts: Sequence[Place]) -> bool:
    """Whether there are only numbers below a module: it holds others, and is seldom called itself."""
    depth = len(split(name))
    return all(split(place.name)[depth].isdigit() for place in parts)
