"""NVIDIA GPUs through NVML.

The meter is the total-energy counter: it updates every 100 ms, misses nothing and agrees with itself from
1 s bursts down to 5 ms bursts (measured on an H200). A call blocks for about 4 ms, so the calls are placed
by a schedule that learns the updates. Power readings are second best: instant power sees about 25 ms of each
100 ms, average power is a moving average over a second. They serve cards without the counter, and pictures.

GPUs are numbered as the program sees them (``visible.py``); one that has another number in the machine says
so in its sensor's name.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from joulemap.devices import Domain
from joulemap.errors import MeterError
from joulemap.meters.gpu import GpuChannel, Program, answers, program_around, split_off
from joulemap.meters.meter import Probe, Quantity, Schedule
from joulemap.meters.schedule import Every, Updates, share_calls
from joulemap.meters.trial import probe_by_opening
from joulemap.meters.visible import MIG_INSTANCE, visible

VISIBLE, ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"

NO_LIBRARY = "Install it with: pip install 'joulemap[nvidia]'"
NO_DRIVER = (
    "Where there is an NVIDIA GPU, install its driver; in a container, start it with the GPU "
    "(docker run --gpus all); in a virtual machine, have the GPU passed through to it."
)
MISMATCH = "Reboot, or reload the kernel module nvidia; in a container, restart it."
NO_PERMISSION = "Ask for access to /dev/nvidia*, or let root run `joulemap monitor` and use that."
BY_SPEED = (
    f"Set {ORDER}=PCI_BUS_ID, so that the program numbers them as the driver does, or name GPUs by UUID in "
    f"{VISIBLE}."
)
COUNTER, INSTANT, AVERAGE = (
    "NVML total energy",
    "NVML instant power, about 25 ms of each 100 ms",
    "NVML average power, moving average over 1 s",
)


@dataclass(slots=True)
class _Gpu:
    """One GPU of an initialised library: ``index`` is the program's number, ``physical`` the machine's."""

    nvml: Any
    index: int
    physical: int
    uuid: str
    handle: Any

    @property
    def name(self) -> str:
        return f"GPU:{self.index}"

    def ask(self, function: str, *arguments: Any) -> Any:
        """Call one of NVML's functions for this GPU; ``MeterError`` where it answers with an error."""
        try:
            return getattr(self.nvml, function)(self.handle, *arguments)
        except self.nvml.NVMLError as error:
            if error.value == self.nvml.NVML_ERROR_GPU_IS_LOST:
                self._find_again()
            raise _meter_error(self.nvml, self.name, error) from error

    def _find_again(self) -> None:
        """A GPU that comes back, after a reset, has a new handle; the numbers of others may have moved."""
        with contextlib.suppress(self.nvml.NVMLError):
            self.handle = self.nvml.nvmlDeviceGetHandleByUUID(self.uuid)

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

    def sm_clock_mhz(self) -> float:
        """How fast it computes."""
        return float(self.ask("nvmlDeviceGetClockInfo", self.nvml.NVML_CLOCK_SM))

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

    def pids(self) -> list[int]:
        """The processes that compute on this GPU, whosever they are."""
        return [process.pid for process in self.ask("nvmlDeviceGetComputeRunningProcesses")]

    def power_usage_w(self) -> float:
        """Power, averaged over a second on Ampere and newer."""
        return float(self.ask("nvmlDeviceGetPowerUsage")) * 1e-3

    def domain(self, sensor: str, update_period_s: float) -> Domain:
        """What a sensor measures; its name says which GPU of the machine it is where the numbers differ."""
        which = "" if self.index == self.physical else f", GPU {self.physical} of the machine ({self.uuid})"
        return Domain(self.name, self.name, sensor=sensor + which, update_period_s=update_period_s)


class NvmlMeter:
    """Every NVIDIA GPU that the program sees and that is not split by MIG, numbered as the program does.

    ``program`` tells its processes from others that use a GPU at the same time; None where that cannot be
    told. ``left_out`` says why a GPU was refused when the meter was opened.
    """

    name = "nvml"

    def __init__(
        self,
        library: Any = None,
        program: Callable[[], Program | None] = program_around,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self.left_out: list[MeterError] = []
        self._library, self._environment = library, environment
        self._program = program
        self._gpus: dict[int, _Gpu] = {}
        self._with_counter: set[int] = set()

    def probe(self) -> Probe:
        """Available, or no library, no driver, no GPU, no permission, MIG, or hidden from the program."""
        trial = NvmlMeter(self._library, self._program, self._environment)
        return probe_by_opening(trial.open, "{sensors}.", lambda: trial.left_out)

    def open(self) -> Sequence[GpuChannel]:
        """A channel a GPU; ``MeterError`` where there is none to read."""
        nvml = self._library if self._library is not None else _import()
        _initialise(nvml)
        try:
            tried = [self._channel_or_error(gpu) for gpu in _gpus(nvml, self._environment)]
        except MeterError:
            nvml.nvmlShutdown()
            raise
        channels, self.left_out = split_off(tried)
        if not channels:
            nvml.nvmlShutdown()
            raise self.left_out[0] if self.left_out else MeterError("There is no NVIDIA GPU.", NO_DRIVER)
        self.left_out += _numbered_by_speed(nvml, self._environment)
        share_calls(channel.schedule for channel in channels)
        return channels

    def facts(self) -> Mapping[str, float]:
        """Clocks, temperature, limit, load and processes of the GPUs that are open."""
        program = self._program()
        return {f"{gpu.name} {name}": v for gpu in [*self._gpus.values()] for name, v in _facts(gpu, program)}

    def pictures(self) -> Mapping[str, float]:
        """Instant power and clocks of the GPUs whose energy is read off the counter; the power is never
        counted as energy."""
        seen: dict[str, float] = {}
        for gpu in [self._gpus[index] for index in sorted(self._with_counter & self._gpus.keys())]:
            with contextlib.suppress(MeterError):
                seen[f"{gpu.name} instant_power_w"] = gpu.instant_power_w()
            with contextlib.suppress(MeterError):
                seen[f"{gpu.name} sm_clock_mhz"] = gpu.sm_clock_mhz()
        return seen

    def beside(self) -> Sequence[GpuChannel]:
        """Instant and average power of the GPUs whose energy is read off the counter."""
        gpus = [self._gpus[index] for index in sorted(self._with_counter & self._gpus.keys())]
        return [channel for gpu in gpus for channel in _beside(gpu)]

    def _channel_or_error(self, gpu: _Gpu | MeterError) -> GpuChannel | MeterError:
        if isinstance(gpu, MeterError):
            return gpu
        try:
            domain, quantity, schedule, take = _sensor(gpu)
        except MeterError as error:
            return error
        self._gpus[gpu.index] = gpu
        if quantity == "energy_j":
            self._with_counter.add(gpu.index)
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
        if error.value == nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
            raise MeterError("The NVIDIA driver was updated while it was in use.", MISMATCH) from error
        raise MeterError(f"There is no NVIDIA driver to talk to ({error}).", NO_DRIVER) from error


def _gpus(nvml: Any, environment: Mapping[str, str]) -> list[_Gpu | MeterError]:
    """The GPUs that the program sees, in its order; in place of one that cannot be metered, why not."""
    uuids = [_uuid(nvml, physical) for physical in range(_count(nvml))]
    seen = visible(VISIBLE, environment.get(VISIBLE), uuids)
    return [_gpu(nvml, index, physical, uuids[physical]) for index, physical in enumerate(seen)]


def _count(nvml: Any) -> int:
    try:
        return int(nvml.nvmlDeviceGetCount())
    except nvml.NVMLError as error:
        raise MeterError(f"The GPUs cannot be counted: {error}.", NO_DRIVER) from error


def _uuid(nvml: Any, physical: int) -> str:
    """Nothing for a GPU that is lost."""
    try:
        return str(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(physical)))
    except nvml.NVMLError:
        return ""


def _gpu(nvml: Any, index: int, physical: int, uuid: str) -> _Gpu | MeterError:
    """A GPU that can be metered, or why it cannot."""
    try:
        gpu = _Gpu(nvml, index, physical, uuid, nvml.nvmlDeviceGetHandleByIndex(physical))
        if gpu.is_mig():
            return MeterError(f"{gpu.name} is split by MIG and is left out.", MIG_INSTANCE)
    except nvml.NVMLError as error:
        return _meter_error(nvml, f"GPU:{index}", error)
    except MeterError as error:
        return error
    return gpu


def _numbered_by_speed(nvml: Any, environment: Mapping[str, str]) -> list[MeterError]:
    """Whether CUDA may number the GPUs in another order than NVML does: by speed, unless told otherwise. Of
    one model, they are all equally fast."""
    by_uuid = environment.get(VISIBLE, "").strip().startswith("GPU-")
    if by_uuid or environment.get(ORDER) == "PCI_BUS_ID":
        return []
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(physical) for physical in range(_count(nvml))]
        models = {str(nvml.nvmlDeviceGetName(handle)) for handle in handles}
    except nvml.NVMLError:
        return []
    if len(models) < 2:
        return []
    return [MeterError("The GPUs differ, and CUDA numbers them by speed, NVML by their slots.", BY_SPEED)]


def _meter_error(nvml: Any, name: str, error: Any) -> MeterError:
    if error.value == nvml.NVML_ERROR_GPU_IS_LOST:
        return MeterError(f"{name} fell off the bus.", "The GPU needs a reset; see the kernel's log (dmesg).")
    if error.value == nvml.NVML_ERROR_NO_PERMISSION:
        return MeterError(f"{name} may not be read by this user.", NO_PERMISSION)
    return MeterError(f"{name} cannot be read: {error}.", "See whether nvidia-smi can read it.")


def _sensor(gpu: _Gpu) -> tuple[Domain, Quantity, Schedule, Callable[[], float]]:
    """The best reading this card has, with what it really covers in the sensor's name."""
    if gpu.has("nvmlDeviceGetTotalEnergyConsumption"):
        return gpu.domain(COUNTER, 0.1), "energy_j", Updates(0.1), gpu.energy_j
    if gpu.has_instant_power():
        return gpu.domain(INSTANT, 0.1), "power_w", Every(0.02), gpu.instant_power_w
    if gpu.is_ampere_or_newer():
        return gpu.domain(AVERAGE, 0.1), "power_w", Every(0.02), gpu.power_usage_w
    return gpu.domain("NVML power", 0.02), "power_w", Every(0.01), gpu.power_usage_w


def _beside(gpu: _Gpu) -> Iterator[GpuChannel]:
    """Closing one of these closes nothing: the counter's channel holds the GPU."""
    if gpu.has_instant_power():
        yield GpuChannel(gpu.domain(INSTANT, 0.1), "power_w", Every(0.02), gpu.instant_power_w, _nothing)
    if gpu.has("nvmlDeviceGetPowerUsage"):
        average = gpu.is_ampere_or_newer()
        domain = gpu.domain(AVERAGE, 0.1) if average else gpu.domain("NVML power", 0.02)
        yield GpuChannel(domain, "power_w", Every(0.02 if average else 0.01), gpu.power_usage_w, _nothing)


def _nothing() -> None:
    """There is nothing to let go of."""


def _facts(gpu: _Gpu, program: Program | None) -> Iterator[tuple[str, float]]:
    """What this card tells; a fact that it does not know is absent."""
    nvml = gpu.nvml
    questions: dict[str, Callable[[], float]] = {
        "sm_clock_mhz": gpu.sm_clock_mhz,
        "memory_clock_mhz": lambda: gpu.ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM),
        "temperature_c": lambda: gpu.ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
        "power_limit_w": lambda: gpu.ask("nvmlDeviceGetEnforcedPowerLimit") * 1e-3,
        "throttle_reasons_bits": lambda: gpu.ask("nvmlDeviceGetCurrentClocksThrottleReasons"),
        "utilisation_percent": lambda: gpu.ask("nvmlDeviceGetUtilizationRates").gpu,
    }
    yield from answers(questions, gpu.pids, program)
    yield "physical_gpu_number", float(gpu.physical)
