"""Characterising sensors: synthetic ones with known settings, live ones, and the H200."""

import time
from pathlib import Path

import numpy as np
import pytest

from joulemap.devices import Domain
from joulemap.errors import MeterError
from joulemap.meters.characterise import FEWEST_UPDATES, characterise, characterise_together, characteristics
from joulemap.meters.estimate import EstimateMeter
from joulemap.meters.load import bursts, cpu_bursts, gpu_bursts
from joulemap.meters.readings import Readings
from joulemap.meters.replay import ReplayMeter
from joulemap.meters.synthetic import Operation, Sensor, SyntheticMeter, sense, truth_of

S = 1_000_000_000
SQUARE_WAVE = Path(__file__).parents[2] / "shared" / "data" / "h200" / "square-wave.npz"
H200 = {"power_usage": ("power_w", 0, 4), "instant": ("power_w", 1, 5), "energy": ("energy_j", 2, 7)}


@pytest.fixture(name="truth", scope="module")
def make_truth():
    """Bursts of many lengths, and quiet between them."""
    random = np.random.default_rng(3)
    operations = [Operation("", 3.0, 100.0)]
    for seconds in random.choice([0.005, 0.02, 0.05, 0.2, 1.0], 60):
        operations += [
            Operation("burst", seconds, 500.0),
            Operation("", random.uniform(0.5, 1.5) * seconds, 100.0),
        ]
    return truth_of([*operations, Operation("", 3.0, 100.0)])


def read_densely(truth, sensor, every_s=0.004, takes_s=0.0):
    """A replay of the sensor, polled at a steady rate."""
    now = [0]
    (channel,) = ReplayMeter([sense(truth.power, sensor)], clock_ns=lambda: now[0]).open()
    before = np.arange(0, int(truth.power.edges_ns[-1]), round(every_s * S))
    values = []
    for t in before.tolist():
        now[0] = t + round(takes_s * S)
        values.append(channel.read())
    return Readings(channel.domain, sensor.quantity, before, before + round(takes_s * S), np.array(values))


def load_of(truth):
    return bursts(truth.events.start_ns, truth.events.end_ns)


@pytest.mark.parametrize("quantity", ["power_w", "energy_j"])
@pytest.mark.parametrize("period_s", [0.02, 0.1])
def test_a_continuous_sensor(truth, quantity, period_s):
    sensor = Sensor(quantity, period_s, quantum=0.001, noise_w=1.0)
    found = characteristics(read_densely(truth, sensor, period_s / 20, takes_s=2e-5), load_of(truth))
    assert found.period_s == pytest.approx(period_s, rel=0.02)
    assert found.kind == "continuous"
    assert found.duty == 1
    assert found.aliases_s() == ()
    assert found.quantum == pytest.approx(0.001)
    assert found.noise_w == pytest.approx(1.0, rel=0.5)
    assert found.read_cost_s == pytest.approx(2e-5)
    assert found.resolved


@pytest.mark.parametrize(("window_s", "lag_s"), [(1.0, 0.0), (0.5, 0.1), (1.0, 0.25)])
def test_a_moving_average(truth, window_s, lag_s):
    sensor = Sensor("power_w", 0.1, window_s, lag_s, noise_w=2.0)
    found = characteristics(read_densely(truth, sensor), load_of(truth))
    assert found.kind == "moving average"
    assert found.window_s == pytest.approx(window_s, rel=0.1)
    assert found.lag_s == pytest.approx(lag_s, abs=0.03)
    assert found.aliases_s() == ()


@pytest.mark.parametrize("quantity", ["power_w", "energy_j"])
@pytest.mark.parametrize("window_s", [0.01, 0.025, 0.05])
def test_a_part_time_sensor(truth, quantity, window_s):
    sensor = Sensor(quantity, 0.1, window_s, lag_s=0.02, noise_w=2.0)
    found = characteristics(read_densely(truth, sensor), load_of(truth))
    assert found.kind == "part-time"
    assert found.duty == pytest.approx(window_s / 0.1, abs=0.04)  # stamps are good to 2 ms
    assert found.aliases(0.1)
    assert not found.aliases(0.137)


def test_step_times_that_alias_are_those_longer_than_what_is_seen(truth):
    found = characteristics(read_densely(truth, Sensor("power_w", 0.1, 0.028)), load_of(truth))
    assert found.aliases_s() == pytest.approx([0.1, 0.05, 0.0333], rel=0.02)
    assert found.aliases(0.051)
    assert not found.aliases(0.02)


def test_without_a_load_the_window_is_not_known(truth):
    found = characteristics(read_densely(truth, Sensor(quantum=0.5, noise_w=3.0)))
    assert found.period_s == pytest.approx(0.1, rel=0.01)
    assert found.quantum == pytest.approx(0.5)
    assert found.window_s is None
    assert found.kind == "not known"
    assert found.duty is None
    assert not found.aliases(0.1)


def test_a_sensor_that_never_changes_says_nothing(truth):
    still = truth_of([Operation("", 5.0, 100.0)])
    found = characteristics(read_densely(still, Sensor("power_w")), load_of(truth))
    assert found.updates == 0
    assert found.period_s is None
    assert not found.resolved


def test_a_load_that_explains_nothing_gives_no_window(truth):
    noise = truth_of([Operation("", 40.0, 100.0)])
    found = characteristics(read_densely(noise, Sensor("power_w", noise_w=5.0)), load_of(truth))
    assert found.period_s == pytest.approx(0.1, rel=0.02)
    assert found.window_s is None


def test_a_sensor_faster_than_its_reading_gives_only_a_bound(truth):
    found = characteristics(read_densely(truth, Sensor(period_s=0.001), every_s=0.01), load_of(truth))
    assert not found.resolved
    assert found.window_s is None


def test_a_wrap_is_not_a_negative_power(truth):
    seen = read_densely(truth, Sensor())
    wrapped = Readings(seen.domain, seen.quantity, seen.before_ns, seen.after_ns, seen.value % 900.0, 900.0)
    assert characteristics(wrapped, load_of(truth)).kind == "continuous"


def test_a_live_channel_is_read_beside_its_load(truth):
    """In real time, ten times as fast as it was scheduled."""
    asked = []

    def load(seconds):
        asked.append(seconds)
        return load_of(truth)

    (channel,) = SyntheticMeter(truth, [Sensor("power_w", 0.2, noise_w=0.1)], speed=10.0).open()
    found = characterise(channel, 0.6, load)
    assert asked == [0.6]
    assert found.domain == "GPU:0"
    assert found.updates > 0


def test_a_load_that_fails_leaves_the_rest(truth):
    def broken(seconds):
        raise MeterError("no load today")

    (channel,) = SyntheticMeter(truth, [Sensor("power_w", 0.2, noise_w=0.1)], speed=10.0).open()
    found = characterise(channel, 0.4, broken)
    assert found.updates > 0
    assert found.no_load == "no load today"


def test_readings_of_one_device_are_taken_by_turns_under_one_load(truth):
    """No update of any is missed while the load runs. Time goes on with every reading, so that no machine is
    too slow for that."""
    sensors = [Sensor("energy_j", 0.1), Sensor("power_w", 0.2, 0.025), Sensor("power_w", 0.1, 1.0)]
    shown = [sense(truth.power, one) for one in sensors]
    end_ns = max(int(one.after_ns[-1]) for one in shown)
    now, asked = [0], []

    def clock_ns():
        now[0] += 10 * S // 1000
        return now[0]

    def load(seconds):
        asked.append(seconds)
        while now[0] < end_ns + S:
            time.sleep(0.001)
        return load_of(truth)

    found = characterise_together(ReplayMeter(shown, clock_ns=clock_ns).open(), 0.0, load)
    assert asked == [0.0]
    assert [one.quantity for one in found] == ["energy_j", "power_w", "power_w"]
    assert [one.updates for one in found] == [np.count_nonzero(np.diff(one.value)) for one in shown]
    assert found[0].updates > found[1].updates > FEWEST_UPDATES
    assert {one.no_load for one in found} == {""}


def test_the_cpu_load_says_when_it_worked():
    load = cpu_bursts(1.6)
    assert load.total_j > 0
    with pytest.raises(MeterError):
        cpu_bursts(0.0)


def frameworks(folder, **modules):
    """Modules that stand in for frameworks; one that is not given cannot be imported."""
    for name in ("torch", "cupy", "jax"):
        (folder / f"{name}.py").write_text(modules.get(name, f"raise ImportError('no {name} here')"))


def test_without_any_framework_the_gpu_load_says_what_to_do(tmp_path, monkeypatch):
    frameworks(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(MeterError, match="no torch here; cupy: no cupy here; jax: no jax here") as caught:
        gpu_bursts(0)(0.1)
    assert "Install PyTorch, CuPy or JAX" in caught.value.hint


CUPY = """
import time
ones = lambda shape, kind: Matrix()
float16 = None
class Matrix:
    def __matmul__(self, other):
        time.sleep(0.001)
class cuda:
    class Device:
        def __init__(self, index):
            assert index == 1
        def use(self):
            pass
    class Stream:
        class null:
            synchronize = staticmethod(lambda: None)
"""


def test_the_gpu_load_takes_whichever_framework_works(tmp_path, monkeypatch):
    """A PyTorch without this GPU gives way to the next."""
    broken = (
        "bfloat16 = None\ndef randn(*shape, device, dtype): raise AssertionError('not compiled with CUDA')"
    )
    frameworks(tmp_path, torch=broken, cupy=CUPY)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    load = gpu_bursts(1)(1.6)
    assert load.total_j > 0


def test_the_estimate_of_this_machine_can_be_characterised():
    cpu, *rest = EstimateMeter().open()
    found = characterise(cpu, 0.3)
    assert found.quantity == "energy_j"
    assert 0 < found.read_cost_s < 0.3
    for channel in (cpu, *rest):
        channel.close()


@pytest.fixture(name="h200", scope="module")
def characterise_h200():
    """What is found on the H200 with ground-truth bursts, fed by a replay polled as it was polled there."""
    if not SQUARE_WAVE.exists():
        pytest.skip("the recorded square wave is not at ../shared/data/h200")
    with np.load(SQUARE_WAVE) as data:
        rows, marks = data["rows"], data["marks"]
    found = {}
    for name, (quantity, when, value) in H200.items():
        now = [0]
        raw = Readings(
            Domain(name, "GPU:0"), quantity, rows[:, when], rows[:, when + 1], rows[:, value] / 1000
        )
        (channel,) = ReplayMeter([raw], clock_ns=lambda now=now: now[0]).open()
        values = []
        for t in (raw.after_ns - raw.after_ns[0]).tolist():
            now[0] = t
            values.append(channel.read())
        played = Readings(channel.domain, quantity, raw.before_ns, raw.after_ns, np.array(values))
        found[name] = characteristics(played, bursts(marks[:, 0], marks[:, 1]))
    return found


@pytest.mark.external
def test_h200_all_readings_update_every_100_ms(h200):
    for name in H200:
        assert h200[name].period_s == pytest.approx(0.1, rel=0.04)
        assert h200[name].quantum == pytest.approx(0.001)


@pytest.mark.external
def test_h200_average_power_is_a_moving_average_of_a_second(h200):
    assert h200["power_usage"].kind == "moving average"
    assert h200["power_usage"].window_s == pytest.approx(1.0, rel=0.1)


@pytest.mark.external
def test_h200_instant_power_sees_a_quarter(h200):
    assert h200["instant"].kind == "part-time"
    assert h200["instant"].window_s == pytest.approx(0.025, rel=0.2)
    assert h200["instant"].duty == pytest.approx(0.25, abs=0.05)
    assert h200["instant"].aliases(0.05)


@pytest.mark.external
def test_h200_the_counter_misses_nothing(h200):
    assert h200["energy"].kind == "continuous"
    assert h200["energy"].read_cost_s == pytest.approx(0.0039, rel=0.3)
    assert abs(h200["energy"].lag_s) < 0.01
