"""What an importer hands over, and how parts of it are put together and described."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone

import numpy as np

from joulemap.labels import Labels
from joulemap.program import Program
from joulemap.traces import KINDS, EventTrace, Steps
from joulemap.units import NS_PER_S, fmt_seconds, fmt_share

UNNAMED = "(unnamed)"
"""The layer of operations that nothing names."""

ACCUMULATION = "(gradient accumulation)"
"""The layer of backward work that belongs to no forward operation: adding gradients up."""


@dataclass(frozen=True, eq=False)
class ImportedTrace:
    """The events of one or several trace files, and in ``notes`` what was understood and what left out."""

    events: EventTrace
    steps: Steps
    program: Program
    framework: str
    notes: list[str] = field(default_factory=list)


def joined_labels(parts: Sequence[Labels]) -> Labels:
    """Label columns one after the other, each word stored once."""
    words = [word for part in parts for word in part.words]
    sizes = np.cumsum([0, *(len(part.words) for part in parts)])
    codes = [part.codes + size for part, size in zip(parts, sizes.tolist(), strict=False)]
    return Labels(np.concatenate(codes).astype(np.int32), tuple(words)).mapped(words)


def joined_events(parts: Sequence[EventTrace]) -> EventTrace:
    """Event traces one after the other. Lanes survive only where all parts have them."""
    lanes = [part.lane for part in parts if part.lane is not None]
    return EventTrace(
        name=joined_labels([part.name for part in parts]),
        device=joined_labels([part.device for part in parts]),
        start_ns=np.concatenate([part.start_ns for part in parts]),
        end_ns=np.concatenate([part.end_ns for part in parts]),
        lane=joined_labels(lanes) if len(lanes) == len(parts) else None,
        kind=Labels(np.concatenate([part.kind.codes for part in parts]), parts[0].kind.words),
        op=joined_labels([part.op for part in parts]),
        phase=Labels(np.concatenate([part.phase.codes for part in parts]), parts[0].phase.words),
        step=np.concatenate([part.step for part in parts]),
    )


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
