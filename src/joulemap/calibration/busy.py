"""What keeps a device busy, as far as it matters to calibrate it: the one number for what is planned, and for
what is said to be calibrated."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joulemap.accounting.attribute import step_of_event
from joulemap.calibration.operation import (
    COVERED,
    WORTH,
    Operation,
    Place,
    all_on_device,
    by_time,
    on_device,
    own_seconds,
)
from joulemap.traces import EventTrace, Steps


def counted(events: EventTrace, device: str, steps: Steps | None) -> NDArray[np.bool_]:
    """What a device does in traced ones of ``steps``, Python on a CPU included: not start-up, nor what is
    between steps, of which a few are seen by chance. Everything where no operation is in any."""
    chosen = all_on_device(events, device)
    traced = np.zeros(0, bool) if steps is None else steps.traced
    inside = chosen & np.append(traced, False)[step_of_event(events, steps)]  # of no step is the last one
    return np.asarray(inside if (inside & on_device(events, device)).any() else chosen)


@dataclass(frozen=True)
class Busy:
    """In traced steps: ``seconds`` of each operation, most first, of those that others have, too; and of
    everything that the device does there."""

    seconds: Mapping[Operation, float]
    operations_s: float
    total_s: float

    @classmethod
    def of(cls, events: EventTrace, device: str, here: Sequence[Place], steps: Steps | None) -> Busy:
        rows = counted(events, device, steps)
        own_s = np.where(rows, own_seconds(events), 0.0)
        operations_s = float(own_s[on_device(events, device)].sum())
        return cls(by_time(here, own_s), operations_s, float(own_s.sum()))

    @classmethod
    def joined(cls, parts: Sequence[Busy]) -> Busy:
        """Of several devices together."""
        seconds: dict[Operation, float] = {}
        for part in parts:
            for one, its_s in part.seconds.items():
                seconds[one] = seconds.get(one, 0.0) + its_s
        most_first = dict(sorted(seconds.items(), key=lambda one: -one[1]))
        return cls(most_first, sum(one.operations_s for one in parts), sum(one.total_s for one in parts))

    @property
    def enough(self) -> float:
        """The share of the busy time that is to be calibrated: most of what can be."""
        return COVERED * self.operations_s / self.total_s if self.total_s else COVERED

    def covered(self, known: Collection[Operation]) -> float:
        """The share of busy time of the operations that are known."""
        return sum(self.seconds.get(one, 0.0) for one in known) / self.total_s if self.total_s else 0.0

    def leaves(self, known: Collection[Operation], tried: Collection[Operation]) -> bool:
        """Whether more time would replay more, where some are known, and others could not be replayed."""
        most = max(
            (s for one, s in self.seconds.items() if one not in known and one not in tried), default=0.0
        )
        return most > 0 and (self.covered(known) < self.enough or most >= WORTH * self.total_s)
