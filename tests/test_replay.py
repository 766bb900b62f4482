"""Replaying recordings: the counter jumps as it did, in real or accelerated time."""

import numpy as np
import pytest

from joulemap.devices import Domain
from joulemap.errors import InputError, MeterError
from joulemap.meters.readings import Readings, watch
from joulemap.meters.replay import ReplayMeter
from joulemap.traces import PowerTrace

S = 1_000_000_000
GPU = Domain("GPU:0", "GPU:0", sensor="nvml", update_period_s=0.1)


class Clock:
    now_ns = 77

    def __call__(self):
        return self.now_ns


@pytest.fixture(name="clock")
def make_clock():
    return Clock()


@pytest.fixture(name="trace")
def make_trace():
    return PowerTrace(GPU, np.arange(5) * S // 10 + 1_000 * S, [1.0, 2.0, 3.0, 4.0])


def test_a_counter_stands_still_and_jumps_at_the_edges(trace, clock):
    (channel,) = ReplayMeter([trace], clock_ns=clock).open()
    values = []
    for _ in range(9):
        values.append(channel.read())
        clock.now_ns += S // 20
    assert values == [0, 0, 1, 1, 3, 3, 6, 6, 10]
    clock.now_ns += 100 * S
    assert channel.read() == 10
    channel.close()


def test_speed_and_loop(trace, clock):
    (channel,) = ReplayMeter([trace], speed=10.0, loop=True, clock_ns=clock).open()
    assert channel.domain.update_period_s == pytest.approx(0.01)
    clock.now_ns += S // 100
    assert channel.read() == 1
    clock.now_ns += 4 * S // 100
    assert channel.read() == 11
    assert ReplayMeter([trace], speed=10.0).seconds == pytest.approx(0.04)


def test_traces_stay_aligned(trace, clock):
    later = PowerTrace(Domain("CPU", "CPU"), [1_000 * S + S // 5, 1_000 * S + 3 * S // 10], [5.0])
    gpu, cpu = ReplayMeter([trace, later], clock_ns=clock).open()
    clock.now_ns += 29 * S // 100
    assert (gpu.read(), cpu.read()) == (3, 0)
    clock.now_ns += S // 100
    assert (gpu.read(), cpu.read()) == (6, 5)


def test_raw_power_readings_come_back_as_power(clock):
    t = np.array([0, S, 2 * S])
    readings = Readings(GPU, "power_w", t, t, np.array([100.0, 300.0, 200.0]))
    (channel,) = ReplayMeter([readings], clock_ns=clock).open()
    assert channel.quantity == "power_w"
    clock.now_ns += S
    assert channel.read() == 300


def test_what_was_recorded_comes_back_through_the_protocol(trace):
    """Read by its own schedule, in real time, fourfold: the energy is that of the recording."""
    meter = ReplayMeter([trace], speed=4.0)
    assert meter.probe().available
    assert "GPU:0" in meter.probe().reason
    assert meter.facts() == {}
    channels = meter.open()
    (seen,) = watch(channels, meter.seconds + 0.05)
    assert seen.to_trace().total_j == pytest.approx(10.0)
    assert seen.domain.provenance == "measured"
    assert seen.domain.sensor == "replay of nvml"


def test_nothing_to_play_is_said():
    empty = PowerTrace(GPU, [], [])
    said = ReplayMeter([empty]).probe()
    assert not said.available
    with pytest.raises(MeterError):
        ReplayMeter([empty]).open()
    assert ReplayMeter([empty]).seconds == 0


@pytest.mark.parametrize("speed", [0.0, -1.0, float("nan")])
def test_a_bad_speed_is_refused(trace, speed):
    with pytest.raises(InputError):
        ReplayMeter([trace], speed=speed)


def test_readings_must_fit_together():
    with pytest.raises(InputError):
        Readings(GPU, "power_w", np.zeros(2, np.int64), np.zeros(2, np.int64), np.zeros(3))


def test_a_reading_that_fails_is_left_out():
    class Moody:
        domain, quantity, wraps_at_j = GPU, "energy_j", None

        def __init__(self):
            self.calls = 0

        @property
        def schedule(self):
            from joulemap.meters.schedule import Every

            return Every(0.001)

        def read(self):
            self.calls += 1
            if self.calls % 2:
                raise MeterError("not now")
            return float(self.calls)

        def close(self):
            pass

    (seen,) = watch([Moody()], 0.05)
    assert len(seen) > 0
    assert (np.diff(seen.value) == 2).all()


def test_a_schedule_that_knows_when_a_value_came_about_stamps_it(trace):
    class Knows:
        def next_ns(self, now_ns):
            return now_ns + 1_000_000

        def saw(self, before_ns, after_ns, changed):
            pass

        def stamp_ns(self, before_ns, after_ns):
            return before_ns - 7_000

    (channel,) = ReplayMeter([trace], speed=4.0).open()
    channel.schedule = Knows()
    (seen,) = watch([channel], 0.05, until=lambda: channel.read() == 10)
    new = np.flatnonzero(np.diff(seen.value)) + 1
    assert (seen.before_ns[new] - seen.stamp_ns[new] == 7_000).all()
    assert seen.to_trace().edges_ns[-1] == seen.stamp_ns[new[-1]]
