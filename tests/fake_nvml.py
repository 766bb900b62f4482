"""A stand-in for ``pynvml`` with its names, units and errors."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


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
    model: str = "NVIDIA H200"
    throttle: int | None = None


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
    NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18
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

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Card:  # noqa: N802
        return self._alive(self.cards[int(uuid[-1])])

    def nvmlDeviceGetUUID(self, handle: Card) -> str:  # noqa: N802
        return f"GPU-8932f93{[card is handle for card in self.cards].index(True)}"

    def nvmlDeviceGetName(self, handle: Card) -> str:  # noqa: N802
        return handle.model

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
        self._alive(handle)
        return {self.NVML_CLOCK_SM: 1980, self.NVML_CLOCK_MEM: 3201}[type]

    def nvmlDeviceGetTemperature(self, handle: Card, sensor: int) -> int:  # noqa: N802
        return 41

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: Card) -> int:  # noqa: N802
        return 700_000

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: Card) -> int:  # noqa: N802
        return self._known(handle, handle.throttle)

    def nvmlDeviceGetUtilizationRates(self, handle: Card) -> Any:  # noqa: N802
        return SimpleNamespace(gpu=97, memory=20)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Card) -> list[Any]:  # noqa: N802
        return [SimpleNamespace(pid=pid) for pid in self._alive(handle).pids]

    def _alive(self, card: Card) -> Card:
        if card.lost:
            raise NVMLError(self.NVML_ERROR_GPU_IS_LOST)
        return card

    def _known(self, card: Card, value: int | None) -> int:
        self._alive(card)
        if value is None:
            raise NVMLError(self.NVML_ERROR_NOT_SUPPORTED)
        return value
