"""An estimate of CPU and memory energy, for machines where neither can be measured.

Most virtual machines hide every energy counter. What they do show is how long their CPUs were busy
(``/proc/stat``), so the estimate is ``idle W x time + (busy W - idle W) x busy time``, with watts from a
small table (``cores.py``), and so many watts a gigabyte of memory.

Idle power is that of the CPUs and the memory that we may use (``allotted.py``): in a container with two of 64
cores, of two. Busy time is the machine's, since the program's share is told by the machine's busy time.

The result is an estimate, says so (``provenance``), and is never mixed with what was measured.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from joulemap.devices import Domain
from joulemap.errors import InputError, MeterError
from joulemap.meters.allotted import allotted_bytes, allotted_cpus
from joulemap.meters.cores import (
    DRAM_WATTS_PER_GB,
    IDLE_SHARE,
    ROUGHLY,
    CoreModel,
    part_for,
    processor,
    threads_per_core,
)
from joulemap.meters.cpu import TICKS_PER_S, CpuFacts, busy_ticks
from joulemap.meters.meter import Probe, Quantity
from joulemap.meters.schedule import Every
from joulemap.units import NS_PER_S, parse

WATTS_PER_CORE = "JOULEMAP_WATTS_PER_CORE"
"""The environment variable that sets what a busy core draws, such as ``4.5`` or ``4.5W``."""

WATTS_PER_GB = "JOULEMAP_WATTS_PER_GB"
"""The environment variable that sets what a gigabyte of memory draws, such as ``0.2``."""

PERIOD_S = 0.1
"""How often it is read: the kernel counts in ticks of 10 ms, and to write ``/proc/stat`` takes it a while."""

_ROUGH = f"±{ROUGHLY * 100:.0f} %"
CPU_SENSOR = f"estimate from CPU time, roughly {_ROUGH}"
DRAM_SENSOR = f"estimate from memory size, roughly {_ROUGH}"


class CpuEstimate:
    """The running total of all CPUs: a function of the kernel's busy time and the clock alone, so that it is
    the same however often it is read."""

    quantity: Quantity = "energy_j"
    wraps_at_j = None

    def __init__(self, model: CoreModel, stat: Path, period_s: float, clock_ns: Callable[[], int]) -> None:
        self.domain = Domain("CPU", "CPU", None, CPU_SENSOR, "estimated", period_s)
        self.schedule = Every(period_s)
        self._model, self._clock_ns = model, clock_ns
        self._file = os.open(stat, os.O_RDONLY | os.O_CLOEXEC)
        self._start_ns, self._start_busy_s = clock_ns(), self._busy_s()
        self._busiest_s = 0.0

    def read(self) -> float:
        """Joules since it was opened."""
        busy_s = self._busy_s() - self._start_busy_s
        self._busiest_s = max(self._busiest_s, busy_s)  # the kernel's counters can step back by a tick
        seconds = (self._clock_ns() - self._start_ns) / NS_PER_S
        return self._model.energy_j(seconds, self._busiest_s)

    def close(self) -> None:
        os.close(self._file)

    def _busy_s(self) -> float:
        try:
            return busy_ticks(os.pread(self._file, 512, 0)) / TICKS_PER_S
        except (OSError, ValueError, IndexError) as error:
            raise MeterError(f"CPU time cannot be read: {error}.") from error


class DramEstimate:
    """The running total of the memory: constant power."""

    quantity: Quantity = "energy_j"
    wraps_at_j = None

    def __init__(self, watts: float, period_s: float, clock_ns: Callable[[], int]) -> None:
        self.domain = Domain("DRAM", "CPU", None, DRAM_SENSOR, "estimated", period_s)
        self.schedule = Every(period_s)
        self._watts, self._clock_ns = watts, clock_ns
        self._start_ns = clock_ns()

    def read(self) -> float:
        """Joules since it was opened."""
        return self._watts * (self._clock_ns() - self._start_ns) / NS_PER_S

    def close(self) -> None:
        """There is nothing to let go of."""


class EstimateMeter:
    """CPU and memory energy from CPU time and memory size.

    ``watts_per_core`` is what one busy core draws; by default the environment variable
    ``JOULEMAP_WATTS_PER_CORE``, else the table. ``watts_per_gb`` likewise, ``JOULEMAP_WATTS_PER_GB``.
    """

    name = "estimate"

    def __init__(
        self,
        proc: Path = Path("/proc"),
        sys: Path = Path("/sys"),
        watts_per_core: float | None = None,
        watts_per_gb: float | None = None,
        period_s: float = PERIOD_S,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._proc, self._sys = proc, sys
        self._watts_per_core, self._watts_per_gb = watts_per_core, watts_per_gb
        self._period_s, self._clock_ns = period_s, clock_ns
        self._cpu_facts = CpuFacts(proc, sys)

    def probe(self) -> Probe:
        try:
            model, watts_per_gb = self.model(), self._dram_watts()
        except (MeterError, InputError) as error:
            return Probe(False, error.message, error.hint)
        source = f"taken for {model.part}" if model.part else f"as {WATTS_PER_CORE} says"
        return Probe(
            True,
            f"{model.processor}, {source}: {model.cpus:g} CPUs, each {model.idle_w:.2g} W idle and "
            f"{model.busy_w:.2g} W busy; {model.memory_gb:.0f} GB of memory at {watts_per_gb:g} W/GB. "
            f"It may well be off by {_ROUGH}.",
            f"Set {WATTS_PER_CORE} to what a busy core of this machine draws, if you know it.",
        )

    def open(self) -> Sequence[CpuEstimate | DramEstimate]:
        model = self.model()
        channels: list[CpuEstimate | DramEstimate] = [
            CpuEstimate(model, self._proc / "stat", self._period_s, self._clock_ns)
        ]
        if model.memory_gb:
            watts = model.memory_gb * self._dram_watts()
            channels.append(DramEstimate(watts, self._period_s, self._clock_ns))
        return channels

    def facts(self) -> Mapping[str, float]:
        """Load, clock and temperature of the CPUs."""
        return self._cpu_facts.facts()

    def model(self) -> CoreModel:
        """What this machine is taken to draw."""
        try:
            stat = (self._proc / "stat").read_bytes()
            cpus = len(re.findall(rb"^cpu\d+ ", stat, re.MULTILINE))
            busy_ticks(stat)
        except (OSError, ValueError, IndexError) as error:
            raise MeterError(
                f"CPU time cannot be read from {self._proc / 'stat'}.",
                "It is there on Linux; in a container /proc must be mounted.",
            ) from error
        information = _text(self._proc / "cpuinfo")
        name, watts = processor(information), _watts(self._watts_per_core, WATTS_PER_CORE, "A core")
        part = part_for(name)
        busy_w = (part.busy_core_w if watts is None else watts) / threads_per_core(information)
        ours = allotted_cpus(cpus, self._proc, self._sys)
        memory_gb = allotted_bytes(_memory_bytes(self._proc), self._proc, self._sys) / 1e9
        which = part.which if watts is None else ""
        return CoreModel(name, which, ours, busy_w, IDLE_SHARE * busy_w, memory_gb)

    def _dram_watts(self) -> float:
        watts = _watts(self._watts_per_gb, WATTS_PER_GB, "A gigabyte")
        return DRAM_WATTS_PER_GB if watts is None else watts


def _watts(given: float | None, variable: str, what: str) -> float | None:
    """As given, else as the environment says, else None."""
    text = os.environ.get(variable, "")
    watts = given if given is not None else parse(text, "W") if text else None
    if watts is not None and not 0 < watts < float("inf"):
        raise InputError(f"{what} cannot draw {watts:g} W.", f"Correct {variable}, or unset it.")
    return watts


def _memory_bytes(proc: Path) -> int:
    match = re.search(r"^MemTotal:\s*(\d+) kB", _text(proc / "meminfo"), re.MULTILINE)
    return int(match[1]) * 1024 if match else 0


def _text(file: Path) -> str:
    """What is in a file of the kernel's; nothing where it cannot be read."""
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""
