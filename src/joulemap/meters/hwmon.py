"""Power and energy sensors that the kernel shows as hwmon files: NVIDIA Grace and other CPUs, boards.

Energy comes in microjoules, power in microwatts; a label says what is measured. Nothing is counted twice:
``amd_energy`` and ``coretemp`` repeat RAPL and are left to it, graphics drivers to their vendors' meters. On
a Grace Hopper module the sensor of the whole module holds the GPU too, which NVML measures: the Grace socket
is the root, with its CPU and SysIO rails inside. Sensors that do not name a CPU (power supplies, boards) hold
what other meters measure and are opened only when asked for, as device ``BOARD``.

Tested on trees of files laid out as the kernel does; no machine with such sensors was at hand.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from joulemap.devices import Domain
from joulemap.errors import MeterError
from joulemap.meters.cpu import CpuFacts
from joulemap.meters.meter import Probe, Quantity
from joulemap.meters.schedule import Every
from joulemap.meters.sysfs import FileChannel, NumberFile, text_of
from joulemap.meters.trial import probe_by_opening

POLL_PERIOD_S = 0.02
READ_ELSEWHERE = frozenset(
    {"amd_energy", "coretemp", "fam15h_power", "amdgpu", "radeon", "nouveau", "i915", "xe"}
)
MISSING = (
    "Few machines have them, virtual ones and containers hardly ever. On NVIDIA Grace, load the kernel "
    "module acpi_power_meter."
)
FORBIDDEN = "Run as root, or let root run `joulemap monitor` and use that."

_FILES = ("energy*_input", "power*_average", "power*_input")
"""Best first: energy misses nothing, an average covers its interval, an input is a moment."""
_FILE = re.compile(r"(?P<stem>(?:energy|power)\d+)_(?P<how>input|average)$")
_CPU = re.compile(r"cpu|grace|sysio|package|socket|\bsoc\b", re.IGNORECASE)
_INDEX = re.compile(r"(?:socket|cpu|package)[ _-]*(?P<index>\d+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Sensor:
    """One number of one chip, such as ``power1_average``."""

    path: Path
    stem: str
    how: str
    label: str

    @property
    def name(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", self.label.lower()).strip("-")

    @property
    def device(self) -> str:
        if not _CPU.search(self.label):
            return "BOARD"
        match = _INDEX.search(self.label)
        return f"CPU:{match['index']}" if match else "CPU"

    @property
    def quantity(self) -> Quantity:
        return "energy_j" if self.stem.startswith("energy") else "power_w"

    def is_part(self, part: str) -> bool:
        """Whether the label starts with this word; Grace's are ``Module``, ``Grace``, ``CPU``, ``SysIO``."""
        return self.label.lower().startswith(part)

    def update_period_s(self) -> float | None:
        """An average's own interval, else the chip's, where the driver says."""
        files = (f"{self.stem}_average_interval", "update_interval")
        texts = (text_of(self.path.with_name(name)) or "" for name in files)
        return next((int(text) * 1e-3 for text in texts if text.isdigit() and int(text) > 0), None)


class HwmonMeter:
    """The chips under ``root``; ``boards`` adds sensors that cover more than a CPU."""

    name = "hwmon"

    def __init__(self, root: Path = Path("/sys"), boards: bool = False, proc: Path = Path("/proc")) -> None:
        self.root = root
        self.boards = boards
        self._cpu_facts = CpuFacts(proc, root)

    def probe(self) -> Probe:
        """Available, or no sensor, or forbidden."""
        return probe_by_opening(self.open, "hwmon sensors {names}.")

    def open(self) -> Sequence[FileChannel]:
        """Every sensor that can be read; ``MeterError`` where none can."""
        sensors = [s for s in _sensors(self.root) if self.boards or s.device != "BOARD"]
        if not sensors:
            raise MeterError(f"No power or energy sensors of a CPU in {self.root / 'class/hwmon'}.", MISSING)
        channels = [_channel(sensor, sensors) for sensor in sensors]
        readable = [channel for channel in channels if _reads(channel)]
        if not readable:
            raise MeterError("The hwmon sensors exist, but none can be read.", FORBIDDEN)
        return readable

    def facts(self) -> Mapping[str, float]:
        """Load, clock and temperature of the CPUs."""
        return self._cpu_facts.facts()


def _sensors(root: Path) -> list[_Sensor]:
    """Each quantity once, by its label: energy before average power before power at a moment."""
    found: dict[str, _Sensor] = {}
    for chip in sorted((root / "class" / "hwmon").glob("hwmon*")):
        driver = text_of(chip / "name")
        if driver and driver not in READ_ELSEWHERE:
            for sensor in _of_chip(chip, driver):
                found.setdefault(sensor.name, sensor)
    sockets = {s.device for s in found.values() if s.is_part("grace")}
    return [s for s in found.values() if not (s.is_part("module") and s.device in sockets)]


def _of_chip(chip: Path, driver: str) -> Iterator[_Sensor]:
    """ACPI power meters keep their files one folder down."""
    for pattern in _FILES:
        for folder in (chip, chip / "device"):
            for path in sorted(folder.glob(pattern)):
                if match := _FILE.match(path.name):
                    stem = match["stem"]
                    yield _Sensor(
                        path, stem, match["how"], _label(path, stem) or f"{driver} {chip.name} {stem}"
                    )


def _label(path: Path, stem: str) -> str | None:
    return text_of(path.with_name(f"{stem}_label")) or text_of(path.with_name(f"{stem}_oem_info"))


def _channel(sensor: _Sensor, others: Iterable[_Sensor]) -> FileChannel:
    what = {"energy_j": "energy", "power_w": "average power" if sensor.how == "average" else "power"}
    domain = Domain(
        sensor.name,
        sensor.device,
        _parent(sensor, others),
        f"hwmon {what[sensor.quantity]}",
        update_period_s=sensor.update_period_s(),
    )
    return FileChannel(domain, sensor.quantity, Every(POLL_PERIOD_S), NumberFile(sensor.path, FORBIDDEN))


def _parent(sensor: _Sensor, others: Iterable[_Sensor]) -> str | None:
    """The Grace socket contains its rails."""
    if not (sensor.is_part("cpu") or sensor.is_part("sysio")):
        return None
    return next((s.name for s in others if s.is_part("grace") and s.device == sensor.device), None)


def _reads(channel: FileChannel) -> bool:
    try:
        channel.read()
    except MeterError:
        return False
    return True
