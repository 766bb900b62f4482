"""Temporary trees that look like ``/sys``, to test meters on a machine that has none."""

from __future__ import annotations

from pathlib import Path

PACKAGE_RANGE_UJ = 262_143_328_850


def write(folder: Path, **files: object) -> Path:
    """Files with these contents, as the kernel writes them: with a newline."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(f"{content}\n")
    return folder


def rapl_zone(
    root: Path, zone: str, name: str, energy_uj: int = 1_000_000, range_uj: int = PACKAGE_RANGE_UJ
) -> Path:
    """One powercap zone, such as ``intel-rapl:0:1`` named ``dram``; returns its counter's file."""
    folder = root / "class" / "powercap" / zone
    write(folder, name=name, energy_uj=energy_uj, max_energy_range_uj=range_uj)
    return folder / "energy_uj"


def perf_power(root: Path, cpus: str = "0", scale: str = "2.3283064365386962890625e-10") -> Path:
    """The ``power`` unit of perf events with a package and its memory, as on a server."""
    folder = root / "bus" / "event_source" / "devices" / "power"
    write(folder, type=23, cpumask=cpus)
    write(folder / "format", event="config:0-7")
    for name, code in (("energy-pkg", "0x02"), ("energy-ram", "0x03")):
        files = {name: f"event={code}", f"{name}.scale": scale, f"{name}.unit": "Joules"}
        write(folder / "events", **files)
    return folder


def cpu_package(root: Path, cpu: int, package: int) -> None:
    """Which socket a CPU sits on."""
    write(root / "devices" / "system" / "cpu" / f"cpu{cpu}" / "topology", physical_package_id=package)


def hwmon(root: Path, index: int, driver: str, **files: object) -> Path:
    """One hwmon chip with its sensors."""
    return write(root / "class" / "hwmon" / f"hwmon{index}", name=driver, **files)
