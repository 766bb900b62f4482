"""RAPL through powercap: the energy counters inside Intel and AMD processors.

The processor counts the energy of its packages, cores and memory itself, in microjoules, and updates the
counters about every millisecond. They wrap around: 262 kJ for a package is 15 minutes at 300 W.

Tested on trees of files laid out as the kernel does; no machine that shows RAPL was at hand.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from joulemap.devices import Domain
from joulemap.errors import MeterError
from joulemap.meters.cpu import CpuFacts
from joulemap.meters.meter import Probe
from joulemap.meters.place import ON_HOST, Place, no_rapl
from joulemap.meters.schedule import Every
from joulemap.meters.sysfs import FileChannel, NumberFile, text_of
from joulemap.meters.trial import probe_by_opening

UPDATE_PERIOD_S = 0.001
POLL_PERIOD_S = 0.004

FORBIDDEN = (
    "RAPL is for root only since CVE-2020-8694: fine-grained energy leaks secrets, so do not open the files "
    "to everyone. Let root run `joulemap monitor` and use that (best), or give this program CAP_PERFMON so "
    "that it reads perf events, or run it as root."
)
UNREADABLE = "See the kernel's log (dmesg); reloading the module intel_rapl_msr may help."
NOT_MOUNTED = f"Mount it (docker run -v /sys:/sys:ro), or {ON_HOST}."
HIDDEN = f"Docker and Podman hide RAPL on purpose (CVE-2020-8694): {ON_HOST}."

_ZONE = re.compile(r"(?P<control>intel-rapl(?:-mmio)?):(?P<zone>\d+)(?::(?P<part>\d+))?$")
_PACKAGE = re.compile(r"package-(?P<socket>\d+)")


@dataclass(frozen=True, slots=True)
class _Zone:
    """One powercap folder. ``package`` is the name of the package zone it lies in, its own for a package."""

    path: Path
    name: str
    package: str | None

    @property
    def domain_name(self) -> str:
        """Unique on the machine: the memory beside ``package-1`` is ``dram-1``."""
        if self.package is None or self.package == self.name:
            return self.name
        return f"{self.name}-{self.package.removeprefix('package-')}"

    @property
    def device(self) -> str:
        match = _PACKAGE.match(self.package or "")
        return f"CPU:{match['socket']}" if match else "CPU"

    @property
    def wraps_at_j(self) -> float | None:
        text = text_of(self.path / "max_energy_range_uj") or ""
        return int(text) * 1e-6 if text.isdigit() and int(text) > 0 else None


class RaplMeter:
    """The powercap zones under ``root``, by their ``name`` files; a zone that appears twice counts once."""

    name = "rapl"

    def __init__(
        self, root: Path = Path("/sys"), proc: Path = Path("/proc"), place: Place | None = None
    ) -> None:
        self.root = root
        self._place = place or Place()
        self._cpu_facts = CpuFacts(proc, root)

    def probe(self) -> Probe:
        """Available, or none on this machine, or hidden, or forbidden."""
        return probe_by_opening(self.open, "RAPL counters of {names}.")

    def open(self) -> Sequence[FileChannel]:
        """Every zone that can be read; ``MeterError`` where none can."""
        zones = _zones(self.root)
        if not zones:
            raise _nothing_found(self.root, self._place)
        readable, refusal = [], None
        has_psys = any(zone.name == "psys" for zone in zones)
        for zone in zones:
            channel = _channel(zone, has_psys)
            try:
                channel.read()
                readable.append(channel)
            except MeterError as error:
                refusal = error
        if not readable:
            raise MeterError(*_explained(refusal)) from refusal
        return readable

    def facts(self) -> Mapping[str, float]:
        """Load, clock and temperature of the CPUs."""
        return self._cpu_facts.facts()


def _zones(root: Path) -> list[_Zone]:
    """Zones with a name, each once: what ``intel-rapl`` has is not taken from ``intel-rapl-mmio`` again."""
    found: dict[str, _Zone] = {}
    folder = root / "class" / "powercap"
    for control in ("intel-rapl", "intel-rapl-mmio"):
        for path in sorted(folder.glob(f"{control}:*")):
            zone = _zone(path)
            if zone is not None and not _unwired(zone):
                found.setdefault(zone.domain_name, zone)
    return list(found.values())


def _unwired(zone: _Zone) -> bool:
    """Boards without the platform's sensor offer ``psys`` all the same: it stays at zero, and would hide the
    packages that it contains."""
    return zone.name == "psys" and text_of(zone.path / "energy_uj") == "0"


def _zone(path: Path) -> _Zone | None:
    match, name = _ZONE.match(path.name), text_of(path / "name")
    if match is None or not name:
        return None
    if match["part"] is None:
        return _Zone(path, name, name if _PACKAGE.match(name) else None)
    return _Zone(path, name, text_of(path.parent / f"{match['control']}:{match['zone']}" / "name"))


def _channel(zone: _Zone, has_psys: bool) -> FileChannel:
    name = zone.domain_name
    domain = Domain(name, zone.device, _parent(zone, has_psys), "RAPL powercap", "measured", UPDATE_PERIOD_S)
    file = NumberFile(zone.path / "energy_uj", FORBIDDEN)
    return FileChannel(domain, "energy_j", Every(POLL_PERIOD_S), file, wraps_at_j=zone.wraps_at_j)


def _parent(zone: _Zone, has_psys: bool) -> str | None:
    """The zone whose energy includes this one's. Memory lies under its package in the tree but outside it
    in silicon; the whole platform, where it is metered, includes both."""
    if zone.name == "psys":
        return None
    if zone.package is None or zone.name in (zone.package, "dram"):
        return "psys" if has_psys else None
    return zone.package


def _nothing_found(root: Path, place: Place) -> MeterError:
    folder = root / "class" / "powercap"
    if not root.is_dir() or not any(root.iterdir()):
        return MeterError(f"{root} is not mounted, so no RAPL counter can be seen.", NOT_MOUNTED)
    if any(folder.glob("intel-rapl*:*")):
        return MeterError(f"The RAPL zones in {folder} are hidden, as containers do.", HIDDEN)
    why, remedy = no_rapl(place, "intel_rapl_msr")
    return MeterError(f"No RAPL counters in {folder}: {why}.", remedy)


def _explained(refusal: MeterError | None) -> tuple[str, str]:
    cause = refusal.__cause__ if refusal else None
    if isinstance(cause, PermissionError):
        return "The RAPL counters exist, but reading them is not permitted.", FORBIDDEN
    return (refusal.message if refusal else "No RAPL counter can be read."), UNREADABLE
