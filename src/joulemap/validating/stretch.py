"""Steps of a program from one border to the next, as its side has told of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from joulemap.recorder.experiment import PLAIN
from joulemap.units import NS_PER_S


@dataclass(frozen=True, slots=True)
class Stretch:
    """Steps that are all plain, or all with one target repeated. ``seen`` counts executions by target,
    ``extra`` those that were added; the device rested for ``pause_s`` before and after, and ran at
    ``clock_mhz``, where that was looked at, which took ``looked_s``."""

    target: int
    start_ns: int
    end_ns: int
    steps: int
    seen: Mapping[int, int]
    extra: int
    clock_mhz: float = 0.0
    pause_s: float = 0.0
    looked_s: float = 0.0

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> Stretch:
        """As the program's side wrote it."""
        return cls(
            target=int(said["target"]),
            start_ns=int(said["start_ns"]),
            end_ns=int(said["end_ns"]),
            steps=int(said["steps"]),
            seen={int(target): int(count) for target, count in said["seen"].items()},
            extra=int(said["extra"]),
            clock_mhz=float(said["clock_mhz"]),
            pause_s=float(said["pause_s"]),
            looked_s=float(said["looked_s"]),
        )

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.start_ns) / NS_PER_S


def plain(stretches: Sequence[Stretch]) -> list[Stretch]:
    """Those in which nothing was repeated."""
    return [one for one in stretches if one.target == PLAIN and one.steps]
