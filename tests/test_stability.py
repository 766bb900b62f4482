"""The gate: steady, near idle and cool, or it says why not."""

import numpy as np
import pytest

from joulemap.devices import Domain
from joulemap.errors import InputError
from joulemap.stability import GateSettings, judge, kind_of

CPU = Domain("CPU:0", "CPU:0")
GPU = Domain("GPU:0", "GPU:0")
DRAM = Domain("DRAM:0", "CPU:0")


def samples(level_w, spread, count=20, seed=0):
    """Samples with exactly this mean and coefficient of variation."""
    noise = np.random.default_rng(seed).normal(size=count)
    noise = (noise - noise.mean()) / noise.std(ddof=1)
    return level_w * (1 + spread * noise)


def test_a_quiet_machine_is_stable():
    verdict = judge(
        {CPU: samples(50, 0.029), GPU: samples(122, 0.009), DRAM: samples(9, 0.029)},
        {"CPU:0": 49.0, "GPU:0": 120.0, "DRAM:0": 9.0},
        {"CPU:0": 54.9, "GPU:0": 39.9},
    )
    assert verdict.stable
    assert verdict.reasons == ()


@pytest.mark.parametrize(("domain", "limit"), [(CPU, 0.03), (DRAM, 0.03), (GPU, 0.01)])
def test_each_kind_has_its_own_limit_of_spread(domain, limit):
    assert judge({domain: samples(100, limit * 0.99)}).stable
    verdict = judge({domain: samples(100, limit * 1.01)})
    assert not verdict.stable
    assert f"{domain.name} varies by" in verdict.reasons[0]


def test_a_steady_but_raised_plateau_is_not_idle():
    """FECoM's gate let 1,409 of 4,650 calls start like this; their net energies came out negative."""
    verdict = judge({GPU: samples(160, 0.002)}, {"GPU:0": 122.0})
    assert verdict.reasons == ("GPU:0 draws 160 W, while idle is 122 W",)


def test_without_a_known_level_the_lowest_seen_counts():
    fell = np.concatenate((samples(300, 0.002), samples(100, 0.002)))
    assert judge({GPU: fell}).stable
    assert not judge({GPU: fell[::-1]}).stable


def test_old_samples_are_forgotten():
    assert judge({GPU: [*samples(300, 0.5), *samples(100, 0.002)]}, {"GPU:0": 100.0}).stable


def test_heat_keeps_the_gate_shut():
    verdict = judge({GPU: samples(120, 0.001)}, temperatures_c={"GPU:0": 41.0, "CPU:0": 40.0, "XPU:0": 99.0})
    assert verdict.reasons == ("GPU:0 is at 41 °C, over 40 °C",)


def test_work_keeps_the_gate_shut_whatever_the_power():
    verdict = judge({CPU: samples(50, 0.01)}, load_percent={"CPU": 60.0, "GPU:0": 4.0, "XPU:0": 99.0})
    assert verdict.reasons == ("CPU is busy at 60 %, over 10 %",)
    assert judge({CPU: samples(50, 0.01)}, load_percent={"CPU": 9.0}).stable


def test_what_cannot_be_judged_is_noted_and_does_not_keep_the_gate_shut():
    verdict = judge({CPU: samples(50, 0.01), GPU: samples(120, 0.001)}, {"CPU:0": 50.0}, {"GPU:0": 30.0})
    assert verdict.stable
    level, temperature = verdict.notes
    assert level.startswith("The level of GPU:0 could not be judged")
    assert temperature.startswith("The temperature of the CPU could not be judged")
    everything = judge({CPU: samples(50, 0.01)}, {"CPU:0": 50.0}, {"CPU:0": 40.0})
    assert everything.notes == ()


def test_too_few_samples_are_not_a_verdict():
    assert judge({CPU: [1.0, 1.0]}).reasons == ("CPU:0 has 2 of 20 samples",)
    assert judge({CPU: [1.0, 1.0]}, settings=GateSettings(samples=2)).stable


def test_every_reason_is_named():
    verdict = judge({CPU: samples(90, 0.2), GPU: samples(300, 0.1)}, {"CPU:0": 50.0}, {"CPU:0": 80.0})
    assert [reason.split()[0] for reason in verdict.reasons] == ["CPU:0", "CPU:0", "GPU:0", "CPU:0"]


def test_a_domain_that_draws_nothing_is_steady():
    assert judge({CPU: [0.0] * 20}).stable


def test_settings_that_can_never_be_met_are_refused():
    with pytest.raises(InputError):
        GateSettings(samples=1)
    with pytest.raises(InputError):
        GateSettings(above_idle=0.0)


def test_kinds():
    assert [kind_of(domain) for domain in (CPU, GPU, DRAM)] == ["CPU", "GPU", "DRAM"]
    assert kind_of(Domain("XPU", "xpu:0")) == "XPU"
    assert judge({Domain("XPU", "xpu:0"): samples(10, 0.02)}).stable
