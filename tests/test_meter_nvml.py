"""The NVML meter against a stand-in for ``pynvml`` with its names, units and errors, and against itself."""

from __future__ import annotations

import importlib
import inspect
import os
import subprocess
import sys
import time

import pytest

from joulemap.errors import MeterError
from joulemap.meters import Meter
from joulemap.meters.gpu import Beside, Pictured, Program
from joulemap.meters.nvml import NvmlMeter
from joulemap.meters.schedule import Every, Updates
from joulemap.monitor.sampler import Batch, Sampler
from joulemap.monitor.track import Track
from joulemap.monitor.waiter import PipeWaiter

from .fake_nvml import Card, FakeNvml


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
    assert meter.pictures() == {"GPU:1 instant_power_w": 120.5, "GPU:1 sm_clock_mhz": 1980}
    assert "GPU:1 processes_count" in meter.facts()
    assert "GPU:0 processes_count" not in meter.facts()
    library.cards[0].lost = False
    assert first.read() == 5_000


def test_a_gpu_lost_before_the_start_is_left_out() -> None:
    meter = NvmlMeter(FakeNvml([Card(lost=True), Card()]))
    assert [channel.domain.name for channel in meter.open()] == ["GPU:1"]
    assert "fell off" in meter.left_out[0].message


def test_facts_name_their_units_and_leave_out_what_is_unknown() -> None:
    meter = NvmlMeter(FakeNvml([Card(pids=(os.getpid(),))]), program=lambda: None)
    assert meter.facts() == {}
    meter.open()
    assert meter.facts() == pytest.approx(
        {
            "GPU:0 sm_clock_mhz": 1980,
            "GPU:0 memory_clock_mhz": 3201,
            "GPU:0 temperature_c": 41,
            "GPU:0 power_limit_w": 700,
            "GPU:0 utilisation_percent": 97,
            "GPU:0 processes_count": 1,
            "GPU:0 physical_gpu_number": 0,
        }
    )


def test_throttle_reasons_are_a_fact_where_the_card_tells_them() -> None:
    meter = NvmlMeter(FakeNvml([Card(throttle=4)]))
    meter.open()
    assert meter.facts()["GPU:0 throttle_reasons_bits"] == 4


def test_processes_of_the_program_are_told_from_others() -> None:
    """A worker is the program's; the process that started the program is not."""
    script = (
        "import subprocess, sys; worker = subprocess.Popen(['cat'], stdin=subprocess.PIPE); "
        "print(worker.pid, flush=True); sys.stdin.read(); worker.communicate()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        worker = int(child.stdout.readline())
        library = FakeNvml([Card(pids=(os.getpid(), child.pid, worker))])
        meter = NvmlMeter(library, program=lambda: Program(child.pid))
        meter.open()
        facts = meter.facts()
        child.communicate()
    assert facts["GPU:0 processes_count"] == 3
    assert facts["GPU:0 other_processes_count"] == 1


def test_instant_power_is_for_pictures_and_no_channel() -> None:
    meter = NvmlMeter(FakeNvml([Card(), Card(energy_mj=None), Card(instant_mw=None)]))
    assert isinstance(meter, Pictured)
    channels = meter.open()
    assert [channel.quantity for channel in channels] == ["energy_j", "power_w", "energy_j"]
    assert meter.pictures() == {
        "GPU:0 instant_power_w": 120.5,
        "GPU:0 sm_clock_mhz": 1980,
        "GPU:2 sm_clock_mhz": 1980,
    }
    assert not any("instant" in name for name in meter.facts())


def test_pictures_become_facts_ten_times_as_often_and_never_energy() -> None:
    sampler = Sampler([NvmlMeter(FakeNvml(), environment={})])
    sampler.batch_every_ns = 50_000_000
    waiter, batches = PipeWaiter(), list[Batch]()

    def count(name: str) -> int:
        return sum(fact.name == name for batch in batches for fact in batch.facts)

    def hand_over(batch: Batch) -> None:
        batches.append(batch)
        if count("GPU:0 temperature_c") >= 2 or len(batches) > 400:
            waiter.stop()

    sampler.run(waiter, hand_over)
    waiter.close()
    assert count("GPU:0 instant_power_w") > count("GPU:0 temperature_c") >= 2
    assert [domain.name for domain in sampler.domains] == ["GPU:0"]
    assert all("instant" not in part.domain.sensor for batch in batches for part in batch.power)


def test_every_reading_of_a_card_can_be_looked_at() -> None:
    library = FakeNvml([Card(), Card(energy_mj=None), Card(architecture=4, instant_mw=None)])
    meter = NvmlMeter(library)
    assert isinstance(meter, Beside)
    channels = meter.open()
    beside = meter.beside()
    assert [(one.domain.name, one.domain.sensor.split(",")[0], one.read()) for one in beside] == [
        ("GPU:0", "NVML instant power", 120.5),
        ("GPU:0", "NVML average power", 119.0),
        ("GPU:2", "NVML power", 119.0),
    ]
    for channel in beside:
        channel.close()
    assert library.started == 1
    for one in channels:
        one.close()
    assert library.started == 0


def sensors(cards: int = 4, **environment: str) -> dict[str, str]:
    """Domains and sensors of a program with this environment."""
    meter = NvmlMeter(FakeNvml([Card() for _ in range(cards)]), environment=environment)
    return {channel.domain.name: channel.domain.sensor for channel in meter.open()}


def test_a_program_that_sees_some_gpus_is_metered_on_those_by_its_own_numbers() -> None:
    library = FakeNvml([Card(energy_mj=1000 * physical) for physical in range(4)])
    meter = NvmlMeter(library, environment={"CUDA_VISIBLE_DEVICES": "2,0,3"})
    channels = meter.open()
    assert [(one.domain.device, one.read()) for one in channels] == [("GPU:0", 2), ("GPU:1", 0), ("GPU:2", 3)]
    assert channels[0].domain.sensor == "NVML total energy, GPU 2 of the machine (GPU-8932f932)"
    assert meter.facts()["GPU:2 physical_gpu_number"] == 3
    told = ("instant_power_w", "sm_clock_mhz")
    assert meter.pictures().keys() == {f"GPU:{number} {what}" for number in range(3) for what in told}


def test_all_gpus_are_seen_by_default_and_keep_their_sensors_name() -> None:
    assert sensors(2) == {"GPU:0": "NVML total energy", "GPU:1": "NVML total energy"}
    assert sensors(2, CUDA_VISIBLE_DEVICES="0") == {"GPU:0": "NVML total energy"}


def test_what_a_container_was_given_is_all_that_nvml_sees() -> None:
    assert sensors(2, NVIDIA_VISIBLE_DEVICES="3,5").keys() == {"GPU:0", "GPU:1"}


@pytest.mark.parametrize(
    ("value", "reason", "remedy"),
    [
        ("", "sees no GPU", "CUDA_VISIBLE_DEVICES=0"),
        ("-1", "sees no GPU", "Unset it"),
        ("MIG-GPU-8932f930/1/0", "MIG", "nvidia-smi -mig 0"),
    ],
)
def test_a_program_without_a_gpu_of_its_own_is_told_why(value: str, reason: str, remedy: str) -> None:
    library = FakeNvml([Card(), Card()])
    probe = NvmlMeter(library, environment={"CUDA_VISIBLE_DEVICES": value}).probe()
    assert not probe.available
    assert reason in probe.reason
    assert remedy in probe.remedy
    assert library.started == 0


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({}, True),
        ({"CUDA_VISIBLE_DEVICES": "1"}, True),
        ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, False),
        ({"CUDA_VISIBLE_DEVICES": "GPU-8932f931"}, False),
    ],
)
def test_gpus_that_differ_may_be_numbered_otherwise_by_cuda(environment: dict[str, str], said: bool) -> None:
    mixed = FakeNvml([Card(), Card(model="NVIDIA T400")])
    probe = NvmlMeter(mixed, environment=environment).probe()
    assert ("by speed" in probe.reason, "PCI_BUS_ID" in probe.remedy) == (said, said)
    alike = FakeNvml([Card(), Card()])
    assert "by speed" not in NvmlMeter(alike, environment=environment).probe().reason


def test_a_gpu_that_comes_back_has_a_new_handle_and_a_gap_in_its_trace() -> None:
    """It falls off the bus, is reset, and counts from zero: noted, unknown, and never negative."""
    library = FakeNvml([Card(energy_mj=0)])
    (channel,) = NvmlMeter(library).open()
    track = Track(channel.domain, channel.quantity)
    for tenth in range(60):
        card = library.cards[0]
        card.energy_mj = (card.energy_mj or 0) + 10_000
        if tenth == 20:
            card.lost = True
        if tenth == 50:
            library.cards[0] = Card(energy_mj=0)
        try:
            track.saw(tenth * 100_000_000, channel.read())
        except MeterError as error:
            track.failed(tenth * 100_000_000, error.message)
    trace = track.finish()
    assert trace is not None
    assert [trace.gap.sum(), trace.energy_j.min() >= 0] == [1, True]
    said = " ".join(note.text for note in track.notes)
    assert said.count("fell off the bus") == 1
    assert "can be read again" in said
    assert "went back" in said


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
        (FakeNvml(init_code=18), "was updated while it was in use", "Reboot"),
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
