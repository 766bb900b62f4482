"""Synthetic sensors: what they show of a known truth."""

import numpy as np
import pytest

from joulemap.accounting import attribute
from joulemap.devices import Domain
from joulemap.errors import InputError
from joulemap.meters.synthetic import Operation, Sensor, SyntheticMeter, sense, truth_of

S = 1_000_000_000
WAVE = [Operation("matmul", 1.0, 500.0), Operation("", 1.0, 100.0)]


def test_the_truth_adds_up():
    truth = truth_of(WAVE, repeat=3, start_ns=7 * S)
    assert truth.energy_j == pytest.approx({"matmul": 1500, "": 300})
    assert truth.power.total_j == pytest.approx(1800)
    assert len(truth.events) == 3
    assert truth.events.span_ns == (7 * S, 12 * S)
    assert truth.power.domain.provenance == "estimated"


def test_a_perfect_sensor_tells_the_truth():
    truth = truth_of(WAVE, repeat=2)
    shown = sense(truth.power, Sensor(period_s=0.01)).to_trace()
    assert shown.energy_between(0, 4 * S) == pytest.approx(truth.power.total_j, rel=0.01)
    rows = {row["name"]: row["energy_j"] for row in attribute(truth.events, shown).to_records()}
    assert rows["matmul"] == pytest.approx(truth.energy_j["matmul"], rel=0.01)


def test_a_moving_average_turns_a_square_wave_into_a_triangle():
    truth = truth_of(WAVE, repeat=4)
    shown = sense(truth.power, Sensor("power_w", 0.1, window_s=1.0))
    steps = np.abs(np.diff(shown.value[20:60]))
    assert steps == pytest.approx(40.0)


def test_a_part_time_sensor_aliases_with_the_load():
    """50 ms on, 50 ms off against 25 ms seen of each 100 ms: it sees one of the two, always the same."""
    fast = [Operation("a", 0.05, 500.0), Operation("", 0.05, 100.0)]
    truth = truth_of(fast, repeat=50)
    seen = sense(truth.power, Sensor("power_w", 0.1, window_s=0.025)).value
    assert seen[5:45] == pytest.approx(100.0)
    assert sense(truth.power, Sensor("power_w", 0.1)).value[5:45] == pytest.approx(300.0)


def test_lag_quantum_and_phase():
    truth = truth_of(WAVE)
    sensor = Sensor("power_w", 0.1, lag_s=0.3, quantum=7.0, phase_s=0.05)
    shown = sense(truth.power, sensor)
    assert shown.after_ns[0] == S // 20
    assert np.remainder(shown.value, 7.0) == pytest.approx(0.0)
    first_low = shown.after_ns[np.argmax(shown.value < 200)]
    assert first_low == pytest.approx(1.35 * S, abs=0.1 * S)


def test_noise_is_seeded():
    truth = truth_of([Operation("a", 100.0, 500.0)])
    noisy = [sense(truth.power, Sensor("power_w", noise_w=5.0, seed=seed)).value for seed in (1, 1, 2)]
    assert (noisy[0] == noisy[1]).all()
    assert (noisy[0] != noisy[2]).any()
    assert noisy[0].std() == pytest.approx(5.0, rel=0.1)
    counter = sense(truth.power, Sensor(noise_w=5000.0)).value
    assert (np.diff(counter) >= 0).all()


def test_the_meter_plays_all_its_sensors():
    now = [0]
    meter = SyntheticMeter(
        truth_of(WAVE), [Sensor(), Sensor("power_w", 0.1, window_s=0.025)], clock_ns=lambda: now[0]
    )
    assert meter.probe().available
    assert meter.facts() == {}
    counter, power = meter.open()
    first = counter.read()
    now[0] += S
    assert counter.read() - first == pytest.approx(meter.truth().power.energy_between(0, S))
    assert power.read() == pytest.approx(500.0)
    now[0] += S // 10
    assert power.read() == pytest.approx(100.0)


@pytest.mark.parametrize("operations", [[], [Operation("a", 0.0, 1.0)], [Operation("a", 1.0, -1.0)]])
def test_impossible_operations_are_refused(operations):
    with pytest.raises(InputError):
        truth_of(operations, Domain("CPU", "CPU"))
