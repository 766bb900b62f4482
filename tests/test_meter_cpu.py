"""Load, clock and temperature of CPUs, and where they run: on trees of files as systems lay them out."""

from __future__ import annotations

from pathlib import Path

import pytest

from joulemap.meters.cpu import MOST_CLOCKS, CpuFacts
from joulemap.meters.perf import PerfMeter
from joulemap.meters.place import Place
from joulemap.meters.rapl import RaplMeter
from tests.sysfs import hwmon, write


def facts(sys: Path) -> dict[str, float]:
    return CpuFacts(sys / "none", sys).facts()


def test_intel_says_which_socket_is_how_hot(tmp_path: Path) -> None:
    for socket, celsius in ((0, 48), (1, 61)):
        files = {"temp1_label": f"Package id {socket}", "temp1_input": 1000 * celsius}
        hwmon(tmp_path, socket, "coretemp", temp2_label="Core 0", temp2_input=99_000, **files)
    assert facts(tmp_path) == {"CPU:0 temperature_c": 48.0, "CPU:1 temperature_c": 61.0}


def test_amd_counts_the_die_not_the_fan_curve(tmp_path: Path) -> None:
    labels = {"temp1_label": "Tctl", "temp2_label": "Tdie", "temp3_label": "Tccd1"}
    hwmon(tmp_path, 0, "k10temp", temp1_input=75_000, temp2_input=48_500, temp3_input=47_000, **labels)
    hwmon(tmp_path, 1, "nvme", temp1_label="Composite", temp1_input=90_000)
    assert facts(tmp_path) == {"CPU temperature_c": 48.5}
    hwmon(tmp_path, 2, "k10temp", temp1_label="Tctl", temp1_input=52_000)
    assert facts(tmp_path) == {"CPU temperature_c": 52.0}


def test_other_machines_have_thermal_zones(tmp_path: Path) -> None:
    write(tmp_path / "class/thermal/thermal_zone0", type="acpitz", temp=90_000)
    write(tmp_path / "class/thermal/thermal_zone1", type="cpu-thermal", temp=44_000)
    write(tmp_path / "class/thermal/thermal_zone2", type="x86_pkg_temp", temp="nothing")
    assert facts(tmp_path) == {"CPU temperature_c": 44.0}


def test_a_thermometer_that_goes_away_is_absent_and_comes_back(tmp_path: Path) -> None:
    zone = write(tmp_path / "class/thermal/thermal_zone0", type="x86_pkg_temp", temp=44_000)
    look = CpuFacts(tmp_path / "none", tmp_path)
    assert look.facts() == {"CPU temperature_c": 44.0}
    (zone / "temp").unlink()
    assert look.facts() == {}
    write(zone, temp=-5_000)
    assert look.facts() == {"CPU temperature_c": -5.0}


def test_the_clock_is_a_mean_over_some_cpus(tmp_path: Path) -> None:
    for cpu in range(100):
        write(tmp_path / f"devices/system/cpu/cpu{cpu}/cpufreq", scaling_cur_freq=2_000_000)
    look = CpuFacts(tmp_path / "none", tmp_path)
    assert look.facts() == {"CPU clock_mhz": 2000.0}
    assert look._clocks is not None
    assert 0 < len(look._clocks) <= MOST_CLOCKS


def place(root: Path, machine: str = "x86_64", **files: str) -> Place:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Place(root, machine)


VIRTUAL = {"proc__cpuinfo": "model name\t: Xeon\nflags\t\t: fpu sse hypervisor avx\n"}
METAL = {"proc__cpuinfo": "model name\t: hypervisor\nflags\t\t: fpu sse avx\n"}


@pytest.mark.parametrize(
    ("machine", "files", "reason", "remedy"),
    [
        ("x86_64", METAL, "the kernel offers none", "modprobe"),
        ("x86_64", VIRTUAL, "virtual machine", "bare-metal"),
        ("x86_64", {**METAL, "run__.containerenv": ""}, "a container", "joulemap monitor` on the host"),
        ("x86_64", {**VIRTUAL, ".dockerenv": ""}, "virtual machine", "estimated"),
        ("aarch64", METAL, "this processor (aarch64) has none", "hwmon"),
    ],
)
def test_why_there_is_no_rapl_depends_on_the_place(
    tmp_path: Path, machine: str, files: dict[str, str], reason: str, remedy: str
) -> None:
    write(tmp_path / "sys" / "class" / "powercap")
    here = place(tmp_path, machine, **files)
    for meter in (RaplMeter(tmp_path / "sys", place=here), PerfMeter(tmp_path / "sys", place=here)):
        probe = meter.probe()
        assert not probe.available
        assert reason in probe.reason
        assert remedy in probe.remedy
        assert "chmod" not in probe.reason + probe.remedy
