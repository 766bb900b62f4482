"""Which GPUs a program sees, and whose processes run on them."""

from __future__ import annotations

import os

import pytest

from joulemap.errors import MeterError
from joulemap.meters.gpu import Program, program_around
from joulemap.meters.remarks import Remarks, reasons
from joulemap.meters.visible import visible

UUIDS = ["GPU-8932f937-d72c", "GPU-8932a000-0001", "GPU-ffffffff-0002", "GPU-00000000-0003"]


@pytest.mark.parametrize(
    ("value", "seen"),
    [
        (None, [0, 1, 2, 3]),
        ("2,1", [2, 1]),
        (" 3 , 0 ", [3, 0]),
        ("0,2,-1,1", [0, 2]),
        ("1,9,0", [1]),
        ("GPU-ff", [2]),
        ("GPU-8932f,GPU-0", [0, 3]),
        ("GPU-00000000-0003,GPU-8932", [3]),
    ],
)
def test_the_rule_is_cudas(value: str | None, seen: list[int]) -> None:
    assert visible("CUDA_VISIBLE_DEVICES", value, UUIDS) == seen


@pytest.mark.parametrize("value", ["", "-1", "NoDevFiles", "GPU-8932", "two", "gpu-ff", "7", "1,1,0", "0,0"])
def test_a_list_that_names_no_gpu_is_said_with_its_value(value: str) -> None:
    with pytest.raises(MeterError, match="CUDA_VISIBLE_DEVICES") as caught:
        visible("CUDA_VISIBLE_DEVICES", value, UUIDS)
    assert repr(value) in caught.value.message


def test_without_gpus_there_is_nothing_to_hide() -> None:
    assert visible("CUDA_VISIBLE_DEVICES", "", []) == []


def test_an_instance_of_a_split_gpu_has_no_counter_of_its_own() -> None:
    with pytest.raises(MeterError, match="MIG"):
        visible("CUDA_VISIBLE_DEVICES", "0,MIG-GPU-8932f937/1/0", UUIDS)


def test_a_process_that_the_container_does_not_see_is_not_counted(tmp_path) -> None:
    """Its number in here is not known, so it may well be the program's own."""
    for pid, parent in ((1, 0), (7, 1), (8, 7), (9, 1)):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a) b)) S {parent} 1 1\n")
    (tmp_path / "self" / "ns").mkdir(parents=True)
    (tmp_path / "self" / "ns" / "pid").write_text("")  # another inode than the first namespace's
    assert Program(7, tmp_path).others([7, 8, 8, 9, 12345]) == 1
    (tmp_path / "self" / "ns" / "pid").unlink()
    assert Program(7, tmp_path).others([7, 8, 9, 12345]) == 2


def test_a_monitor_belongs_to_the_program_that_started_it() -> None:
    program = program_around()
    if os.getppid() == 1 and program is None:
        pytest.skip("the tests were started by the system itself")
    assert program is not None
    assert program.others([os.getpid(), os.getppid()]) == 0


def test_each_thing_is_said_once() -> None:
    remarks = Remarks()
    quiet = {"GPU:0 other_processes_count": 0.0, "GPU:0 throttle_reasons_bits": 1.0, "odd": 3.0}
    assert remarks.new(quiet) == []
    shared = {"GPU:0 other_processes_count": 2.0, "GPU:1 other_processes_count": 1.0}
    assert remarks.new(shared) == [
        "2 other processes use GPU:0: the energy of GPU:0 is theirs, too.",
        "Another process uses GPU:1: the energy of GPU:1 is theirs, too.",
    ]
    assert remarks.new({"GPU:0 other_processes_count": 3.0}) == []
    assert remarks.new({"GPU:0 throttle_reasons_bits": 4.0}) == ["GPU:0 was slowed down by its power limit."]
    assert remarks.new({"GPU:0 throttle_reasons_bits": 0x24}) == ["GPU:0 was slowed down by heat."]
    assert len(remarks.new({"GPU:1 throttled_flag": 1.0})) == 1
    assert remarks.new({"GPU:1 throttled_flag": 1.0}) == []


def test_clocks_that_are_as_wanted_are_no_reason() -> None:
    assert reasons(0x1 | 0x2 | 0x10 | 0x100) == []
    assert len(reasons(0xFF)) == 5


def test_the_bits_are_nvmls() -> None:
    real = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    assert reasons(real.nvmlClocksEventReasonSwPowerCap) == ["its power limit"]
    assert reasons(real.nvmlClocksEventReasonSwThermalSlowdown) == ["heat"]
    assert reasons(real.nvmlClocksEventReasonHwPowerBrakeSlowdown) == ["the power supply (power brake)"]
    assert reasons(real.nvmlClocksEventReasonGpuIdle) == []
