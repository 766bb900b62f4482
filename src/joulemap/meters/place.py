"""Where this program runs, for meters that find nothing: what helps differs."""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass
from pathlib import Path

from joulemap.meters.sysfs import text_of

ON_HOST = (
    "let root run `joulemap monitor` on the host and mount its socket (/run/joulemap) into the container"
)


@dataclass(frozen=True, slots=True)
class Place:
    """The machine's root folder, and what kind of processor it has."""

    root: Path = Path("/")
    machine: str = platform.machine()

    @property
    def is_virtual(self) -> bool:
        """Whether a hypervisor says so: x86 has a flag for it, others a folder."""
        cpuinfo = text_of(self.root / "proc" / "cpuinfo") or ""
        flagged = re.search(r"^flags\s*:.*\bhypervisor\b", cpuinfo, re.MULTILINE) is not None
        return flagged or (self.root / "sys" / "hypervisor" / "type").exists()

    @property
    def is_container(self) -> bool:
        """Docker and Podman leave a file, others name themselves to the first process."""
        marks = (".dockerenv", "run/.containerenv", "run/systemd/container")
        return any((self.root / mark).exists() for mark in marks) or self._in_kubernetes()

    @property
    def has_rapl(self) -> bool:
        """Whether processors of this kind have RAPL at all: those of Intel and AMD."""
        return self.machine in ("x86_64", "i686", "AMD64")

    def _in_kubernetes(self) -> bool:
        return (self.root / "var/run/secrets/kubernetes.io").exists()


def no_rapl(place: Place, module: str) -> tuple[str, str]:
    """Why there is no RAPL here, as the end of a sentence, and what to do; ``module`` is the kernel's."""
    if not place.has_rapl:
        return (
            f"this processor ({place.machine}) has none",
            "RAPL is in processors of Intel and AMD. Others may have hwmon sensors; else it is estimated.",
        )
    if place.is_virtual:
        return (
            "this is a virtual machine, and the hypervisor shows it none",
            "Measure on a machine of your own or a bare-metal instance; until then, CPU energy is estimated.",
        )
    if place.is_container:
        return (
            "this is a container, and the host has none or does not show it",
            f"If joulemap doctor finds RAPL on the host, {ON_HOST}.",
        )
    return "the kernel offers none", f"Load the kernel module: modprobe {module}."
