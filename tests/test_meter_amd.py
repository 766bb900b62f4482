"""The AMD meter against a stand-in for ``amdsmi`` with its functions, arguments, units and errors."""

from __future__ import annotations

import ast
import importlib.util
import os
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from joulemap.errors import MeterError
from joulemap.meters import Meter
from joulemap.meters.amd import AmdMeter
from joulemap.meters.gpu import Beside, Pictured, Program


class AmdSmiException(Exception):
    """As in amdsmi: the code and its words are attributes."""

    def __init__(self, err_code: int, err_info: str = "AMDSMI_STATUS") -> None:
        super().__init__(err_code)
        self.err_code = err_code
        self.err_info = err_info


@dataclass
class Card:
    energy_count: int | None = 2_000_000
    average_w: int | str = "N/A"
    current_w: int | str = 310
    pids: tuple[int, ...] = ()
    lost: bool = False
    throttled: bool | str = "N/A"


@dataclass
class FakeAmdSmi:
    """A driver with some cards."""

    cards: list[Card] = field(default_factory=lambda: [Card()])
    init_code: int = 0
    started: int = 0

    AmdSmiException = AmdSmiException
    AmdSmiClkType = SimpleNamespace(GFX=0, MEM=5)
    AmdSmiTemperatureType = SimpleNamespace(HOTSPOT=1)
    AmdSmiTemperatureMetric = SimpleNamespace(CURRENT=0)

    def amdsmi_init(self, flag: int = 2) -> None:
        if self.init_code:
            raise AmdSmiException(self.init_code, "AMDSMI_STATUS_DRIVER_NOT_LOADED")
        self.started += 1

    def amdsmi_shut_down(self) -> None:
        self.started -= 1

    def amdsmi_get_processor_handles(self) -> list[Card]:
        return self.cards

    def amdsmi_get_energy_count(self, processor_handle: Card) -> dict[str, Any]:
        if processor_handle.lost:
            raise AmdSmiException(36, "AMDSMI_STATUS_NOT_FOUND")
        if processor_handle.energy_count is None:
            raise AmdSmiException(2, "AMDSMI_STATUS_NOT_SUPPORTED")
        return {
            "energy_accumulator": processor_handle.energy_count,
            "counter_resolution": 15.3,
            "timestamp": 1,
        }

    def amdsmi_get_power_info(self, processor_handle: Card) -> dict[str, Any]:
        return {
            "average_socket_power": processor_handle.average_w,
            "current_socket_power": processor_handle.current_w,
        }

    def amdsmi_get_clock_info(self, processor_handle: Card, clock_type: int) -> dict[str, Any]:
        return {"clk": 2100 if clock_type == self.AmdSmiClkType.GFX else "N/A"}

    def amdsmi_get_temp_metric(self, processor_handle: Card, sensor_type: int, metric: int) -> int:
        return 55

    def amdsmi_get_power_cap_info(self, processor_handle: Card) -> dict[str, int]:
        return {"power_cap": 750_000_000}

    def amdsmi_get_gpu_activity(self, processor_handle: Card) -> dict[str, Any]:
        return {"gfx_activity": 99, "umc_activity": 10, "mm_activity": "N/A"}

    def amdsmi_get_gpu_metrics_info(self, processor_handle: Card) -> dict[str, Any]:
        return {"throttle_status": processor_handle.throttled}

    def amdsmi_get_gpu_process_list(self, processor_handle: Card) -> list[dict[str, Any]]:
        return [{"name": "python3", "pid": pid} for pid in processor_handle.pids]


def test_the_stand_in_has_the_functions_and_arguments_of_the_real_library() -> None:
    """Read from its source: the package cannot be imported without ROCm."""
    spec = importlib.util.find_spec("amdsmi")
    if spec is None or spec.origin is None:
        pytest.skip("amdsmi is not installed")
    source = (Path(spec.origin).parent / "amdsmi_interface.py").read_text()
    functions = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
    ours = [name for name in dir(FakeAmdSmi) if name.startswith("amdsmi_")]
    for name in ours:
        code = getattr(FakeAmdSmi, name).__code__
        assert [a.arg for a in functions[name].args.args] == list(code.co_varnames[1 : code.co_argcount]), (
            name
        )


def test_the_accumulator_is_the_meter_in_joules() -> None:
    meter: Meter = AmdMeter(FakeAmdSmi([Card(), Card(energy_count=4_000_000)]))
    first, second = meter.open()
    assert first.read() == pytest.approx(30.6)
    assert second.read() == pytest.approx(61.2)
    assert second.domain.name == second.domain.device == "GPU:1"
    assert second.quantity == "energy_j"
    assert second.wraps_at_j is None


@pytest.mark.parametrize("card", [Card(None, average_w=200), Card(None, "N/A", 200)])
def test_a_card_without_the_accumulator_gives_power(card: Card) -> None:
    (channel,) = AmdMeter(FakeAmdSmi([card])).open()
    assert channel.quantity == "power_w"
    assert channel.domain.sensor == "amdsmi average socket power"
    assert channel.read() == 200


def test_a_card_with_neither_is_no_meter() -> None:
    library = FakeAmdSmi([Card(None, "N/A", "N/A")])
    with pytest.raises(MeterError, match="reports no power"):
        AmdMeter(library).open()
    assert library.started == 0


def test_the_second_die_of_a_card_is_left_out() -> None:
    meter = AmdMeter(FakeAmdSmi([Card(), Card(energy_count=0)]))
    assert [channel.domain.name for channel in meter.open()] == ["GPU:0"]
    probe = meter.probe()
    assert probe.available
    assert "GPU:1 counts no energy" in probe.reason


def test_a_gpu_that_disappears_does_not_stop_the_others() -> None:
    library = FakeAmdSmi([Card(), Card()])
    first, second = AmdMeter(library).open()
    library.cards[0].lost = True
    with pytest.raises(MeterError, match="GPU:0 cannot be read"):
        first.read()
    assert second.read() > 0
    library.cards[0].lost = False
    assert first.read() > 0


def test_facts_name_their_units_and_leave_out_what_is_unknown() -> None:
    meter = AmdMeter(FakeAmdSmi([Card(pids=(1, os.getpid()))]), lambda: Program(os.getpid()))
    assert meter.facts() == {}
    meter.open()
    assert meter.facts() == pytest.approx(
        {
            "GPU:0 sm_clock_mhz": 2100,
            "GPU:0 temperature_c": 55,
            "GPU:0 power_limit_w": 750,
            "GPU:0 utilisation_percent": 99,
            "GPU:0 processes_count": 2,
            "GPU:0 other_processes_count": 1,
            "GPU:0 physical_gpu_number": 0,
        }
    )


def test_a_card_that_is_held_back_says_so() -> None:
    meter = AmdMeter(FakeAmdSmi([Card(throttled=True), Card(throttled=False)]))
    meter.open()
    facts = meter.facts()
    assert (facts["GPU:0 throttled_flag"], facts["GPU:1 throttled_flag"]) == (1, 0)


def test_power_is_for_pictures_and_to_be_looked_at() -> None:
    library = FakeAmdSmi([Card(), Card(current_w="N/A")])
    meter = AmdMeter(library)
    assert isinstance(meter, Pictured)
    assert isinstance(meter, Beside)
    meter.open()
    assert meter.pictures() == {"GPU:0 instant_power_w": 310}
    (beside,) = meter.beside()
    assert (beside.domain.name, beside.quantity, beside.read()) == ("GPU:0", "power_w", 310)
    beside.close()
    assert library.started == 1


@pytest.mark.parametrize(
    ("environment", "counts"),
    [
        ({}, [0, 1, 2, 3]),
        ({"ROCR_VISIBLE_DEVICES": "3,1"}, [3, 1]),
        ({"ROCR_VISIBLE_DEVICES": "3,1", "HIP_VISIBLE_DEVICES": "1"}, [1]),
        ({"CUDA_VISIBLE_DEVICES": "2"}, [2]),
        ({"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "2"}, [0]),
    ],
)
def test_a_program_that_sees_some_gpus_is_metered_on_those(
    environment: dict[str, str], counts: list[int]
) -> None:
    library = FakeAmdSmi([Card(energy_count=1 + physical) for physical in range(4)])
    channels = AmdMeter(library, environment=environment).open()
    assert [round(channel.read() / 15.3e-6) - 1 for channel in channels] == counts
    assert [channel.domain.name for channel in channels] == [f"GPU:{i}" for i in range(len(counts))]
    assert ("of the machine" in channels[0].domain.sensor) == (counts[0] != 0)


def test_gpus_by_uuid_are_not_guessed() -> None:
    library = FakeAmdSmi([Card()])
    probe = AmdMeter(library, environment={"ROCR_VISIBLE_DEVICES": "GPU-1f"}).probe()
    assert not probe.available
    assert "by their numbers" in probe.remedy
    assert library.started == 0


def test_the_library_is_shut_down_with_the_last_channel() -> None:
    library = FakeAmdSmi([Card(), Card()])
    meter = AmdMeter(library)
    first, second = meter.open()
    first.close()
    first.close()
    assert library.started == 1
    second.close()
    assert library.started == 0


@pytest.mark.parametrize(
    ("library", "reason"),
    [(FakeAmdSmi(init_code=34), "no AMD driver"), (FakeAmdSmi([]), "no AMD GPU")],
)
def test_probe_says_why_not(library: FakeAmdSmi, reason: str) -> None:
    probe = AmdMeter(library).probe()
    assert not probe.available
    assert reason in probe.reason
    assert "/dev/kfd" in probe.remedy
    assert library.started == 0


def test_probe_on_this_machine_answers_without_printing(capsys: pytest.CaptureFixture[str]) -> None:
    probe = AmdMeter().probe()
    assert probe.available or probe.remedy
    assert capsys.readouterr().out == ""
