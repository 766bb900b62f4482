"""RAPL through perf events: the same counters as powercap, for programs with CAP_PERFMON and without root.

The kernel's ``power`` unit counts package, memory, cores and platform in units given beside each event, and
extends the 32-bit registers to 64 bits, so nothing wraps. Energy covers a socket, so each event is opened
once a socket, for all processes, on the CPU that the unit's ``cpumask`` names.

The system call was run on software events; no machine with RAPL's own perf events was at hand.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import re
import struct
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from joulemap.devices import Domain
from joulemap.errors import MeterError
from joulemap.meters.cpu import CpuFacts
from joulemap.meters.meter import Probe, Quantity, Schedule
from joulemap.meters.place import Place, no_rapl
from joulemap.meters.schedule import Every
from joulemap.meters.sysfs import text_of
from joulemap.meters.trial import probe_by_opening

UPDATE_PERIOD_S = 0.001
SETTLE_S = 0.02
POLL_PERIOD_S = 0.004
DOMAINS = {
    "energy-psys": "psys",
    "energy-pkg": "package",
    "energy-ram": "dram",
    "energy-cores": "core",
    "energy-gpu": "uncore",
}
FORBIDDEN = (
    "Counting energy for all processes needs CAP_PERFMON: give it to the service that runs this program "
    "(systemd: AmbientCapabilities=CAP_PERFMON) or to the container (docker run --cap-add PERFMON), or let "
    "root run `joulemap monitor` and use that."
)
UNWIRED = "Boards and virtual machines without the sensor show its events all the same; nothing helps here."
UNREADABLE = "See the kernel's log (dmesg); reloading the module rapl may help."

_SYSCALLS = {"x86_64": 298, "aarch64": 241, "ppc64le": 319, "riscv64": 241}
_ATTRIBUTES = struct.Struct("=IIQQQQQIIQ")
"""``struct perf_event_attr`` in its first published size, which every kernel takes."""
_CLOSE_ON_EXEC = 8
_EVENT = re.compile(r"event=(?P<code>0x[0-9a-fA-F]+|\d+)$")
_SCALE = re.compile(r"\d+(\.\d+)?([eE][-+]?\d+)?$")
_CPUS = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*$")


def open_counter(event_type: int, config: int, cpu: int, pid: int = -1) -> int:
    """``perf_event_open`` for a counter: all processes on one CPU, unless ``pid`` names one (0: this one).

    Returns a descriptor from which the count can be read. ``OSError`` where the kernel refuses.
    """
    number = _SYSCALLS.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, f"perf events are not known on {platform.machine()}")
    attributes = _ATTRIBUTES.pack(event_type, _ATTRIBUTES.size, config, 0, 0, 0, 0, 0, 0, 0)
    call = ctypes.CDLL(None, use_errno=True).syscall
    arguments = (ctypes.c_int(pid), ctypes.c_int(cpu), ctypes.c_int(-1), ctypes.c_ulong(_CLOSE_ON_EXEC))
    descriptor = int(call(ctypes.c_long(number), ctypes.c_char_p(attributes), *arguments))
    if descriptor < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return descriptor


def read_counter(descriptor: int) -> int:
    """The count of a descriptor from ``open_counter``."""
    (count,) = struct.unpack("=Q", os.read(descriptor, 8))
    return int(count)


@dataclass(frozen=True, slots=True)
class PerfEvent:
    """One event of the ``power`` unit, as ``/sys`` describes it."""

    name: str
    config: int
    joules_per_count: float


@dataclass(slots=True)
class PerfChannel:
    """One event on one socket; a descriptor that fails is opened again at the next read."""

    domain: Domain
    event_type: int
    event: PerfEvent
    cpu: int
    schedule: Schedule
    quantity: Quantity = "energy_j"
    wraps_at_j: float | None = None
    _fd: int | None = None

    def read(self) -> float:
        """Joules since the channel was opened."""
        try:
            if self._fd is None:
                self._fd = open_counter(self.event_type, self.event.config, self.cpu)
            return read_counter(self._fd) * self.event.joules_per_count
        except (OSError, struct.error) as error:
            self.close()
            why = error.strerror if isinstance(error, OSError) else "the counter is gone"
            raise MeterError(f"The perf event {self.event.name} cannot be read: {why}.", FORBIDDEN) from error

    def close(self) -> None:
        """Let go of the descriptor."""
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = None


class PerfMeter:
    """The events of ``power`` under ``root``, named as RAPL's zones are: ``package-0``, ``dram-0``."""

    name = "perf"

    def __init__(
        self, root: Path = Path("/sys"), proc: Path = Path("/proc"), place: Place | None = None
    ) -> None:
        self.root = root
        self.proc = proc
        self._place = place or Place()
        self._cpu_facts = CpuFacts(proc, root)

    def probe(self) -> Probe:
        """Available, or no such events, or not permitted."""
        return probe_by_opening(self.open, "perf events of {names}.")

    def open(self) -> Sequence[PerfChannel]:
        """Every event on every socket; ``MeterError`` where none can be counted."""
        folder = self.root / "bus" / "event_source" / "devices" / "power"
        unit, events = text_of(folder / "type") or "", list(_events(folder))
        if not unit.isdigit() or not events:
            why, remedy = no_rapl(self._place, "rapl")
            raise MeterError(f"No energy events in {folder}: {why}.", remedy)
        cpus = parse_cpus(text_of(folder / "cpumask") or "")
        readable = self._readable(_channels(self.root, int(unit), events, cpus))
        dead = _dead_events(readable)
        if not dead:
            return readable
        alive = [event for event in events if event.name not in dead]
        if not alive:
            raise MeterError("The energy events are there, but none of them ever counts.", UNWIRED)
        return self._readable(_channels(self.root, int(unit), alive, cpus))

    def _readable(self, channels: Iterable[PerfChannel]) -> list[PerfChannel]:
        tried = [(channel, _refusal(channel)) for channel in channels]
        readable = [channel for channel, refusal in tried if refusal is None]
        if not readable:
            raise self._explained(next(refusal for _, refusal in tried if refusal is not None))
        return readable

    def facts(self) -> Mapping[str, float]:
        """Load, clock and temperature of the CPUs."""
        return self._cpu_facts.facts()

    def _explained(self, refusal: MeterError) -> MeterError:
        cause = refusal.__cause__
        if not isinstance(cause, PermissionError):
            return MeterError(refusal.message, UNREADABLE)
        level = text_of(self.proc / "sys" / "kernel" / "perf_event_paranoid") or "unknown"
        return MeterError(
            f"The energy events exist, but counting them is not permitted (perf_event_paranoid is {level}).",
            FORBIDDEN,
        )


def _dead_events(channels: Sequence[PerfChannel]) -> set[str]:
    """Events that do not move while a wired sensor would have many times: virtual machines and boards
    without the sensor offer ``energy-psys`` all the same, and it would hide the packages it contains."""
    before = [channel.read() for channel in channels]
    time.sleep(SETTLE_S)
    moved = {
        channel.event.name
        for channel, joules in zip(channels, before, strict=True)
        if channel.read() > joules
    }
    dead = {channel.event.name for channel in channels} - moved
    if dead:
        for channel in channels:
            channel.close()
    return dead


def parse_cpus(text: str) -> list[int]:
    """The CPUs of a mask as the kernel prints it, ``0,18`` or ``0-3,8``; the first where it is unclear."""
    if not _CPUS.match(text):
        return [0]
    cpus: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        cpus.extend(range(int(first), int(last or first) + 1))
    return cpus


def _events(folder: Path) -> Iterator[PerfEvent]:
    """The energy events in joules; one in another unit is not understood and left out."""
    for name in DOMAINS:
        path = folder / "events" / name
        match, unit = _EVENT.match(text_of(path) or ""), text_of(path.with_name(f"{name}.unit"))
        scale = _SCALE.match(text_of(path.with_name(f"{name}.scale")) or "")
        if match and unit == "Joules" and scale:
            yield PerfEvent(name, int(match["code"], 0), float(scale[0]))


def _channels(
    root: Path, unit: int, events: Sequence[PerfEvent], cpus: Sequence[int]
) -> Iterator[PerfChannel]:
    has_psys = any(event.name == "energy-psys" for event in events)
    places = _places(root, cpus)
    for event in events:
        # The platform is one, whichever socket is asked.
        for cpu in cpus[:1] if event.name == "energy-psys" else cpus:
            domain = _domain(event, places[cpu], has_psys)
            yield PerfChannel(domain, unit, event, cpu, Every(POLL_PERIOD_S))


def _places(root: Path, cpus: Sequence[int]) -> dict[int, str]:
    """The socket of each CPU, and its die where a socket has several, as powercap names them: ``0-die-1``."""
    sockets = {cpu: _topology(root, cpu, "physical_package_id") for cpu in cpus}
    shared = {socket for socket in sockets.values() if list(sockets.values()).count(socket) > 1}
    return {
        cpu: f"{socket}-die-{_topology(root, cpu, 'die_id')}" if socket in shared else str(socket)
        for cpu, socket in sockets.items()
    }


def _topology(root: Path, cpu: int, what: str) -> int:
    text = text_of(root / "devices" / "system" / "cpu" / f"cpu{cpu}" / "topology" / what)
    return int(text) if text and text.isdigit() else 0


def _domain(event: PerfEvent, place: str, has_psys: bool) -> Domain:
    """The parent is the domain whose energy includes this one's: memory lies outside its package."""
    kind, sensor = DOMAINS[event.name], f"RAPL perf event {event.name}"
    if kind == "psys":
        return Domain("psys", "CPU", None, sensor, update_period_s=UPDATE_PERIOD_S)
    inside = f"package-{place}" if kind in ("core", "uncore") else "psys" if has_psys else None
    device = f"CPU:{place.partition('-')[0]}"
    return Domain(f"{kind}-{place}", device, inside, sensor, update_period_s=UPDATE_PERIOD_S)


def _refusal(channel: PerfChannel) -> MeterError | None:
    try:
        channel.read()
    except MeterError as error:
        return error
    return None
