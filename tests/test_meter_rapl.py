from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from joulemap.devices import roots
from joulemap.errors import MeterError
from joulemap.meters import Channel, Meter
from joulemap.meters.rapl import RaplMeter
from tests.sysfs import PACKAGE_RANGE_UJ, hwmon, rapl_zone, write


@pytest.fixture
def server(tmp_path: Path) -> Path:
    """Two sockets; memory is sub-zone 0 on the first and 1 on the second."""
    rapl_zone(tmp_path, "intel-rapl:0", "package-0", 5_000_000)
    rapl_zone(tmp_path, "intel-rapl:0:0", "dram", 700_000)
    rapl_zone(tmp_path, "intel-rapl:1", "package-1", 6_000_000)
    rapl_zone(tmp_path, "intel-rapl:1:0", "core", 100)
    rapl_zone(tmp_path, "intel-rapl:1:1", "dram", 800_000)
    write(tmp_path / "class" / "powercap" / "intel-rapl", enabled=1)
    return tmp_path


def by_name(root: Path) -> dict[str, Channel]:
    return {channel.domain.name: channel for channel in RaplMeter(root).open()}


def root_names(root: Path) -> set[str]:
    return {domain.name for domain in roots([channel.domain for channel in RaplMeter(root).open()])}


def test_it_is_a_meter(server: Path) -> None:
    meter: Meter = RaplMeter(server, proc=server / "none")
    assert meter.name == "rapl"
    assert meter.facts() == {}
    assert meter.probe().available
    assert "dram-1" in meter.probe().reason


def test_zones_are_known_by_their_names_in_joules(server: Path) -> None:
    channels = by_name(server)
    readings = {name: channel.read() for name, channel in channels.items()}
    assert readings == pytest.approx(
        {"package-0": 5, "dram-0": 0.7, "package-1": 6, "core-1": 1e-4, "dram-1": 0.8}
    )
    assert channels["dram-1"].domain.device == channels["package-1"].domain.device == "CPU:1"
    assert channels["package-0"].wraps_at_j == pytest.approx(PACKAGE_RANGE_UJ / 1e6)
    assert channels["package-0"].quantity == "energy_j"


def test_memory_adds_to_its_package_and_cores_do_not(server: Path) -> None:
    assert root_names(server) == {"package-0", "dram-0", "package-1", "dram-1"}


def test_the_platform_contains_everything_else(tmp_path: Path) -> None:
    for zone, name in (
        ("0", "package-0"),
        ("0:0", "core"),
        ("0:1", "uncore"),
        ("0:2", "dram"),
        ("1", "psys"),
    ):
        rapl_zone(tmp_path, f"intel-rapl:{zone}", name)
    assert root_names(tmp_path) == {"psys"}
    assert by_name(tmp_path)["uncore-0"].domain.parent == "package-0"
    assert by_name(tmp_path)["psys"].domain.device == "CPU"


def test_a_zone_under_both_interfaces_counts_once(tmp_path: Path) -> None:
    rapl_zone(tmp_path, "intel-rapl-mmio:0", "package-0", 9)
    rapl_zone(tmp_path, "intel-rapl-mmio:0:0", "dram", 3_000_000)
    rapl_zone(tmp_path, "intel-rapl:0", "package-0", 2_000_000)
    readings = {name: channel.read() for name, channel in by_name(tmp_path).items()}
    assert readings == pytest.approx({"package-0": 2, "dram-0": 3})


def test_an_amd_package_has_cores_and_no_memory(tmp_path: Path) -> None:
    rapl_zone(tmp_path, "intel-rapl:0", "package-0", range_uj=65_532_610_987)
    rapl_zone(tmp_path, "intel-rapl:0:0", "core")
    assert root_names(tmp_path) == {"package-0"}


def test_dies_of_one_package_feed_one_device(tmp_path: Path) -> None:
    rapl_zone(tmp_path, "intel-rapl:0", "package-0-die-0")
    rapl_zone(tmp_path, "intel-rapl:1", "package-0-die-1")
    rapl_zone(tmp_path, "intel-rapl:1:0", "dram")
    assert {channel.domain.device for channel in RaplMeter(tmp_path).open()} == {"CPU:0"}
    assert root_names(tmp_path) == {"package-0-die-0", "package-0-die-1", "dram-0-die-1"}


def test_a_range_that_is_missing_does_not_wrap(tmp_path: Path) -> None:
    rapl_zone(tmp_path, "intel-rapl:0", "package-0").with_name("max_energy_range_uj").unlink()
    assert by_name(tmp_path)["package-0"].wraps_at_j is None


def test_a_machine_without_rapl_says_so(tmp_path: Path) -> None:
    absent = RaplMeter(tmp_path / "absent").probe()
    assert "not mounted" in absent.reason
    assert "-v /sys:/sys:ro" in absent.remedy
    write(tmp_path / "class" / "powercap")
    probe = RaplMeter(tmp_path).probe()
    assert not probe.available
    assert "No RAPL counters" in probe.reason
    assert probe.remedy
    with pytest.raises(MeterError, match="No RAPL"):
        RaplMeter(tmp_path).open()


def test_zones_hidden_by_a_container_are_told_apart(tmp_path: Path) -> None:
    folder = write(tmp_path / "class" / "powercap")
    (folder / "intel-rapl:0").symlink_to("../../devices/virtual/powercap/intel-rapl/intel-rapl:0")
    probe = RaplMeter(tmp_path).probe()
    assert "hidden" in probe.reason
    assert "joulemap monitor` on the host" in probe.remedy


def test_counters_come_with_what_explains_them(server: Path, tmp_path: Path) -> None:
    hwmon(server, 0, "coretemp", temp1_label="Package id 0", temp1_input=48_000)
    meter = RaplMeter(server, proc=tmp_path / "none")
    assert meter.facts() == {"CPU:0 temperature_c": 48.0}


PROBE_AS_NOBODY = """
import os
from pathlib import Path
import joulemap.meters.rapl as rapl
if os.getuid() == 0:
    os.setgid(65534); os.setuid(65534)
probe = rapl.RaplMeter(Path(".")).probe()
print(probe.available, probe.reason, probe.remedy)
"""


def test_a_forbidden_counter_names_the_ways_in(server: Path) -> None:
    for counter in server.rglob("energy_uj"):
        counter.chmod(0)
    server.chmod(0o755)
    command = [sys.executable, "-c", PROBE_AS_NOBODY]
    done = subprocess.run(command, cwd=server, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("False")
    assert "not permitted" in done.stdout
    for way in ("root", "CAP_PERFMON", "joulemap monitor"):
        assert way in done.stdout
    assert "chmod" not in done.stdout


def test_a_zone_that_cannot_be_read_leaves_the_others(server: Path) -> None:
    (server / "class" / "powercap" / "intel-rapl:0:0" / "energy_uj").write_text("")
    assert set(by_name(server)) == {"package-0", "package-1", "core-1", "dram-1"}


def test_a_counter_that_vanishes_can_come_back(server: Path) -> None:
    channel = by_name(server)["package-0"]
    counter = server / "class" / "powercap" / "intel-rapl:0" / "energy_uj"
    counter.unlink()
    for _ in range(2):
        with pytest.raises(MeterError, match="cannot be read"):
            channel.read()
    rapl_zone(server, "intel-rapl:0", "package-0", 8_000_000)
    assert channel.read() == pytest.approx(8)


def test_garbage_in_a_counter_is_an_error_that_passes(server: Path) -> None:
    channel = by_name(server)["package-1"]
    counter = server / "class" / "powercap" / "intel-rapl:1" / "energy_uj"
    counter.write_text("nonsense\n")
    with pytest.raises(MeterError, match="does not hold a number"):
        channel.read()
    counter.write_text("4000000\n")
    assert channel.read() == pytest.approx(4)


def test_closing_leaves_no_descriptor(server: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    channels = RaplMeter(server).open()
    for channel in channels:
        channel.read()
    assert len(os.listdir("/proc/self/fd")) > before  # noqa: PTH208
    for channel in channels:
        channel.close()
    assert RaplMeter(server).probe().available
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_a_platform_sensor_that_is_not_wired_does_not_hide_the_packages(tmp_path):
    rapl_zone(tmp_path, "intel-rapl:0", "package-0", energy_uj=5_000_000)
    rapl_zone(tmp_path, "intel-rapl:1", "psys", energy_uj=0)
    channels = RaplMeter(tmp_path).open()
    assert [(channel.domain.name, channel.domain.parent) for channel in channels] == [("package-0", None)]
