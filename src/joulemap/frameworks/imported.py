"""What an importer hands over, and how parts of it are put together and described."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import lru_cache
from typing import Any

import numpy as np

from joulemap.program import Program
from joulemap.traces import KINDS, EventTrace, Steps
from joulemap.units import NS_PER_S, fmt_seconds, fmt_share

UNNAMED = "(unnamed)"
"""The layer of operations that nothing names."""

ACCUMULATION = "(gradient accumulation)"
"""The layer of backward work that belongs to no forward operation: adding gradients up."""


@dataclass(frozen=True, slots=True)
class Signature:
    """What an operation was called with: shapes, strides and types of its inputs and its scalars, as JSON,
    and how often. What it costs depends on that, and on little else: on which of its tensors come from memory
    and not from a cache, ``cold``, a 1 or 0 for each; empty where nobody looked."""

    name: str
    op: str
    phase: str
    shapes: str
    strides: str
    types: str
    scalars: str
    calls: int
    cold: str = ""

    @property
    def key(self) -> str:
        """One line that is the same wherever the same was called."""
        return call_key(self.op, self.shapes, self.strides, self.types, self.scalars, self.cold)


@lru_cache(maxsize=10_000)
def call_key(op: str, shapes: str, strides: str, types: str, scalars: str, cold: str = "") -> str:
    """What an operation was called with in one line, which says nothing of where."""
    said = [op, shapes, strides, types, scalars]
    return json.dumps([*said, cold] if cold else said)


@dataclass(frozen=True, slots=True)
class Held:
    """What the tensors held that an operation of a signature was given: some bytes of each, none of those
    that nobody looked at. A kernel that was generated goes by the ``code`` that it is in, as its signature
    has it."""

    op: str
    shapes: str
    strides: str
    types: str
    pieces: tuple[bytes, ...]
    code: str = ""


@dataclass(frozen=True, eq=False)
class ImportedTrace:
    """The events of one or several trace files, and in ``notes`` what was understood and what left out."""

    events: EventTrace
    steps: Steps
    program: Program
    framework: str
    notes: list[str] = field(default_factory=list)
    signatures: tuple[Signature, ...] = ()
    values: tuple[Held, ...] = ()
    flags: Mapping[str, Any] = field(default_factory=dict)
    """The framework's settings that choose between algorithms."""


def describe(events: EventTrace, steps: Steps) -> list[str]:
    """What the events are: how many of which kind on which device, their clock, how much carries a name."""
    counts = np.bincount(events.kind.codes, minlength=len(KINDS))
    kinds = ", ".join(
        f"{count:,} {kind}" for kind, count in zip(KINDS, counts.tolist(), strict=True) if count
    )
    devices = ", ".join(sorted(events.device.words))
    notes = [f"{len(events):,} events on {devices} ({kinds}) in {len(steps)} step{'s' * (len(steps) != 1)}."]
    if events.span_ns:
        start_ns, end_ns = events.span_ns
        length = fmt_seconds((end_ns - start_ns) / NS_PER_S) if end_ns > start_ns else "0 s"
        notes.append(f"From {iso_time(start_ns)}, for {length}.")
        notes.append(f"{fmt_share(named_share(events))} of the operations' time carries a name.")
    return notes


def named_share(events: EventTrace) -> float:
    """Share of the work's time (kernels where there are any, else operations) that has a name."""
    kernels = events.kind.codes == KINDS.index("kernel")
    work = kernels if kernels.any() else events.kind.codes == KINDS.index("op")
    length = (events.end_ns - events.start_ns)[work]
    unnamed = np.array([word.startswith(UNNAMED) for word in events.name.words], bool)
    total = int(length.sum())
    return 1.0 - float(length[unnamed[events.name.codes[work]]].sum()) / total if total else 1.0


def iso_time(t_ns: int) -> str:
    """``2026-11-15T03:25:54.123Z`` for epoch ns."""
    seconds, rest_ns = divmod(t_ns, NS_PER_S)
    moment = datetime.fromtimestamp(seconds, timezone.utc).replace(tzinfo=None)
    return f"{moment.isoformat()}.{rest_ns // 1_000_000:03d}Z"
