"""What the meters of GPUs have in common, whoever made them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from joulemap.devices import Domain
from joulemap.errors import MeterError
from joulemap.meters.meter import Channel, Quantity, Schedule

PICTURE_PERIOD_S = 0.1
"""How often power is read for pictures: as often as NVIDIA's readings update."""

_FIRST_NAMESPACE = 0xEFFFFFFC
_INIT = 1


@runtime_checkable
class Pictured(Protocol):
    """A meter with readings that are drawn beside its energy and never counted as energy."""

    def pictures(self) -> Mapping[str, float]:
        """Power and clocks now, named like facts: ``GPU:0 instant_power_w``. Cheap enough for ten times a
        second (a field of NVML takes 8 us); empty where there is none; never raises."""
        ...


@runtime_checkable
class Beside(Protocol):
    """A meter whose devices have more readings than the one that is metered."""

    def beside(self) -> Sequence[Channel]:
        """The other readings of the devices that are open, to be looked at and never added up."""
        ...


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


def split_off(
    tried: Iterable[GpuChannel | MeterError],
) -> tuple[list[GpuChannel], list[MeterError]]:
    """The GPUs that can be read, and why the others cannot."""
    both = list(tried)
    channels = [one for one in both if isinstance(one, GpuChannel)]
    return channels, [one for one in both if isinstance(one, MeterError)]


def answers(
    questions: Mapping[str, Callable[[], Any]], pids: Callable[[], Sequence[int]], program: Program | None
) -> Iterator[tuple[str, float]]:
    """What a card tells of itself and of who uses it; a fact that it does not know is absent."""
    for name, question in questions.items():
        with suppress(MeterError, ValueError):  # AMD's library answers some questions with "N/A"
            yield name, float(question())
    with suppress(MeterError):
        there = pids()
        yield "processes_count", float(len(there))
        if program is not None:
            yield "other_processes_count", float(program.others(there))


@dataclass(frozen=True, slots=True)
class Program:
    """The process that was started first and everything that it started, told by their parents."""

    pid: int
    proc: Path = Path("/proc")

    def others(self, pids: Iterable[int]) -> int:
        """How many of these processes are not the program's. In a container, those that the container does
        not see are not counted: what number they have in here cannot be known."""
        everyone = _in_first_namespace(self.proc)
        return sum(not self._has(pid) and (everyone or (self.proc / str(pid)).exists()) for pid in set(pids))

    def _has(self, pid: int) -> bool:
        while pid > 0:
            if pid == self.pid:
                return True
            pid = self._parent(pid)
        return False

    def _parent(self, pid: int) -> int:
        try:  # the name comes first, in brackets, and may contain anything
            return int((self.proc / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return 0


def program_around(proc: Path = Path("/proc")) -> Program | None:
    """The program that this process belongs to, as its child (a monitor) or by itself: its parent's family.
    None for a service of the system, which belongs to no program."""
    parent = os.getppid()
    return None if parent == _INIT and _in_first_namespace(proc) else Program(parent, proc)


def _in_first_namespace(proc: Path) -> bool:
    """Whether process numbers are those of the machine, not of a container."""
    try:
        return (proc / "self" / "ns" / "pid").stat().st_ino == _FIRST_NAMESPACE
    except OSError:
        return True
