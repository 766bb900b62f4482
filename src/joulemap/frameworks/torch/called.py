"""What operations were called with, of the events of one session: shapes, strides, types and scalars."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from joulemap.frameworks import kineto_names
from joulemap.frameworks.imported import Signature
from joulemap.frameworks.nesting import Forest
from joulemap.frameworks.torch.caches import Cold, found_cold
from joulemap.frameworks.torch.compiled import Codes
from joulemap.frameworks.torch.launched import BETWEEN, PREFIX
from joulemap.labels import Labels
from joulemap.traces import KINDS, EventTrace, Int64

_RATE = 1e-3
"""Stands for every factor of an optimizer: a learning rate, a decay, a step's correction."""
_EXPONENTS = ("norm", "pow")
"""In the names of operations whose numbers choose how they are computed: a norm of 2 is a sum of squares, and
one of any other power takes fifty times as long on a CPU."""


class Call(NamedTuple):
    """An operation somewhere, and what it is called with, as written."""

    name: str
    op: str
    phase: str
    said: str


class Told(NamedTuple):
    """What the profiler tells of operations, the first of some events: what each was called with, as written
    (nothing where it says nothing), and its own name."""

    signature: Labels
    name: Labels


@dataclass(frozen=True, eq=False)
class Called:
    """The operations among some events, as far as it is known what they were called with: ``calls[which[i]]``
    is row ``rows[i]``."""

    rows: Int64
    which: Int64
    calls: list[Call]

    def counts(self) -> dict[Call, int]:
        """How often each was called."""
        counts: Counter[Call] = Counter()
        for call, count in zip(self.calls, np.bincount(self.which, minlength=len(self.calls)), strict=True):
            counts[call] += int(count)
        return counts

    def and_more(self, others: Called) -> Called:
        """These and others."""
        which = np.concatenate((self.which, len(self.calls) + others.which))
        return Called(np.concatenate((self.rows, others.rows)), which, [*self.calls, *others.calls])


def called_with(events: EventTrace, told: Told | None, codes: Codes) -> Called:
    """What the operations among a session's events were called with. One that is not aten's has its
    namespace, unlike in names."""
    generated = _generated(events, codes)
    if told is None:
        return generated
    own = events.op.isin(kernel for kernel, _ in codes)
    known = ~told.signature.isin([""])
    known &= events.kind.codes[: len(known)] == KINDS.index("op")  # ranges may be given tensors, too
    rows = np.flatnonzero(known & ~own[: len(known)])
    nested = Forest.of_events(events, rows)
    rows = rows[~nested.holds_its_like(events.name.codes[rows].astype(np.int64))]  # they only pass on
    columns = (events.name.codes, events.op.codes, events.phase.codes, told.signature.codes, told.name.codes)
    distinct, which = np.unique(np.stack([one[rows] for one in columns]), axis=1, return_inverse=True)
    calls = [
        Call(
            events.name.words[name],
            kineto_names.foreign(told.name.words[given]) or events.op.words[op],
            events.phase.words[phase],
            told.signature.words[said],
        )
        for name, op, phase, said, given in distinct.T.tolist()
    ]
    return generated.and_more(Called(rows, which.reshape(-1), calls))


def _generated(events: EventTrace, codes: Codes) -> Called:
    """Kernels of inductor's own: what they are called with is in their code."""
    known = {kernel for kernel, _ in codes}
    own = [word for word in events.op.words if known.issuperset(word.split(BETWEEN))]
    rows = np.flatnonzero((events.kind.codes == KINDS.index("op")) & events.op.isin(own))
    columns = (events.name.codes, events.op.codes, events.phase.codes)
    distinct, which = np.unique(np.stack([one[rows] for one in columns]), axis=1, return_inverse=True)
    calls = []
    for name, op, phase in distinct.T.tolist():
        kernels, backward = events.op.words[op], events.phase.words[phase] == "backward"
        files = {file for one in kernels.split(BETWEEN) for file in codes.get((one, backward), ())}
        said = json.dumps([[], [], [], sorted(files)])
        calls.append(Call(events.name.words[name], PREFIX + kernels, events.phase.words[phase], said))
    return Called(rows, which.reshape(-1), calls)


def with_signatures(events: EventTrace, called: Called, cold: Cold) -> EventTrace:
    """The events, of which each says what it was called with."""
    if not len(called.rows):
        return events
    words, known = {"": 0}, dict[tuple[str, str, str], int]()
    for call in called.calls:
        if call[1:] not in known:  # layers call the same
            known[call[1:]] = words.setdefault(signature(call, 0, cold).key, len(words))
    codes = np.zeros(len(events), np.int32)
    codes[called.rows] = np.array([known[call[1:]] for call in called.calls], np.int32)[called.which]
    return replace(events, signature=Labels(codes, tuple(words)))


def signature(call: Call, calls: int, cold: Cold) -> Signature:
    """So many calls with the same."""
    shapes, strides, types, scalars = _unpacked(call.said, call.op, call.phase)
    there = found_cold(cold, call.op, call.phase, shapes, types)
    return Signature(call.name, call.op, call.phase, shapes, strides, types, scalars, calls, there)


@lru_cache(maxsize=10_000)
def _unpacked(said: str, op: str, phase: str) -> tuple[str, str, str, str]:
    """Shapes, strides, types and scalars, each as JSON. Many layers call the same."""
    shapes, strides, types, scalars = json.loads(said)
    if not any(word in op for word in _EXPONENTS):
        scalars = [_rounded(one, phase == "optimizer") for one in scalars]
    return json.dumps(shapes), json.dumps(strides), json.dumps(types), json.dumps(scalars)


def _rounded(scalar: Any, coarse: bool) -> Any:
    """A factor that changes from step to step costs the same in each, and so do all of an optimizer's."""
    if isinstance(scalar, list):
        return [_rounded(one, coarse) for one in scalar]
    if not isinstance(scalar, float) or not math.isfinite(scalar):
        return scalar
    return math.copysign(_RATE, scalar) if coarse and scalar not in (0.0, 1.0) else float(f"{scalar:.1g}")
