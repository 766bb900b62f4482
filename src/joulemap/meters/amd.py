"""AMD GPUs through ``amdsmi``.

The card accumulates its energy in steps of about 15 uJ; the accumulator is the meter. Cards without it (and
guests of a virtual machine) report socket power, averaged by the firmware. On a card with two dies, such as
the MI250X, the first counts both and the second stands at zero: the second is left out.

GPUs are numbered as the program sees them, where ``ROCR_VISIBLE_DEVICES`` and ``HIP_VISIBLE_DEVICES`` (or
``CUDA_VISIBLE_DEVICES``, which HIP takes as well) are lists of numbers.

No AMD GPU was at hand: tested with a stand-in that has the functions, arguments and units of ``amdsmi`` 7.0.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from joulemap.devices import Domain
from joulemap.errors import MeterError
from joulemap.meters.gpu import GpuChannel, Program, answers, program_around, split_off
from joulemap.meters.meter import Probe, Quantity
from joulemap.meters.schedule import Every
from joulemap.meters.trial import probe_by_opening
from joulemap.meters.visible import visible

POLL_PERIOD_S = 0.02
NOT_SUPPORTED = (2, 3)
"""``AMDSMI_STATUS_NOT_SUPPORTED`` and ``_NOT_YET_IMPLEMENTED``."""
NO_PERMISSION = 10

NO_LIBRARY = (
    "Install it with: pip install 'joulemap[amd]', in the version of your ROCm, and amd-smi-lib with ROCm."
)
NO_DRIVER = (
    "Where there is an AMD GPU, load the driver amdgpu; in a container, pass /dev/kfd and /dev/dri; in a "
    "virtual machine, have the GPU passed through to it."
)
BY_UUID = "Name the GPUs by their numbers, so that the meter knows which of them the program sees."
FORBIDDEN = "Join the groups render and video, or let root run `joulemap monitor` and use that."


@dataclass(frozen=True, slots=True)
class _Gpu:
    """One GPU of an initialised library: ``index`` is the program's number, ``physical`` the machine's."""

    smi: Any
    index: int
    physical: int
    handle: Any

    @property
    def name(self) -> str:
        return f"GPU:{self.index}"

    def ask(self, function: str, *arguments: Any) -> Any:
        """Call one of the library's functions for this GPU; ``MeterError`` where it answers with an error."""
        try:
            return getattr(self.smi, function)(self.handle, *arguments)
        except self.smi.AmdSmiException as error:
            hint = FORBIDDEN if _code(error) == NO_PERMISSION else "See whether amd-smi can read it."
            raise MeterError(f"{self.name} cannot be read: {_words(error)}.", hint) from error

    def energy_j(self) -> float:
        """The accumulator: a count of steps, whose size in uJ comes with it."""
        answer = self.ask("amdsmi_get_energy_count")
        return float(answer["energy_accumulator"]) * float(answer["counter_resolution"]) * 1e-6

    def has_energy(self) -> bool:
        """Whether the card knows the accumulator at all; other errors are raised."""
        try:
            self.energy_j()
        except MeterError as error:
            if _code(error.__cause__) in NOT_SUPPORTED:
                return False
            raise
        return True

    def power_w(self, *which: str) -> float:
        """The first of these readings that the card has; what it does not have says ``N/A``."""
        answer = self.ask("amdsmi_get_power_info")
        for reading in which:
            if isinstance(answer[reading], (int, float)):
                return float(answer[reading])
        raise MeterError(f"{self.name} reports no power.", "See whether amd-smi metric --power shows any.")

    def socket_power_w(self) -> float:
        """Power of the socket, averaged where the card does."""
        return self.power_w("average_socket_power", "current_socket_power")

    def pids(self) -> list[int]:
        """The processes that compute on this GPU, whosever they are."""
        return [process["pid"] for process in self.ask("amdsmi_get_gpu_process_list")]

    def throttled(self) -> float:
        """Whether the firmware holds the card back; it says yes or no, and not what for."""
        status = self.ask("amdsmi_get_gpu_metrics_info")["throttle_status"]
        if not isinstance(status, (bool, int)):
            raise MeterError(f"{self.name} does not say whether it is held back.")
        return float(bool(status))

    def domain(self, sensor: str) -> Domain:
        """What a sensor measures; its name says which GPU of the machine it is where the numbers differ."""
        which = "" if self.index == self.physical else f", GPU {self.physical} of the machine"
        return Domain(self.name, self.name, sensor=sensor + which)


class AmdMeter:
    """Every AMD GPU that the program sees, numbered as the program does. ``program`` tells its processes from
    others, ``left_out`` says why a GPU was refused."""

    name = "amd"

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

    def probe(self) -> Probe:
        """Available, or no library, no driver, no GPU, no permission, or hidden from the program."""
        trial = AmdMeter(self._library, self._program, self._environment)
        return probe_by_opening(trial.open, "{sensors}.", lambda: trial.left_out)

    def open(self) -> Sequence[GpuChannel]:
        """A channel a GPU; ``MeterError`` where there is none to read."""
        smi = self._library if self._library is not None else _import()
        handles = _handles(smi)
        try:
            seen = _seen(len(handles), self._environment)
        except MeterError:
            smi.amdsmi_shut_down()
            raise
        gpus = [_Gpu(smi, index, physical, handles[physical]) for index, physical in enumerate(seen)]
        tried = [self._channel_or_error(gpu) for gpu in gpus]
        channels, self.left_out = split_off(tried)
        if not channels:
            smi.amdsmi_shut_down()
            raise self.left_out[0] if self.left_out else MeterError("There is no AMD GPU.", NO_DRIVER)
        return channels

    def facts(self) -> Mapping[str, float]:
        """Clocks, temperature, limit, load and processes of the GPUs that are open."""
        program = self._program()
        return {f"{gpu.name} {name}": v for gpu in [*self._gpus.values()] for name, v in _facts(gpu, program)}

    def pictures(self) -> Mapping[str, float]:
        """The power of this moment, of the GPUs that tell it; it is never counted as energy."""
        seen: dict[str, float] = {}
        for gpu in [*self._gpus.values()]:
            with contextlib.suppress(MeterError):
                seen[f"{gpu.name} instant_power_w"] = gpu.power_w("current_socket_power")
        return seen

    def beside(self) -> Sequence[GpuChannel]:
        """Socket power of the GPUs that are open."""
        return [channel for gpu in [*self._gpus.values()] for channel in _beside(gpu)]

    def _channel_or_error(self, gpu: _Gpu) -> GpuChannel | MeterError:
        try:
            domain, quantity, take = _sensor(gpu)
        except MeterError as error:
            return error
        self._gpus[gpu.index] = gpu
        return GpuChannel(domain, quantity, Every(POLL_PERIOD_S), take, lambda: self._let_go(gpu))

    def _let_go(self, gpu: _Gpu) -> None:
        if self._gpus.pop(gpu.index, None) and not self._gpus:
            gpu.smi.amdsmi_shut_down()


def _import() -> Any:
    """The package, which prints and fails in its own ways where ROCm's library is not there."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return importlib.import_module("amdsmi")
    except (ImportError, KeyError, OSError, AttributeError) as error:
        raise MeterError(
            "The package amdsmi or ROCm's library libamd_smi.so is missing.", NO_LIBRARY
        ) from error


def _handles(smi: Any) -> Sequence[Any]:
    try:
        smi.amdsmi_init()
    except smi.AmdSmiException as error:
        raise MeterError(f"There is no AMD driver to talk to ({_words(error)}).", NO_DRIVER) from error
    try:
        return list(smi.amdsmi_get_processor_handles())
    except smi.AmdSmiException as error:
        smi.amdsmi_shut_down()
        raise MeterError(f"The GPUs cannot be listed: {_words(error)}.", NO_DRIVER) from error


def _seen(count: int, environment: Mapping[str, str]) -> list[int]:
    """The machine's numbers of the GPUs that the program sees: ROCr leaves some, HIP some of those."""
    seen = list(range(count))
    hip = "HIP_VISIBLE_DEVICES" if "HIP_VISIBLE_DEVICES" in environment else "CUDA_VISIBLE_DEVICES"
    for variable in ("ROCR_VISIBLE_DEVICES", hip):
        value = environment.get(variable)
        if value is not None and "GPU-" in value:
            raise MeterError(f"{variable} names GPUs by UUID, which is not understood here.", BY_UUID)
        seen = [seen[number] for number in visible(variable, value, [""] * len(seen))]
    return seen


def _code(error: Any) -> int | None:
    code = getattr(error, "err_code", None)
    return int(code) if isinstance(code, int) else None


def _words(error: Any) -> str:
    return str(getattr(error, "err_info", "") or error)


def _sensor(gpu: _Gpu) -> tuple[Domain, Quantity, Callable[[], float]]:
    """The accumulator, or socket power; ``MeterError`` for a card that has neither."""
    if not gpu.has_energy():
        gpu.socket_power_w()
        return gpu.domain("amdsmi average socket power"), "power_w", gpu.socket_power_w
    if gpu.energy_j() == 0:
        raise MeterError(
            f"{gpu.name} counts no energy and is left out.",
            "On a card with two dies the first one counts both; otherwise update the driver.",
        )
    return gpu.domain("amdsmi energy accumulator"), "energy_j", gpu.energy_j


def _beside(gpu: _Gpu) -> Iterator[GpuChannel]:
    """Closing one of these closes nothing: the metered channel holds the GPU."""
    with contextlib.suppress(MeterError):
        gpu.socket_power_w()
        domain = gpu.domain("amdsmi socket power")
        yield GpuChannel(domain, "power_w", Every(POLL_PERIOD_S), gpu.socket_power_w, lambda: None)


def _facts(gpu: _Gpu, program: Program | None) -> Iterator[tuple[str, float]]:
    """What this card tells; a fact that it does not know is absent."""
    smi = gpu.smi
    hottest = (smi.AmdSmiTemperatureType.HOTSPOT, smi.AmdSmiTemperatureMetric.CURRENT)
    questions: dict[str, Callable[[], Any]] = {
        "sm_clock_mhz": lambda: gpu.ask("amdsmi_get_clock_info", smi.AmdSmiClkType.GFX)["clk"],
        "memory_clock_mhz": lambda: gpu.ask("amdsmi_get_clock_info", smi.AmdSmiClkType.MEM)["clk"],
        "temperature_c": lambda: gpu.ask("amdsmi_get_temp_metric", *hottest),
        "power_limit_w": lambda: gpu.ask("amdsmi_get_power_cap_info")["power_cap"] * 1e-6,
        "utilisation_percent": lambda: gpu.ask("amdsmi_get_gpu_activity")["gfx_activity"],
        "throttled_flag": gpu.throttled,
    }
    yield from answers(questions, gpu.pids, program)
    yield "physical_gpu_number", float(gpu.physical)
