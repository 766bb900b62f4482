"""Where the monitor sits: real threads, on a machine whose load is told by a file."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from joulemap.monitor.seat import Seat

CPUS = sorted(os.sched_getaffinity(0))


class Machine:
    """A ``/proc`` in which processors have idled, waited for disks and worked for so many ticks."""

    def __init__(self, folder: Path) -> None:
        self.proc = folder
        self.ticks = {cpu: [50, 30, 20] for cpu in CPUS}
        self.write()

    def goes_on(self, **spent: tuple[int, int, int]) -> None:
        for name, more in spent.items():
            cpu = CPUS[int(name[1:])]
            self.ticks[cpu] = [a + b for a, b in zip(self.ticks[cpu], more, strict=True)]
        self.write()

    def write(self) -> None:
        lines = [
            f"cpu{cpu} {busy} 0 0 {idle} {disk} 0 0 0 {busy} 0"
            for cpu, (idle, disk, busy) in self.ticks.items()
        ]
        (self.proc / "stat").write_text("\n".join(["cpu  1 2 3 4 5 6 7 8 9 0", *lines, "intr 5", ""]))


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """The process is where it was afterwards."""
    yield Machine(tmp_path)
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            os.sched_setaffinity(int(thread.name), CPUS)


@pytest.mark.skipif(len(CPUS) < 2, reason="needs two processors")
def test_it_sits_where_others_do_not(machine: Machine) -> None:
    over, ready = threading.Event(), threading.Event()
    sampling = threading.Thread(target=lambda: (ready.set(), over.wait()))
    sampling.start()
    assert ready.wait(60)
    seat, rest = Seat(machine.proc), dict.fromkeys((f"c{n}" for n in range(2, len(CPUS))), (0, 0, 100))
    try:
        for first, second, seats in [
            ((0, 5, 95), (30, 30, 40), {CPUS[1]}),
            ((100, 0, 0), (20, 20, 60), {CPUS[0]}),
            ((10, 0, 90), (10, 0, 90), {*CPUS}),
            ((60, 0, 40), (99, 0, 1), {*CPUS[:2]}),
        ]:
            machine.goes_on(c0=first, c1=second, **rest)
            seat.move()
            assert os.sched_getaffinity(0) == seats
            assert os.sched_getaffinity(sampling.native_id or 0) == seats
    finally:
        over.set()
        sampling.join()


def test_a_machine_that_tells_nothing_leaves_it_where_it_is(machine: Machine) -> None:
    seat = Seat(machine.proc)
    (machine.proc / "stat").unlink()
    for _ in range(2):
        seat.move()
        assert os.sched_getaffinity(0) == {*CPUS}


def test_processors_that_it_may_not_use_are_left_alone(machine: Machine) -> None:
    """Free as they may be."""
    os.sched_setaffinity(0, CPUS[:1])
    seat = Seat(machine.proc)
    machine.goes_on(**{f"c{n}": (100, 0, 0) for n in range(len(CPUS))})
    seat.move()
    assert os.sched_getaffinity(0) == {CPUS[0]}
