"""What explains the energy of CPUs: their load, their clock, their temperature.

All of it comes from files that anybody may read, whichever meter reads the energy. What a system does not
show (virtual machines show no temperature) is absent.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from joulemap.meters.sysfs import text_of

MOST_CLOCKS = 16
"""CPUs whose clock is looked at, spread over all of them: each look interrupts the CPU that is asked."""

BUSY = (0, 1, 2, 5, 6)  # user (which includes guests), nice, system, irq, softirq; not idle, iowait, steal
TICKS_PER_S = os.sysconf("SC_CLK_TCK")

_PACKAGE = re.compile(r"Package id (?P<socket>\d+)$")
_CHIPS = {"coretemp": "Package id", "k10temp": "T", "zenpower": "T", "cpu_thermal": ""}
"""hwmon chips inside CPUs, and how the labels begin that stand for a whole CPU."""
_ZONES = ("x86_pkg_temp", "cpu-thermal", "cpu_thermal", "soc-thermal", "soc_thermal")


class CpuFacts:
    """Looks when asked; the load is that since it was last asked. Where the files are is found out once."""

    def __init__(self, proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> None:
        self._proc, self._sys = proc, sys
        self._last_ticks: tuple[int, int] | None = None
        self._clocks: list[Path] | None = None
        self._thermometers: list[tuple[str, Path]] = []

    def facts(self) -> dict[str, float]:
        """``CPU load_percent``, ``CPU clock_mhz``, and ``CPU:0 temperature_c`` or ``CPU temperature_c``."""
        if self._clocks is None:
            self._clocks, self._thermometers = clock_files(self._sys), thermometers(self._sys)
        facts: dict[str, float] = {}
        with suppress(OSError, ValueError, IndexError):
            facts |= self._load()
        with suppress(OSError, ValueError):
            clocks = _clocks_mhz(self._clocks, self._proc)
            if clocks:
                facts["CPU clock_mhz"] = sum(clocks) / len(clocks)
        return facts | _hottest(self._thermometers)

    def _load(self) -> dict[str, float]:
        line = (self._proc / "stat").read_bytes()[:512]
        now = busy_ticks(line), sum(ticks(line)[:8])
        before, self._last_ticks = self._last_ticks, now
        if before is None or now[1] <= before[1]:
            return {}
        share = (now[0] - before[0]) / (now[1] - before[1])
        return {"CPU load_percent": 100 * min(max(share, 0.0), 1.0)}


def busy_ticks(stat: bytes) -> int:
    """Ticks that all CPUs together spent working, from the first line of ``/proc/stat``. Time that a
    hypervisor gave to others is not among them."""
    spent = ticks(stat)
    return sum(spent[field] for field in BUSY)


def ticks(stat: bytes) -> list[int]:
    """The first line of ``/proc/stat``: ticks of all CPUs by what they did."""
    words = stat.split(b"\n", 1)[0].split()
    if not words or words[0] != b"cpu":
        raise ValueError("it does not begin with the line of all CPUs")
    return [int(word) for word in words[1:]]


def clock_files(sys: Path) -> list[Path]:
    """Of some CPUs, where there is a frequency driver; virtual machines have none."""
    files = sorted((sys / "devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_cur_freq"))
    return files[:: max(-(-len(files) // MOST_CLOCKS), 1)]


def _clocks_mhz(files: Sequence[Path], proc: Path) -> list[float]:
    """From the driver's files, in kHz, else as ``cpuinfo`` has it."""
    if files:
        return [float(file.read_text()) / 1000 for file in files]
    cpuinfo = (proc / "cpuinfo").read_text(errors="replace")
    return [float(mhz) for mhz in re.findall(r"^cpu MHz\s*:\s*([\d.]+)", cpuinfo, re.MULTILINE)]


def thermometers(sys: Path) -> list[tuple[str, Path]]:
    """Files with the temperature of a CPU in thousandths of a degree: of ``CPU:0`` where the sensor says
    which socket it is in, else of ``CPU``."""
    return [*_chips(sys)] or [*_zones(sys)]


def _chips(sys: Path) -> Iterator[tuple[str, Path]]:
    for chip in sorted((sys / "class" / "hwmon").glob("hwmon*")):
        begins = _CHIPS.get(text_of(chip / "name") or "")
        if begins is None:
            continue
        labels = {file: text_of(_label_of(file)) or "" for file in sorted(chip.glob("temp*_input"))}
        for file, label in labels.items():
            # Tctl is for fans and may be tens of degrees off; Tdie is true where the chip has it.
            if label.startswith(begins) and not (label == "Tctl" and "Tdie" in labels.values()):
                match = _PACKAGE.match(label)
                yield f"CPU:{match['socket']}" if match else "CPU", file


def _label_of(file: Path) -> Path:
    return file.with_name(file.name.replace("_input", "_label"))


def _zones(sys: Path) -> Iterator[tuple[str, Path]]:
    for zone in sorted((sys / "class" / "thermal").glob("thermal_zone*")):
        if text_of(zone / "type") in _ZONES:
            yield "CPU", zone / "temp"


def _hottest(files: Sequence[tuple[str, Path]]) -> dict[str, float]:
    """The highest of each CPU, in degrees Celsius."""
    found: dict[str, float] = {}
    for cpu, file in files:
        text, name = text_of(file) or "", f"{cpu} temperature_c"
        if text.lstrip("-").isdecimal():
            found[name] = max(int(text) / 1000, found.get(name, -math.inf))
    return found
