"""An estimate of CPU and memory energy, for machines where neither can be measured.

Most virtual machines hide every energy counter. What they do show is how long their CPUs were busy
(``/proc/stat``). A core draws little when idle and roughly its share of the package's thermal design power
when busy, so ``idle W x time + (busy W - idle W) x busy time`` is within a factor of two or so of the truth,
and follows the load. Memory draws about the same whatever it does: so many watts a gigabyte.

The result is an estimate, says so (``provenance``), and is never mixed with what was measured.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from joulemap.devices import Domain
from joulemap.errors import InputError, MeterError
from joulemap.meters.meter import Probe, Quantity
from joulemap.meters.schedule import Every
from joulemap.units import NS_PER_S, parse

WATTS_PER_CORE = "JOULEMAP_WATTS_PER_CORE"
"""The environment variable that sets what a busy core draws, such as ``4.5`` or ``4.5W``."""

IDLE_SHARE = 0.2
"""What an idle core draws, as a share of a busy one: about what servers show between idle and full load."""

DRAM_WATTS_PER_GB = 0.375
"""About 3 W for a module of 8 GB, busy or not."""

CORES: tuple[tuple[str, float, int], ...] = (
    (r"Xeon.* Platinum 8[45]\d\d", 350.0, 56),
    (r"Xeon.* Platinum 83\d\d", 270.0, 40),
    (r"Xeon.* Platinum 8[12]\d\d", 205.0, 28),
    (r"Xeon.* Gold", 205.0, 32),
    (r"Xeon.* Silver", 120.0, 16),
    (r"Xeon.* E[357]-\d+ ?v?\d?", 135.0, 14),
    (r"Xeon", 270.0, 40),
    (r"EPYC 9\d\d5", 500.0, 128),
    (r"EPYC 9\d\d4", 360.0, 96),
    (r"EPYC 7\d\d3", 280.0, 64),
    (r"EPYC", 225.0, 64),
    (r"Threadripper", 350.0, 64),
    (r"Ryzen 9", 170.0, 16),
    (r"Ryzen 7", 105.0, 8),
    (r"Ryzen", 65.0, 6),
    (r"Core.* (i9|Ultra 9)", 125.0, 24),
    (r"Core.* (i7|Ultra 7)", 125.0, 20),
    (r"Core", 65.0, 6),
    (r"ARM 0xd4f", 250.0, 72),  # Neoverse V2: Grace, Graviton 4
    (r"ARM 0xd40", 100.0, 64),  # Neoverse V1: Graviton 3
    (r"ARM 0xd0c", 250.0, 80),  # Neoverse N1: Altra, Graviton 2
)
"""Thermal design power (W) and cores of a typical part of each family; the first pattern that fits counts."""

DEFAULT_CORE = (150.0, 20)
"""For a processor that is not in the table."""

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_BUSY = (0, 1, 2, 5, 6)  # user (which includes guests), nice, system, irq, softirq; not idle, iowait, steal


@dataclass(frozen=True, slots=True)
class CoreModel:
    """What this machine is taken to draw. A CPU is what the kernel counts: a hardware thread."""

    processor: str
    cpus: int
    busy_w: float
    idle_w: float
    memory_gb: float

    def energy_j(self, seconds: float, busy_s: float) -> float:
        """Of all CPUs over a time, of which they were busy for ``busy_s`` in sum."""
        return self.cpus * self.idle_w * seconds + (self.busy_w - self.idle_w) * busy_s


class CpuEstimate:
    """The running total of all CPUs: a function of the kernel's busy time and the clock alone, so that it is
    the same however often it is read."""

    quantity: Quantity = "energy_j"
    wraps_at_j = None

    def __init__(self, model: CoreModel, stat: Path, period_s: float, clock_ns: Callable[[], int]) -> None:
        self.domain = Domain("CPU", "CPU", None, "estimate from CPU time", "estimated", period_s)
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
            return busy_ticks(os.pread(self._file, 512, 0)) / _TICKS_PER_S
        except (OSError, ValueError, IndexError) as error:
            raise MeterError(f"CPU time cannot be read: {error}.") from error


class DramEstimate:
    """The running total of the memory: constant power."""

    quantity: Quantity = "energy_j"
    wraps_at_j = None

    def __init__(self, watts: float, period_s: float, clock_ns: Callable[[], int]) -> None:
        self.domain = Domain("DRAM", "CPU", None, "estimate from memory size", "estimated", period_s)
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
    ``JOULEMAP_WATTS_PER_CORE``, else the table in this module.
    """

    name = "estimate"

    def __init__(
        self,
        proc: Path = Path("/proc"),
        sys: Path = Path("/sys"),
        watts_per_core: float | None = None,
        watts_per_gb: float = DRAM_WATTS_PER_GB,
        period_s: float = 0.05,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._proc, self._sys = proc, sys
        self._watts_per_core, self._watts_per_gb = watts_per_core, watts_per_gb
        self._period_s, self._clock_ns = period_s, clock_ns
        self._last_ticks: tuple[int, int] | None = None

    def probe(self) -> Probe:
        try:
            model = self.model()
        except (MeterError, InputError) as error:
            return Probe(False, error.message, error.hint)
        return Probe(
            True,
            f"{model.processor}: {model.cpus} CPUs, each {model.idle_w:.2g} W idle and {model.busy_w:.2g} W "
            f"busy; {model.memory_gb:.0f} GB of memory at {self._watts_per_gb:g} W/GB.",
            f"Set {WATTS_PER_CORE} to what a busy core of this machine draws.",
        )

    def open(self) -> Sequence[CpuEstimate | DramEstimate]:
        model = self.model()
        channels: list[CpuEstimate | DramEstimate] = [
            CpuEstimate(model, self._proc / "stat", self._period_s, self._clock_ns)
        ]
        if model.memory_gb:
            watts = model.memory_gb * self._watts_per_gb
            channels.append(DramEstimate(watts, self._period_s, self._clock_ns))
        return channels

    def facts(self) -> Mapping[str, float]:
        """The load since the last call, and the mean clock of the CPUs."""
        facts: dict[str, float] = {}
        with contextlib.suppress(OSError, ValueError, IndexError):
            facts |= self._load()
        with contextlib.suppress(OSError, ValueError):
            clocks = self._clocks_mhz()
            if clocks:
                facts["CPU clock_mhz"] = sum(clocks) / len(clocks)
        return facts

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
        name = processor(information)
        watts = self._set_watts()
        busy_w = (core_watts(name) if watts is None else watts) / _threads_per_core(information)
        return CoreModel(name, cpus, busy_w, IDLE_SHARE * busy_w, _memory_gb(_text(self._proc / "meminfo")))

    def _set_watts(self) -> float | None:
        text = os.environ.get(WATTS_PER_CORE, "")
        watts = (
            self._watts_per_core if self._watts_per_core is not None else parse(text, "W") if text else None
        )
        if watts is not None and not 0 < watts < float("inf"):
            raise InputError(f"A core cannot draw {watts:g} W.", f"Correct {WATTS_PER_CORE}, or unset it.")
        return watts

    def _load(self) -> dict[str, float]:
        line = (self._proc / "stat").read_bytes()[:512]
        now = busy_ticks(line), sum(_ticks(line)[:8])
        before, self._last_ticks = self._last_ticks, now
        if before is None or now[1] <= before[1]:
            return {}
        share = (now[0] - before[0]) / (now[1] - before[1])
        return {"CPU load_percent": 100 * min(max(share, 0.0), 1.0)}

    def _clocks_mhz(self) -> list[float]:
        """From the frequency driver; virtual machines have none, and show one in ``cpuinfo``."""
        files = (self._sys / "devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_cur_freq")
        clocks = [float(file.read_text()) / 1000 for file in files]
        return clocks or [
            float(mhz) for mhz in re.findall(r"^cpu MHz\s*:\s*([\d.]+)", _text(self._proc / "cpuinfo"), re.M)
        ]


def busy_ticks(stat: bytes) -> int:
    """Ticks that all CPUs together spent working, from the first line of ``/proc/stat``."""
    ticks = _ticks(stat)
    return sum(ticks[field] for field in _BUSY)


def core_watts(name: str) -> float:
    """What a busy core of this processor draws: design power over cores of its family."""
    for pattern, watts, cores in CORES:
        if re.search(pattern, name):
            return watts / cores
    return DEFAULT_CORE[0] / DEFAULT_CORE[1]


def processor(cpuinfo: str) -> str:
    """The processor's name; ARM names only its part number."""
    if match := re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE):
        return " ".join(re.sub(r"\((R|TM|r|tm)\)", "", match[1]).split())
    match = re.search(r"^CPU part\s*:\s*(\S+)$", cpuinfo, re.MULTILINE)
    return f"ARM {match[1]}" if match else "unknown processor"


def _ticks(stat: bytes) -> list[int]:
    words = stat.split(b"\n", 1)[0].split()
    if not words or words[0] != b"cpu":
        raise ValueError("it does not begin with the line of all CPUs")
    return [int(word) for word in words[1:]]


def _threads_per_core(cpuinfo: str) -> int:
    siblings = re.search(r"^siblings\s*:\s*(\d+)", cpuinfo, re.MULTILINE)
    cores = re.search(r"^cpu cores\s*:\s*(\d+)", cpuinfo, re.MULTILINE)
    return max(int(siblings[1]) // int(cores[1]), 1) if siblings and cores and int(cores[1]) else 1


def _memory_gb(meminfo: str) -> float:
    match = re.search(r"^MemTotal:\s*(\d+) kB", meminfo, re.MULTILINE)
    return int(match[1]) * 1024 / 1e9 if match else 0.0


def _text(file: Path) -> str:
    """What is in a file of the kernel's; nothing where it cannot be read."""
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""
