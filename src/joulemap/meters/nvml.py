"""NVIDIA GPUs through NVML.

The meter is the total-energy counter: it updates every 100 ms, misses nothing and agrees with itself from
1 s bursts down to 5 ms bursts (measured on an H200). A call blocks for about 4 ms, so the calls are placed
by a schedule that learns the updates. Power readings are second best: instant power sees about 25 ms of each
100 ms, average power is a moving average over a second. They serve cards without the counter, and pictures.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from joulemap.devices import Domain
from joulemap.errors import MeterError
from joulemap.meters.gpu import GpuChannel, process_itself
from joulemap.meters.meter import Probe, Quantity, Schedule
from joulemap.meters.schedule import Every, Updates
from joulemap.meters.trial import probe_by_opening

NO_LIBRARY = "Install it with: pip install 'joulemap[nvidia]'"
NO_DRIVER = (
    "Where there is an NVIDIA GPU, install its driver; in a container, start it with the GPU "
    "(docker run --gpus all)."
)
NO_PERMISSION = "Ask for access to /dev/nvidia*, or let root run `joulemap monitor` and use that."
MIG = (
    "Its energy counter covers the whole board and cannot be split between MIG instances. "
    "Turn MIG off (nvidia-smi -mig 0), or measure on another GPU."
)


@dataclass(frozen=True, slots=True)
class _Gpu:
    """One GPU of an initialised library."""

    nvml: Any
    index: int
    handle: Any

    @property
    def name(self) -> str:
        return f"GPU:{self.index}"

    def ask(self, function: str, *arguments: Any) -> Any:
        """Call one of NVML's functions for this GPU; ``MeterError`` where it answers with an error."""
        try:
            return getattr(self.nvml, function)(self.handle, *arguments)
        except self.nvml.NVMLError as error:
            raise _meter_error(self.nvml, self.name, error) from error

    def has(self, function: str) -> bool:
        """Whether this card and driver know a reading at all; other errors are raised."""
        unknown = (self.nvml.NVML_ERROR_NOT_SUPPORTED, self.nvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        try:
            getattr(self.nvml, function)(self.handle)
        except self.nvml.NVMLError as error:
            if error.value in unknown:
                return False
            raise _meter_error(self.nvml, self.name, error) from error
        return True

    def is_mig(self) -> bool:
        """Whether the card is split into instances."""
        if not self.has("nvmlDeviceGetMigMode"):
            return False
        return bool(self.ask("nvmlDeviceGetMigMode")[0] == self.nvml.NVML_DEVICE_MIG_ENABLE)

    def energy_j(self) -> float:
        """The counter, in joules since the driver was loaded."""
        return float(self.ask("nvmlDeviceGetTotalEnergyConsumption")) * 1e-3

    def instant_power_w(self) -> float:
        """Power over about the last 25 ms before its update."""
        value = self.ask("nvmlDeviceGetFieldValues", [self.nvml.NVML_FI_DEV_POWER_INSTANT])[0]
        if value.nvmlReturn != 0:
            raise MeterError(f"{self.name} has no instant power (NVML code {value.nvmlReturn}).")
        return float(value.value.uiVal) * 1e-3

    def has_instant_power(self) -> bool:
        """Since driver 530, on some cards."""
        try:
            self.instant_power_w()
        except MeterError:
            return False
        return True

    def is_ampere_or_newer(self) -> bool:
        """Where the plain power reading is an average over a second."""
        if not self.has("nvmlDeviceGetArchitecture"):
            return False
        return bool(self.ask("nvmlDeviceGetArchitecture") >= self.nvml.NVML_DEVICE_ARCH_AMPERE)

    def others(self, own_pids: Collection[int]) -> int:
        """How many processes compute on this GPU that are not ours: their energy is in the reading too."""
        running = self.ask("nvmlDeviceGetComputeRunningProcesses")
        return sum(process.pid not in own_pids for process in running)

    def power_usage_w(self) -> float:
        """Power, averaged over a second on Ampere and newer."""
        return float(self.ask("nvmlDeviceGetPowerUsage")) * 1e-3


class NvmlMeter:
    """Every NVIDIA GPU that is not split by MIG, numbered as NVML does: in the order of the PCI bus.

    ``own_pids`` tells our processes from others that use a GPU at the same time. ``left_out`` says why a GPU
    was refused when the meter was opened.
    """

    name = "nvml"

    def __init__(self, library: Any = None, own_pids: Callable[[], Collection[int]] = process_itself) -> None:
        self.left_out: list[MeterError] = []
        self._library = library
        self._own_pids = own_pids
        self._gpus: dict[int, _Gpu] = {}

    def probe(self) -> Probe:
        """Available, or no library, no driver, no GPU, no permission, or MIG."""
        trial = NvmlMeter(self._library)
        return probe_by_opening(trial.open, "{sensors}.", lambda: trial.left_out)

    def open(self) -> Sequence[GpuChannel]:
        """A channel a GPU; ``MeterError`` where there is none to read."""
        nvml = self._library if self._library is not None else _import()
        _initialise(nvml)
        tried = [self._channel_or_error(nvml, index) for index in range(_count(nvml))]
        channels = [channel for channel in tried if isinstance(channel, GpuChannel)]
        self.left_out = [error for error in tried if isinstance(error, MeterError)]
        if not channels:
            nvml.nvmlShutdown()
            raise self.left_out[0] if self.left_out else MeterError("There is no NVIDIA GPU.", NO_DRIVER)
        return channels

    def facts(self) -> Mapping[str, float]:
        """Clocks, temperature, limit, load and other processes of the GPUs that are open."""
        ours = set(self._own_pids())
        return {f"{gpu.name} {name}": v for gpu in [*self._gpus.values()] for name, v in _facts(gpu, ours)}

    def _channel_or_error(self, nvml: Any, index: int) -> GpuChannel | MeterError:
        try:
            gpu = _gpu(nvml, index)
            domain, quantity, schedule, take = _sensor(gpu)
        except MeterError as error:
            return error
        self._gpus[index] = gpu
        return GpuChannel(domain, quantity, schedule, take, lambda: self._let_go(gpu))

    def _let_go(self, gpu: _Gpu) -> None:
        if self._gpus.pop(gpu.index, None) and not self._gpus:
            gpu.nvml.nvmlShutdown()


def _import() -> Any:
    try:
        return importlib.import_module("pynvml")
    except ImportError as error:
        raise MeterError("The Python package nvidia-ml-py is not installed.", NO_LIBRARY) from error


def _initialise(nvml: Any) -> None:
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        if error.value == nvml.NVML_ERROR_NO_PERMISSION:
            raise MeterError("NVML may not be used by this user.", NO_PERMISSION) from error
        raise MeterError(f"There is no NVIDIA driver to talk to ({error}).", NO_DRIVER) from error


def _count(nvml: Any) -> int:
    try:
        return int(nvml.nvmlDeviceGetCount())
    except nvml.NVMLError as error:
        nvml.nvmlShutdown()
        raise MeterError(f"The GPUs cannot be counted: {error}.", NO_DRIVER) from error


def _gpu(nvml: Any, index: int) -> _Gpu:
    """A GPU that can be metered; ``MeterError`` for one that cannot."""
    try:
        gpu = _Gpu(nvml, index, nvml.nvmlDeviceGetHandleByIndex(index))
    except nvml.NVMLError as error:
        raise _meter_error(nvml, f"GPU:{index}", error) from error
    if gpu.is_mig():
        raise MeterError(f"{gpu.name} is split by MIG and is left out.", MIG)
    return gpu


def _meter_error(nvml: Any, name: str, error: Any) -> MeterError:
    if error.value == nvml.NVML_ERROR_GPU_IS_LOST:
        return MeterError(f"{name} fell off the bus.", "The GPU needs a reset; see the kernel's log (dmesg).")
    if error.value == nvml.NVML_ERROR_NO_PERMISSION:
        return MeterError(f"{name} may not be read by this user.", NO_PERMISSION)
    return MeterError(f"{name} cannot be read: {error}.", "See whether nvidia-smi can read it.")


def _sensor(gpu: _Gpu) -> tuple[Domain, Quantity, Schedule, Callable[[], float]]:
    """The best reading this card has, with what it really covers in the sensor's name."""
    if gpu.has("nvmlDeviceGetTotalEnergyConsumption"):
        return _domain(gpu, "NVML total energy", 0.1), "energy_j", Updates(0.1), gpu.energy_j
    if gpu.has_instant_power():
        sensor = "NVML instant power, about 25 ms of each 100 ms"
        return _domain(gpu, sensor, 0.1), "power_w", Every(0.02), gpu.instant_power_w
    if gpu.is_ampere_or_newer():
        sensor = "NVML average power, moving average over 1 s"
        return _domain(gpu, sensor, 0.1), "power_w", Every(0.02), gpu.power_usage_w
    return _domain(gpu, "NVML power", 0.02), "power_w", Every(0.01), gpu.power_usage_w


def _domain(gpu: _Gpu, sensor: str, update_period_s: float) -> Domain:
    return Domain(gpu.name, gpu.name, sensor=sensor, update_period_s=update_period_s)


def _facts(gpu: _Gpu, own_pids: Collection[int]) -> Iterator[tuple[str, float]]:
    """What this card tells; a fact that it does not know is absent."""
    nvml = gpu.nvml
    questions: dict[str, Callable[[], float]] = {
        "sm_clock_mhz": lambda: gpu.ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
        "memory_clock_mhz": lambda: gpu.ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM),
        "temperature_c": lambda: gpu.ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
        "power_limit_w": lambda: gpu.ask("nvmlDeviceGetEnforcedPowerLimit") * 1e-3,
        "throttle_reasons_bits": lambda: gpu.ask("nvmlDeviceGetCurrentClocksThrottleReasons"),
        "utilisation_percent": lambda: gpu.ask("nvmlDeviceGetUtilizationRates").gpu,
        "instant_power_w": gpu.instant_power_w,
        "other_processes_count": lambda: gpu.others(own_pids),
    }
    for name, question in questions.items():
        with contextlib.suppress(MeterError):
            yield name, float(question())
