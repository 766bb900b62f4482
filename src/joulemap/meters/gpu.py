"""What the meters of GPUs have in common, whoever made them."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass

from joulemap.devices import Domain
from joulemap.meters.meter import Quantity, Schedule


def process_itself() -> Collection[int]:
    """The processes whose use of a GPU is ours, where nobody says otherwise."""
    return {os.getpid()}


@dataclass(frozen=True, slots=True)
class GpuChannel:
    """One GPU's energy, or its power where it has no energy counter."""

    domain: Domain
    quantity: Quantity
    schedule: Schedule
    take: Callable[[], float]
    let_go: Callable[[], None]
    wraps_at_j: float | None = None

    def read(self) -> float:
        """Joules or watts now. ``MeterError`` where the GPU is lost; others go on."""
        return self.take()

    def close(self) -> None:
        """Let go of this GPU; the last one shuts the library down."""
        self.let_go()
