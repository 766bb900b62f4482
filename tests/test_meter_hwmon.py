from __future__ import annotations

from pathlib import Path

import pytest

from joulemap.devices import roots
from joulemap.errors import MeterError
from joulemap.meters import Channel, Meter
from joulemap.meters.hwmon import HwmonMeter
from tests.sysfs import hwmon, write


def by_name(meter: HwmonMeter) -> dict[str, Channel]:
    return {channel.domain.name: channel for channel in meter.open()}


def grace(root: Path, index: int, label: str, power_uw: int) -> None:
    """An ACPI power meter as the kernel shows it on Grace: one a chip, its files one folder down."""
    chip = hwmon(root, index, "power_meter")
    files = {"power1_average": power_uw, "power1_oem_info": label, "power1_average_interval": 50}
    write(chip / "device", **files)


@pytest.fixture
def grace_hopper(tmp_path: Path) -> Path:
    for socket in (0, 1):
        for number, part in enumerate(("Module", "Grace", "CPU", "SysIO")):
            label = f"{part} Power Socket {socket}"
            grace(tmp_path, 4 * socket + number, label, (socket + 1) * (4 - number) * 10_000_000)
    return tmp_path


def test_the_grace_socket_is_the_root_and_the_module_with_its_gpu_is_left_out(grace_hopper: Path) -> None:
    channels = by_name(HwmonMeter(grace_hopper))
    assert "module-power-socket-0" not in channels
    domains = [channel.domain for channel in channels.values()]
    assert {domain.name for domain in roots(domains)} == {"grace-power-socket-0", "grace-power-socket-1"}
    second = channels["grace-power-socket-1"]
    assert second.domain.device == "CPU:1"
    assert second.domain.sensor == "hwmon average power"
    assert second.domain.update_period_s == pytest.approx(0.05)
    assert second.quantity == "power_w"
    assert second.read() == pytest.approx(60)


def test_a_module_alone_is_taken(tmp_path: Path) -> None:
    grace(tmp_path, 0, "Module Power Socket 0", 90_000_000)
    assert by_name(HwmonMeter(tmp_path))["module-power-socket-0"].read() == pytest.approx(90)


def test_energy_is_preferred_to_power_of_the_same_label(tmp_path: Path) -> None:
    labels = {"energy1_label": "CPU power", "power1_label": "CPU power"}
    hwmon(tmp_path, 0, "apm_xgene", energy1_input=7_000_000, power1_input=5_000_000, **labels)
    (channel,) = HwmonMeter(tmp_path).open()
    assert channel.quantity == "energy_j"
    assert channel.read() == pytest.approx(7)
    assert channel.wraps_at_j is None


def test_what_rapl_and_gpu_meters_have_is_left_to_them(tmp_path: Path) -> None:
    hwmon(tmp_path, 0, "amd_energy", energy1_input=1, energy1_label="Esocket0")
    hwmon(tmp_path, 1, "amdgpu", power1_average=1, power1_label="CPU")
    probe = HwmonMeter(tmp_path).probe()
    assert not probe.available
    assert "acpi_power_meter" in probe.remedy


def test_boards_are_opened_only_when_asked_for(tmp_path: Path) -> None:
    hwmon(tmp_path, 0, "corsairpsu", power1_input=250_000_000, power1_label="power total")
    hwmon(tmp_path, 1, "power_meter", power1_average=300_000_000)
    with pytest.raises(MeterError, match="No power or energy sensors"):
        HwmonMeter(tmp_path).open()
    channels = by_name(HwmonMeter(tmp_path, boards=True))
    assert set(channels) == {"power-total", "power-meter-hwmon1-power1"}
    assert channels["power-total"].domain.device == "BOARD"
    assert channels["power-total"].domain.sensor == "hwmon power"


def test_a_sensor_that_fails_leaves_the_others_and_can_come_back(grace_hopper: Path) -> None:
    broken = grace_hopper / "class" / "hwmon" / "hwmon1" / "device" / "power1_average"
    channel = by_name(HwmonMeter(grace_hopper))["grace-power-socket-0"]
    broken.unlink()
    with pytest.raises(MeterError, match="cannot be read"):
        channel.read()
    assert "grace-power-socket-0" not in by_name(HwmonMeter(grace_hopper))
    write(broken.parent, power1_average=1_000_000)
    assert channel.read() == pytest.approx(1)


def test_sensors_without_a_number_are_no_meter(tmp_path: Path) -> None:
    hwmon(tmp_path, 0, "power_meter", power1_average="", power1_label="CPU")
    assert "none can be read" in HwmonMeter(tmp_path).probe().reason


def test_it_is_a_meter(grace_hopper: Path) -> None:
    meter: Meter = HwmonMeter(grace_hopper, proc=grace_hopper / "none")
    assert meter.probe().available
    assert meter.facts() == {}
    assert HwmonMeter(Path("/nowhere")).probe().available is False
