"""The sampling loop, on a clock that the tests turn: no test here waits."""

import threading
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulemap.devices import Domain
from joulemap.errors import MeterError
from joulemap.meters.schedule import Every
from joulemap.monitor.quality import Score, Tally
from joulemap.monitor.sampler import MOST_NOTES, Sampler
from joulemap.monitor.timeline import Timeline
from joulemap.monitor.track import Track
from joulemap.monitor.waiter import PipeWaiter
from joulemap.traces import PowerTrace

from .monitor_meters import FunctionChannel, FunctionMeter, open_descriptors

CPU = Domain("package-0", "CPU:0", update_period_s=0.001)
MS, S = 1_000_000, 1_000_000_000
EPOCH_NS = 1_700_000_000 * S


@dataclass
class World:
    """A monotonic clock that moves when somebody waits, and a system clock that can be stepped."""

    elapsed_ns: int = 0
    stepped_ns: int = 0
    end_ns: int = 10 * S
    stall_at_ns: int | None = None
    stopped: bool = False

    def monotonic_ns(self):
        return 5 * S + self.elapsed_ns

    def system_ns(self):
        return EPOCH_NS + self.elapsed_ns + self.stepped_ns

    def wait(self, seconds):
        self.elapsed_ns += round(seconds * S)
        if self.stall_at_ns is not None and self.elapsed_ns >= self.stall_at_ns:
            self.elapsed_ns, self.stall_at_ns = self.elapsed_ns + 5 * S, None
        self.stopped = self.elapsed_ns >= self.end_ns
        return False

    def sample(self, *channels):
        sampler = Sampler([FunctionMeter(list(channels))], Timeline.start(self.monotonic_ns, self.system_ns))
        batches = []
        summary = sampler.run(self, batches.append)
        return batches, summary


def joined(batches, name="package-0"):
    """The parts of one domain, which must chain, as one trace."""
    parts = [part for batch in batches for part in batch.power if part.domain.name == name]
    for before, after in pairwise(parts):
        assert before.edges_ns[-1] == after.edges_ns[0]
    edges = np.concatenate([parts[0].edges_ns[:1], *(part.edges_ns[1:] for part in parts)])
    energy = np.concatenate([part.energy_j for part in parts])
    return PowerTrace(parts[0].domain, edges, energy, np.concatenate([part.gap for part in parts]))


def counter(world, power_w=100.0, start_j=0.0, wraps_at_j=None, period_ns=MS):
    """A counter of constant power that updates once a period."""

    def read():
        total = start_j + power_w * (world.elapsed_ns // period_ns * period_ns) / S
        return total % wraps_at_j if wraps_at_j else total

    return FunctionChannel(read, CPU, wraps_at_j=wraps_at_j)


def test_parts_chain_and_hold_all_the_energy():
    world = World()
    batches, summary = world.sample(counter(world))
    trace = joined(batches)
    assert len(batches) == 11
    assert trace.total_j == pytest.approx(1000, rel=1e-9)
    assert trace.edges_ns[0] == EPOCH_NS
    assert trace.edges_ns[-1] == EPOCH_NS + 10 * S
    assert not trace.gap.any()
    assert summary.quality.missed == 0
    assert summary.quality.reads == 1001
    assert summary.notes == ()


def test_a_counter_polled_faster_than_it_updates_has_intervals_from_update_to_update():
    world = World()
    batches, _ = world.sample(counter(world, period_ns=100 * MS))
    trace = joined(batches)
    assert set(np.diff(trace.edges_ns)) == {100 * MS}
    assert trace.power_w == pytest.approx(100.0)


def test_wraps_around_without_losing_energy():
    world = World()
    batches, summary = world.sample(counter(world, start_j=199.5, wraps_at_j=200.0))
    assert joined(batches).total_j == pytest.approx(1000, rel=1e-9)
    assert summary.notes == ()


def test_power_samples_hold_until_the_next():
    world = World()
    channel = FunctionChannel(lambda: 50.0 + (world.elapsed_ns >= 5 * S) * 100, CPU, "power_w")
    trace = joined(world.sample(channel)[0])
    assert trace.total_j == pytest.approx(5 * 50 + 5 * 150, rel=1e-9)


@pytest.mark.parametrize(("quantity", "known_j"), [("energy_j", 1000), ("power_w", 500)])
def test_a_monitor_that_was_stopped_leaves_a_gap(quantity, known_j):
    """A counter knows what flowed meanwhile; power samples do not, and claim nothing."""
    world = World(stall_at_ns=3 * S)
    channel = counter(world) if quantity == "energy_j" else FunctionChannel(lambda: 100.0, CPU, "power_w")
    batches, summary = world.sample(channel)
    trace = joined(batches)
    assert trace.gap.sum() == 1
    assert np.diff(trace.edges_ns)[trace.gap] == pytest.approx(5 * S, rel=0.01)
    assert trace.total_j == pytest.approx(known_j, rel=0.01)
    assert 495 <= summary.quality.missed <= 505


@pytest.mark.parametrize("hours", [1, -1])
def test_a_stepped_system_clock_does_not_tear_the_trace(hours):
    world = World()

    def read():
        world.stepped_ns = hours * 3600 * S * (world.elapsed_ns > 4 * S)
        return world.elapsed_ns / S

    batches, summary = world.sample(FunctionChannel(read, CPU))
    trace = joined(batches)
    assert trace.edges_ns[-1] - trace.edges_ns[0] == 10 * S
    assert not trace.gap.any()
    (note,) = summary.notes
    assert "1 h 00 min" in note.text
    assert ("forward" if hours > 0 else "back") in note.text
    assert summary.anchor.theirs_end_ns - summary.anchor.ours_end_ns == hours * 3600 * S


def test_failed_reads_are_said_once_and_tried_again():
    world = World()

    def read():
        if 2 * S < world.elapsed_ns < 4 * S:
            raise MeterError("permission denied.")
        return 100 * world.elapsed_ns / S

    batches, summary = world.sample(FunctionChannel(read, CPU))
    trace = joined(batches)
    assert [note.text for note in summary.notes] == [
        "package-0 cannot be read: permission denied. It is tried again.",
        "package-0 can be read again.",
    ]
    assert trace.total_j == pytest.approx(1000)
    assert trace.gap.sum() == 1
    assert 195 < summary.quality.failed < 205


def test_a_counter_that_goes_backwards_has_no_negative_energy():
    world = World()
    values = lambda: 100 * world.elapsed_ns / S - 300 * (world.elapsed_ns > 5 * S) + 1000  # noqa: E731
    batches, summary = world.sample(FunctionChannel(values, CPU, wraps_at_j=262_143.0))
    trace = joined(batches)
    assert "went back by 299 J" in summary.notes[0].text
    assert trace.gap.sum() == 1
    assert trace.total_j == pytest.approx(999, abs=0.1)


def test_a_frozen_counter_is_said_and_its_energy_unknown():
    world = World()
    channel = FunctionChannel(lambda: 100 * min(world.elapsed_ns / S, 4.0), CPU)
    batches, summary = world.sample(channel)
    trace = joined(batches)
    (note,) = summary.notes
    assert note.text == "package-0 has not changed for 2.01 s."
    assert trace.total_j == pytest.approx(400)
    assert trace.edges_ns[-1] == EPOCH_NS + 10 * S
    assert trace.gap[-1]


def test_a_counter_that_thaws_gives_its_energy_to_the_whole_time():
    world = World()
    frozen = lambda: 100 * (world.elapsed_ns if not 4 * S < world.elapsed_ns < 8 * S else 4 * S) / S  # noqa: E731
    trace = joined(world.sample(FunctionChannel(frozen, CPU))[0])
    assert trace.total_j == pytest.approx(1000)
    assert trace.power_w == pytest.approx(100.0)


def test_time_in_which_a_counter_stood_is_a_gap_however_few_its_updates_were():
    """What is usual cannot be told from two long intervals."""
    track = Track(CPU, "energy_j")
    for second, energy_j in enumerate([0.0, 1.0, 1.0, 1.0, 1.0, 71.0, 72.0]):
        track.saw(EPOCH_NS + second * S, energy_j)
    trace = track.take()
    assert [note.text for note in track.notes] == ["package-0 has not changed for 3.00 s."]
    assert (list(trace.energy_j), list(trace.gap)) == ([1.0, 70.0, 1.0], [False, True, False])


def test_a_counter_that_stands_at_zero_measures_zero():
    world = World()
    batches, summary = world.sample(FunctionChannel(lambda: 0.0, CPU))
    trace = joined(batches)
    assert (trace.total_j, summary.notes, trace.gap.any()) == (0.0, (), False)
    assert trace.edges_ns[-1] == EPOCH_NS + 10 * S


def test_nonsense_counts_as_failed():
    world = World()
    values = iter([1.0, float("nan"), -5.0, *range(2, 5000)])
    batches, summary = world.sample(FunctionChannel(lambda: next(values), CPU))
    assert "which cannot be right" in summary.notes[0].text
    assert (joined(batches).energy_j >= 0).all()


def test_notes_do_not_pile_up():
    world = World(end_ns=30 * S)
    values = iter(range(10**6, 0, -1))
    batches, summary = world.sample(FunctionChannel(lambda: float(next(values)), CPU))
    assert len(summary.notes) == sum(len(batch.notes) for batch in batches) == MOST_NOTES
    assert summary.notes[-1].text == "There is more to note than is kept."


def test_every_channel_has_its_own_rate_and_deadlines():
    world = World(end_ns=S)
    fast, slow = [], []
    channels = [
        FunctionChannel(lambda: fast.append(world.elapsed_ns) or 1.0, CPU, "power_w", None, Every(0.004)),
        FunctionChannel(lambda: slow.append(world.elapsed_ns) or 1.0, CPU, "power_w", None, Every(0.1)),
    ]
    world.sample(*channels)
    assert all(t % (4 * MS) == 0 for t in fast)
    assert len(fast) == 252
    assert [t for t in slow if t % (100 * MS)] == []
    assert all(channel.closed for channel in channels)


def test_a_schedule_may_say_what_time_a_reading_is_of():
    class Early(Every):
        def stamp_ns(self, before_ns, after_ns):
            return before_ns - 7 * MS

    world = World()
    channel = counter(world)
    channel.schedule = Early(0.01)
    assert joined(world.sample(channel)[0]).edges_ns[0] == EPOCH_NS - 7 * MS


def test_what_cannot_be_opened_is_left_out_and_nothing_at_all_is_an_error():
    class Broken(FunctionMeter):
        def open(self):
            raise MeterError("no driver.")

    world = World(end_ns=S)
    sampler = Sampler([Broken([], "broken"), FunctionMeter([counter(world)])])
    assert sampler.domains == [CPU]
    with pytest.raises(MeterError, match=r"broken: no driver\."):
        Sampler([Broken([], "broken")])
    with pytest.raises(MeterError, match="Nothing can be metered"):
        Sampler([])


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 90)), min_size=1, max_size=60), st.data())
def test_parts_add_up_to_the_whole_wherever_they_are_cut(steps, data):
    """A counter with wrap-around, cut into parts anywhere, has the energy that flowed."""
    track, t_ns, total, parts = Track(CPU, "energy_j", 200.0), 0, 150, []
    track.saw(t_ns, float(total))
    for length_ms, step_j in steps:
        t_ns, total = t_ns + length_ms * MS, total + step_j
        track.saw(t_ns, float(total % 200))
        if data.draw(st.booleans()):
            parts.append(track.take())
    parts = [part for part in [*parts, track.finish()] if part is not None]
    assert sum(part.total_j for part in parts) == pytest.approx(total - 150)
    for before, after in pairwise(parts):
        assert before.edges_ns[-1] == after.edges_ns[0]


def test_lateness_in_figures():
    score = Score(0)
    score.add(Tally(late_ns=[MS] * 98 + [7 * MS] * 2))
    quality = score.quality(S)
    assert (quality.reads, quality.late_p50_s, quality.late_p99_s) == (100, 0.001, 0.007)
    assert quality.cpu_share == quality.cpu_s
    assert Score(0).quality(0).cpu_share == 0


def test_the_loop_wakes_for_a_batch_and_for_the_end():
    before = open_descriptors()
    waiter, batches, woken = PipeWaiter(), [], threading.Event()
    sampler = Sampler([FunctionMeter([FunctionChannel(lambda: 1.0, CPU, "power_w", None, Every(3600.0))])])

    def keep(batch):
        batches.append(batch)
        woken.set()

    thread = threading.Thread(target=sampler.run, args=(waiter, keep))
    thread.start()
    waiter.flush()
    assert woken.wait(60)
    waiter.stop()
    thread.join(60)
    waiter.close()
    assert len(batches) == 2
    assert open_descriptors() == before
