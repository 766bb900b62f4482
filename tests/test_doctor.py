"""The doctor: which meters work, why the others do not, what to do, and what their sensors are like."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from joulemap.commands import doctor
from joulemap.devices import Domain
from joulemap.errors import MeterError
from joulemap.meters import Probe
from joulemap.meters.available import every_meter, open_meters
from joulemap.meters.estimate import EstimateMeter
from joulemap.meters.synthetic import Operation, Sensor, SyntheticMeter, truth_of


def run(*arguments, **env):
    done = subprocess.run(
        [sys.executable, "-m", "joulemap", "doctor", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "", **env},
        timeout=120,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def meter(name, device="CPU:0", domains=("package-0",), broken=False):
    """A meter that works, made of a synthetic sensor a domain, by another name."""

    class Named:
        def __init__(self):
            self.name = name
            self.open_now = 0

        def probe(self):
            return Probe(True, f"{name} works.")

        def open(self):
            if broken:
                raise MeterError("It went away.", "Plug it in.")
            truths = [truth_of([Operation("", 9.0, 50.0)], Domain(one, device)) for one in domains]
            channels = [SyntheticMeter(truth, [Sensor()]).open()[0] for truth in truths]
            self.open_now += len(channels)
            for channel in channels:
                channel.close = self.closed
            return channels

        def closed(self):
            self.open_now -= 1

        def facts(self):
            return {f"{device} temperature_c": 33.0}

    return Named()


def test_the_exit_code_says_whether_anything_is_measured():
    done = run("--json")
    content = json.loads(done.stdout)
    assert done.returncode == (0 if content["measured"] else doctor.ONLY_ESTIMATES)
    assert content["format"] == 1
    assert {one["name"] for one in content["meters"]} >= {"rapl", "estimate"}
    for one in content["meters"]:
        assert one["state"] in ("measures", "estimates", "not available")
        assert one["reason"]
        assert one["domains"] or one["state"] == "not available"
    estimate = content["meters"][-1]
    assert [domain["provenance"] for domain in estimate["domains"]] == ["estimated"] * 2


def test_the_table_is_plain_when_piped_and_never_opens_rapl_to_everyone():
    done = run()
    assert "\x1b[" not in done.stdout
    assert "why, and what to do" in done.stdout
    assert "JOULEMAP_WATTS_PER_CORE" in done.stdout
    assert "chmod" not in done.stdout


def test_a_setting_that_makes_no_sense_is_a_reason_not_a_crash():
    done = run("--json", JOULEMAP_WATTS_PER_CORE="many")
    estimate = json.loads(done.stdout)["meters"][-1]
    assert estimate["state"] == "not available"
    assert "many" in estimate["reason"]


def test_characterising_live():
    done = run("--characterise", "--seconds", "0.3", "--json")
    found = json.loads(done.stdout)["characteristics"]
    assert {one["quantity"] for one in found} <= {"energy_j", "power_w"}
    assert found[0].keys() >= {
        "period_s",
        "window_s",
        "lag_s",
        "quantum",
        "noise_w",
        "read_cost_s",
        "aliases_s",
    }
    assert "a read costs" in run("--characterise", "--seconds", "0.3").stdout


def test_help_explains_the_exit_codes():
    said = " ".join(run("--help").stdout.split())
    assert "with 3 when energy can only be estimated" in said


def test_examining_lists_domains_and_leaves_nothing_open():
    works = meter("rapl", domains=("package-0", "dram-0"))
    finding = doctor.examine(works)
    assert finding.state == "measures"
    assert [domain["name"] for domain in finding.domains] == ["package-0", "dram-0"]
    assert works.open_now == 0
    finding = doctor.examine(meter("nvml", broken=True))
    assert (finding.state, finding.reason, finding.remedy) == (
        "not available",
        "It went away.",
        "Plug it in.",
    )


def test_advice_names_the_step_times_that_alias():
    from joulemap.meters.characterise import Characteristics

    found = Characteristics(
        "GPU:0", "nvml", "measured", "power_w", 90, 8e-6, 1e-3, 0.1, 0.001, 1.0, 0.03, 0.01, 0.9
    )
    (said,) = doctor._advice(found)
    assert "100 ms, 50 ms, 33 ms would alias" in said
    assert doctor._cells(found)[:3] == ["100 ms", "30 ms", "30.0 %"]


@pytest.mark.parametrize(
    ("window_s", "said"), [(1.0, "late by up to 1.0 s"), (0.1, "no step time aliases"), (None, "not known")]
)
def test_advice_for_other_sensors(window_s, said):
    from joulemap.meters.characterise import Characteristics

    found = Characteristics("GPU:0", "nvml", "measured", "power_w", 90, 8e-6, 1e-3, 0.1, window_s=window_s)
    assert said in next(doctor._advice(found))
    assert "computed" in next(doctor._advice(replace(found, provenance="estimated")))
    few = Characteristics(
        "GPU:0", "nvml", "measured", "power_w", 2, 8e-6, 1e-3, no_load="Nothing to load it."
    )
    assert "too few" in next(doctor._advice(few))
    assert list(doctor._advice(few))[-1] == "Nothing to load it."


def test_every_reading_of_a_gpu_is_characterised_under_one_load(monkeypatch):
    """The counter is the meter; instant and average power are looked at beside it."""
    works = [Operation("matmul", 0.2, 500.0), Operation("", 0.2, 100.0)] * 50
    truth = truth_of(works, Domain("GPU:0", "GPU:0"))
    asked = []

    class WithReadingsBeside:
        name = "nvml"

        def __init__(self):
            self.counter = SyntheticMeter(truth, [Sensor("energy_j", 0.1)], speed=10.0)

        def probe(self):
            return Probe(True, "Works.")

        def open(self):
            return self.counter.open()

        def facts(self):
            return {}

        def beside(self):
            sensors = [Sensor("power_w", 0.1, 0.025), Sensor("power_w", 0.1, 1.0)]
            return [SyntheticMeter(truth, [one], speed=10.0).open()[0] for one in sensors]

    def load(index):
        def work(seconds):
            asked.append((index, seconds))
            raise MeterError("Nothing here can load the GPU.", "Install PyTorch.")

        return work

    monkeypatch.setattr("joulemap.meters.load.gpu_bursts", load)
    found = list(doctor._characterise([WithReadingsBeside()], 0.5))
    assert [one.quantity for one in found] == ["energy_j", "power_w", "power_w"]
    assert asked == [(0, 0.5)]
    assert all(one.updates > 0 for one in found)
    assert found[0].no_load == "Nothing here can load the GPU. Install PyTorch."
    lines = [line for one in found for line in doctor._advice(one)]
    assert lines.count(found[0].no_load) == 3


def test_cpus_are_watched_together_and_each_gpu_by_itself():
    with open_meters(
        [meter("rapl", "CPU:0", ("package-0", "dram-0")), meter("gpu", "GPU:1", ("GPU:1",))]
    ) as some:
        together = doctor._by_device(some.channels)
    assert [[one.domain.name for one in group] for group in together] == [["package-0", "dram-0"], ["GPU:1"]]
    assert doctor._load_for(together[0][0]) is not None
    assert doctor._load_for(together[1][0]) is not None


def test_every_meter_has_a_name_of_its_own():
    names = [one.name for one in every_meter()]
    assert len(set(names)) == len(names)
    assert names[-1] == "estimate"


def test_perf_is_not_opened_beside_rapl_nor_an_estimate_beside_a_measurement():
    rapl, perf = meter("rapl"), meter("perf")
    with open_meters([rapl, perf, EstimateMeter()]) as opened:
        assert [channel.domain.name for channel in opened.channels] == ["package-0"]
        assert set(opened.left_out) == {"perf", "estimate"}
        assert opened.facts() == {"CPU:0 temperature_c": 33.0}
    assert rapl.open_now == perf.open_now == 0


def test_an_estimate_stands_in_for_the_cpu_only():
    with open_meters([meter("nvml", "GPU:0", ("GPU:0",)), EstimateMeter()]) as opened:
        assert [channel.domain.name for channel in opened.channels] == ["GPU:0", "CPU", "DRAM"]


def test_the_same_domain_is_opened_once():
    first, second = meter("rapl"), meter("hwmon", domains=("package-0", "board"))
    with open_meters([first, second]) as opened:
        assert [channel.domain.name for channel in opened.channels] == ["package-0", "board"]
        assert second.open_now == 1


def test_a_meter_that_fails_to_open_is_left_out_with_its_reason():
    with open_meters([meter("rapl", broken=True), EstimateMeter()]) as opened:
        assert opened.left_out["rapl"].reason == "It went away."
        assert [channel.domain.name for channel in opened.channels] == ["CPU", "DRAM"]
