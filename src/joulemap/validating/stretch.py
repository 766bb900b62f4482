"""Steps of a program from one border to the next, as its side has told of them, and the clocks meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from joulemap.calibration.recorded import CLOCK
from joulemap.recording import Recording
from joulemap.units import NS_PER_S


@dataclass(frozen=True, slots=True)
class Stretch:
    """Steps that are all plain, or all with one target repeated. ``seen`` counts executions by target,
    ``extra`` those that were added; the device rested for ``pause_s`` before and after, waited after each
    target for ``ease`` times what that takes, and ran at ``clock_mhz``, where that is known."""

    target: int
    start_ns: int
    end_ns: int
    steps: int
    seen: Mapping[int, int]
    extra: int
    pause_s: float = 0.0
    ease: float = 0.0
    clock_mhz: float = 0.0

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
            pause_s=float(said["pause_s"]),
            ease=float(said["ease"]),
        )

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.start_ns) / NS_PER_S


def plain(stretches: Sequence[Stretch], ease: float = 0.0) -> list[Stretch]:
    """Those in which nothing was repeated; and with nothing else, the program was as it is without us."""
    return [one for one in stretches if one.target < 0 and one.ease == ease and one.steps]


def clocked(stretches: Sequence[Stretch], recording: Recording, device: str) -> list[Stretch]:
    """The same with the mean of the clocks that were looked up in each, which is ten times a second."""
    t_ns, mhz = recording.facts(f"{device} {CLOCK}")
    found = []
    for one in stretches:
        inside = mhz[(t_ns >= one.start_ns) & (t_ns < one.end_ns)]
        found.append(replace(one, clock_mhz=float(inside.mean()) if len(inside) else 0.0))
    return found
