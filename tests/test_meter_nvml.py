"""The NVML meter against a stand-in for ``pynvml`` with its names, units and errors, and against itself."""

from __future__ import annotations

import importlib
import inspect
import sys
import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from joulemap.errors import MeterError
from joulemap.meters import Meter
from joulemap.meters.nvml import NvmlMeter
from joulemap.meters.schedule import Every, Updates


class NVMLError(Exception):
    """As in pynvml: the code is in ``value``."""

    def __init__(self, value: int) -> None:
        super().__init__(f"NVML code {value}")
        self.value = value


@dataclass
class Card:
    energy_mj: int | None = 5_000_000
    instant_mw: int | None = 120_500
    usage_mw: int = 119_000
    mig: int | None = 0
    architecture: int = 9
    pids: tuple[int, ...] = ()
    lost: bool = False


@dataclass
class FakeNvml:
    """A driver with some cards."""

    cards: list[Card] = field(default_factory=lambda: [Card()])
    init_code: int = 0
    started: int = 0

    NVMLError = NVMLError
    NVML_ERROR_NOT_SUPPORTED = 3
    NVML_ERROR_NO_PERMISSION = 4
    NVML_ERROR_DRIVER_NOT_LOADED = 9
    NVML_ERROR_LIBRARY_NOT_FOUND = 12
    NVML_ERROR_FUNCTION_NOT_FOUND = 13
    NVML_ERROR_GPU_IS_LOST = 15
    NVML_DEVICE_MIG_ENABLE = 1
    NVML_DEVICE_ARCH_AMPERE = 7
    NVML_FI_DEV_POWER_INSTANT = 186
    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2
    NVML_TEMPERATURE_GPU = 0

    def nvmlInit(self) -> None:  # noqa: N802
        if self.init_code:
            raise NVMLError(self.init_code)
        self.started += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.started -= 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Card:  # noqa: N802
        return self._alive(self.cards[index])

    def nvmlDeviceGetMigMode(self, device: Card) -> list[int]:  # noqa: N802
        return [self._known(device, device.mig), 0]

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: Card) -> int:  # noqa: N802
        return self._known(handle, handle.energy_mj)

    def nvmlDeviceGetPowerUsage(self, handle: Card) -> int:  # noqa: N802
        return self._alive(handle).usage_mw

    def nvmlDeviceGetFieldValues(self, handle: Card, fieldIds: list[int]) -> list[Any]:  # noqa: N802, N803
        assert fieldIds == [self.NVML_FI_DEV_POWER_INSTANT]
        value = self._alive(handle).instant_mw
        return [SimpleNamespace(nvmlReturn=3 * (value is None), value=SimpleNamespace(uiVal=value or 0))]

    def nvmlDeviceGetArchitecture(self, device: Card) -> int:  # noqa: N802
        return self._alive(device).architecture

    def nvmlDeviceGetClockInfo(self, handle: Card, type: int) -> int:  # noqa: A002, N802
        return {self.NVML_CLOCK_SM: 1980, self.NVML_CLOCK_MEM: 3201}[type]

    def nvmlDeviceGetTemperature(self, handle: Card, sensor: int) -> int:  # noqa: N802
        return 41

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: Card) -> int:  # noqa: N802
        return 700_000

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: Card) -> int:  # noqa: N802
        raise NVMLError(self.NVML_ERROR_NOT_SUPPORTED)

    def nvmlDeviceGetUtilizationRates(self, handle: Card) -> Any:  # noqa: N802
        return SimpleNamespace(gpu=97, memory=20)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Card) -> list[Any]:  # noqa: N802
        return [SimpleNamespace(pid=pid) for pid in handle.pids]

    def _alive(self, card: Card) -> Card:
        if card.lost:
            raise NVMLError(self.NVML_ERROR_GPU_IS_LOST)
        return card

    def _known(self, card: Card, value: int | None) -> int:
        self._alive(card)
        if value is None:
            raise NVMLError(self.NVML_ERROR_NOT_SUPPORTED)
        return value


def test_the_stand_in_has_the_names_and_arguments_of_the_real_library() -> None:
    real = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    for name in dir(FakeNvml):
        if name.startswith("NVML_"):
            assert getattr(real, name) == getattr(FakeNvml, name), name
        elif name.startswith("nvml"):
            ours = list(inspect.signature(getattr(FakeNvml(), name)).parameters)
            assert len(inspect.signature(getattr(real, name)).parameters) == len(ours), name
    assert real.NVMLError(real.NVML_ERROR_GPU_IS_LOST).value == real.NVML_ERROR_GPU_IS_LOST


def test_the_counter_is_the_meter_in_joules() -> None:
    meter: Meter = NvmlMeter(FakeNvml([Card(energy_mj=1_500), Card(energy_mj=2_500)]))
    first, second = meter.open()
    assert (first.read(), second.read()) == (1.5, 2.5)
    assert first.quantity == "energy_j"
    assert isinstance(first.schedule, Updates)
    assert first.schedule is not second.schedule
    assert second.domain.name == second.domain.device == "GPU:1"
    assert second.domain.sensor == "NVML total energy"
    assert second.domain.update_period_s == 0.1
    assert first.wraps_at_j is None


@pytest.mark.parametrize(
    ("card", "sensor", "power_w", "period_s"),
    [
        (Card(energy_mj=None), "instant power, about 25 ms of each 100 ms", 120.5, 0.1),
        (Card(energy_mj=None, instant_mw=None), "moving average over 1 s", 119, 0.1),
        (Card(energy_mj=None, instant_mw=None, architecture=4, mig=None), "NVML power", 119, 0.02),
    ],
)
def test_a_card_without_the_counter_says_what_its_power_is(
    card: Card, sensor: str, power_w: float, period_s: float
) -> None:
    (channel,) = NvmlMeter(FakeNvml([card])).open()
    assert channel.quantity == "power_w"
    assert sensor in channel.domain.sensor
    assert channel.domain.update_period_s == period_s
    assert channel.read() == pytest.approx(power_w)
    assert isinstance(channel.schedule, Every)
    assert channel.schedule.period_s < period_s


def test_a_gpu_split_by_mig_is_refused_and_the_others_work() -> None:
    meter = NvmlMeter(FakeNvml([Card(mig=1), Card()]))
    assert [channel.domain.name for channel in meter.open()] == ["GPU:1"]
    probe = meter.probe()
    assert probe.available
    assert "GPU:0 is split by MIG" in probe.reason
    assert "nvidia-smi -mig 0" in probe.remedy


def test_with_nothing_but_mig_there_is_no_meter() -> None:
    library = FakeNvml([Card(mig=1)])
    with pytest.raises(MeterError, match="MIG"):
        NvmlMeter(library).open()
    assert not NvmlMeter(library).probe().available
    assert library.started == 0


def test_a_gpu_that_disappears_does_not_stop_the_others() -> None:
    library = FakeNvml([Card(), Card()])
    meter = NvmlMeter(library)
    first, second = meter.open()
    library.cards[0].lost = True
    with pytest.raises(MeterError, match="GPU:0 fell off the bus"):
        first.read()
    assert second.read() == 5_000
    assert "GPU:1 instant_power_w" in meter.facts()
    assert "GPU:0 instant_power_w" not in meter.facts()
    library.cards[0].lost = False
    assert first.read() == 5_000


def test_a_gpu_lost_before_the_start_is_left_out() -> None:
    meter = NvmlMeter(FakeNvml([Card(lost=True), Card()]))
    assert [channel.domain.name for channel in meter.open()] == ["GPU:1"]
    assert "fell off" in meter.left_out[0].message


def test_facts_name_their_units_and_leave_out_what_is_unknown() -> None:
    meter = NvmlMeter(FakeNvml([Card(pids=(10, 11, 12))]), own_pids=lambda: {11})
    assert meter.facts() == {}
    meter.open()
    assert meter.facts() == pytest.approx(
        {
            "GPU:0 sm_clock_mhz": 1980,
            "GPU:0 memory_clock_mhz": 3201,
            "GPU:0 temperature_c": 41,
            "GPU:0 power_limit_w": 700,
            "GPU:0 utilisation_percent": 97,
            "GPU:0 instant_power_w": 120.5,
            "GPU:0 other_processes_count": 2,
        }
    )


def test_the_library_is_shut_down_with_the_last_channel() -> None:
    library = FakeNvml([Card(), Card()])
    meter = NvmlMeter(library)
    first, second = meter.open()
    assert meter.probe().available
    first.close()
    first.close()
    assert library.started == 1
    second.close()
    assert library.started == 0
    assert meter.facts() == {}


@pytest.mark.parametrize(
    ("library", "reason", "remedy"),
    [
        (FakeNvml(init_code=12), "no NVIDIA driver", "--gpus all"),
        (FakeNvml(init_code=9), "no NVIDIA driver", "install its driver"),
        (FakeNvml(init_code=4), "may not be used", "joulemap monitor"),
        (FakeNvml([]), "no NVIDIA GPU", "install its driver"),
    ],
)
def test_probe_says_why_not(library: FakeNvml, reason: str, remedy: str) -> None:
    probe = NvmlMeter(library).probe()
    assert not probe.available
    assert reason in probe.reason
    assert remedy in probe.remedy
    assert library.started == 0


def test_probe_on_this_machine_answers() -> None:
    probe = NvmlMeter().probe()
    assert probe.available or probe.remedy
    if importlib.util.find_spec("pynvml") is None:
        assert "pip install" in probe.remedy


@pytest.mark.gpu
def test_a_real_gpu_counts_energy() -> None:
    (channel, *_) = NvmlMeter().open()
    before = channel.read()
    time.sleep(0.5)
    assert 1 < channel.read() - before < 1_000
    assert "pynvml" in sys.modules
