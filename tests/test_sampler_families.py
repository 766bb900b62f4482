"""Several families of meters at once, with real threads: what one does is no matter to the others.

No test here measures time: what blocks does so until something has happened elsewhere.
"""

import threading
import time
from dataclasses import dataclass, field

import numpy as np
import pytest

from joulemap.devices import Domain
from joulemap.errors import MeterError
from joulemap.meters.remarks import OTHERS
from joulemap.meters.schedule import Every, Updates
from joulemap.meters.synthetic import Operation, Sensor, SyntheticMeter, truth_of
from joulemap.monitor.sampler import Sampler
from joulemap.monitor.waiter import PipeWaiter

from .monitor_meters import FunctionChannel, FunctionMeter, open_descriptors, wait_for
from .test_sampler import S, World, joined

CPU = Domain("package-0", "CPU:0", update_period_s=0.001)
GPU = Domain("GPU:0", "GPU:0", update_period_s=0.1)
PATIENCE_S = 60.0


def clock_j():
    """A counter of one watt."""
    return time.monotonic_ns() / S


@dataclass
class Quick:
    """A counter on a grid of 4 ms that knows how often it was read, and lets others wait for that."""

    reads: int = 0
    threads: set = field(default_factory=set)
    news: threading.Condition = field(default_factory=threading.Condition)

    def read(self):
        with self.news:
            self.reads += 1
            self.threads.add(threading.get_ident())
            self.news.notify_all()
        return clock_j()

    def wait_for_reads(self, more):
        with self.news:
            until = self.reads + more
            assert self.news.wait_for(lambda: self.reads >= until, PATIENCE_S), "it was held up"

    def meter(self):
        return FunctionMeter([FunctionChannel(self.read, CPU, schedule=Every(0.004))], "quick")


class Running:
    """A sampler in a thread of its own, with everything that it handed over."""

    def __init__(self, *meters):
        self.waiter, self.batches = PipeWaiter(), []
        self.sampler = Sampler(meters)
        self.summary = None
        self.thread = threading.Thread(target=self._run)

    def _run(self):
        self.summary = self.sampler.run(self.waiter, self.batches.append)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *error):
        self.waiter.stop()
        self.thread.join(PATIENCE_S)
        self.waiter.close()

    def flush(self):
        before = len(self.batches)
        self.waiter.flush()
        wait_for(lambda: len(self.batches) > before)

    @property
    def texts(self):
        return [note.text for batch in self.batches for note in batch.notes]

    def said_of(self, name):
        """Whether it answers, in the order in which that was noted."""
        said = [text.removeprefix(f"{name} ").split(" for ")[0] for text in self.texts if name in text]
        return [text for text in said if "answer" in text]


def gpu(read, quantity="energy_j", schedule=None):
    return FunctionMeter([FunctionChannel(read, GPU, quantity, schedule=schedule or Every(0.01))], "gpu")


def test_a_family_that_blocks_does_not_delay_another():
    quick, answers = Quick(), []

    def slow():
        quick.wait_for_reads(10)
        answers.append(1)
        return clock_j()

    with Running(quick.meter(), gpu(slow)) as running:
        wait_for(lambda: len(answers) >= 3)
    assert joined(running.batches).total_j > 0
    assert joined(running.batches, "GPU:0").total_j > 0
    assert len(quick.threads) == 1


def test_a_single_family_is_read_by_the_loop_itself():
    quick = Quick()
    with Running(quick.meter()) as running:
        quick.wait_for_reads(20)
    assert quick.threads == {running.thread.ident}


def test_facts_that_take_long_hold_up_nobody():
    quick, asked = Quick(), []

    class Curious(FunctionMeter):
        def facts(self):
            quick.wait_for_reads(10)
            asked.append(1)
            return {"CPU:0 load_percent": 5.0}

    with Running(Curious(quick.meter().channels)) as running:
        wait_for(lambda: asked)
    (fact, *_) = [fact for batch in running.batches for fact in batch.facts]
    assert (fact.name, fact.value) == ("CPU:0 load_percent", 5.0)


def test_power_for_pictures_is_a_fact_and_what_facts_mean_is_noted_once():
    class Pictured(FunctionMeter):
        def pictures(self):
            return {"GPU:0 instant_power_w": 120.0}

        def facts(self):
            return {f"GPU:0 {OTHERS}": 1.0}

    with Running(Pictured([FunctionChannel(clock_j, GPU)])) as running:
        wait_for(lambda: len(running.batches) >= 2)
    names = [fact.name for batch in running.batches for fact in batch.facts]
    assert names.count("GPU:0 instant_power_w") > names.count(f"GPU:0 {OTHERS}") >= 1
    assert len([text for text in running.texts if "Another process uses GPU:0" in text]) == 1
    assert {trace.domain.name for batch in running.batches for trace in batch.power} == {"GPU:0"}


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr("joulemap.monitor.family.HANGS_NS", 200_000_000)
    monkeypatch.setattr("joulemap.monitor.sampler.ANSWER_S", 0.1)
    monkeypatch.setattr("joulemap.monitor.sampler.END_S", 0.2)


def test_a_family_that_hangs_is_said_and_leaves_a_gap_while_others_go_on(impatient):
    quick, release, reads = Quick(), threading.Event(), []

    def hangs():
        reads.append(1)
        if len(reads) > 20:
            release.wait(PATIENCE_S)
        return clock_j()

    with Running(quick.meter(), gpu(hangs)) as running:
        wait_for(lambda: len(reads) > 20)
        wait_for(lambda: running.flush() or running.said_of("GPU:0")[-1:] == ["has not answered"])
        quick.wait_for_reads(10)
    release.set()
    assert "GPU:0: the meter gpu did not come to an end." in running.texts
    trace, other = joined(running.batches, "GPU:0"), joined(running.batches)
    assert trace.gap[-1]
    assert trace.energy_j[-1] == 0
    assert trace.edges_ns[-1] >= other.edges_ns[-1] - S
    assert not other.gap.all()
    assert running.summary is not None


def test_a_family_that_answers_again_has_a_gap_and_its_energy(impatient):
    quick, release, reads = Quick(), threading.Event(), []

    def hangs_once():
        reads.append(1)
        if len(reads) == 21:
            release.wait(PATIENCE_S)
        return clock_j()

    with Running(quick.meter(), gpu(hangs_once)) as running:
        wait_for(lambda: len(reads) > 20)
        wait_for(lambda: running.flush() or running.said_of("GPU:0")[-1:] == ["has not answered"])
        hangs_ns = running.sampler.timeline.now_ns()
        quick.wait_for_reads(300)  # more than ten of its updates, which makes it a gap
        release.set()
        wait_for(lambda: running.flush() or running.said_of("GPU:0")[-1:] == ["answers again."])
    trace = joined(running.batches, "GPU:0")
    hanging = np.searchsorted(trace.edges_ns, hangs_ns) - 1
    assert trace.gap[hanging]
    assert trace.power_w[hanging] == pytest.approx(1.0, rel=0.2)


def test_whatever_a_driver_raises_is_a_reading_that_failed():
    quick, reads = Quick(), []

    def breaks():
        reads.append(1)
        if 5 < len(reads) < 10:
            raise ZeroDivisionError("in the driver")
        return clock_j()

    with Running(quick.meter(), gpu(breaks)) as running:
        wait_for(lambda: len(reads) > 15)
    assert running.texts[:2] == [
        "GPU:0 cannot be read: ZeroDivisionError: in the driver. It is tried again.",
        "GPU:0 can be read again.",
    ]
    assert running.summary.quality.failed == 4


def test_a_schedule_that_breaks_ends_its_family_and_no_other():
    class Broken(Every):
        def next_ns(self, now_ns):
            raise KeyError("a bug of ours")

    quick = Quick()
    meter = gpu(clock_j, schedule=Broken(0.01))
    with Running(quick.meter(), meter) as running:
        quick.wait_for_reads(20)
        wait_for(lambda: running.flush() or running.texts)
        quick.wait_for_reads(20)
    assert "The meter gpu broke off (KeyError" in running.texts[0]
    assert joined(running.batches).total_j > 0


def test_a_batch_that_somebody_waits_for_has_everything_until_then():
    with Running(
        FunctionMeter([FunctionChannel(clock_j, CPU, schedule=Every(3600.0))], "seldom"),
        gpu(clock_j, schedule=Every(3600.0)),
    ) as running:
        for _ in range(3):
            asked_ns = running.sampler.timeline.now_ns()
            running.flush()
            ends_ns = {part.domain.name: part.edges_ns[-1] for part in running.batches[-1].power}
            assert set(ends_ns) == {"package-0", "GPU:0"}
            assert min(ends_ns.values()) >= asked_ns


def test_threads_and_pipes_are_let_go():
    before, threads = open_descriptors(), threading.active_count()
    for _ in range(20):
        with Running(Quick().meter(), gpu(clock_j)):
            pass
    wait_for(lambda: open_descriptors() <= before)
    wait_for(lambda: threading.active_count() <= threads)


def test_the_cost_is_that_of_all_threads():
    burnt = []

    class Busy(FunctionMeter):
        def facts(self):
            until = time.thread_time() + 0.1
            while time.thread_time() < until:
                pass
            burnt.append(0.1)
            return {}

    with Running(Busy(Quick().meter().channels), gpu(clock_j)) as running:
        wait_for(lambda: burnt)
    assert running.summary.quality.cpu_s >= burnt[0]


@pytest.mark.parametrize("phase_s", [0.003, 0.03, 0.05, 0.097])
@pytest.mark.parametrize("learning", [False, True])
def test_the_first_interval_has_the_power_that_there_was(phase_s, learning):
    """The counter was last updated before it was first read: its energy flowed since then, not since the
    first reading."""
    world = World(end_ns=3 * S)
    truth = truth_of([Operation("work", 0.4, 400.0), Operation("", 0.6, 100.0)], repeat=5)
    sensor = Sensor("energy_j", period_s=0.1, phase_s=phase_s)
    meter = SyntheticMeter(truth, [sensor], clock_ns=world.monotonic_ns)
    world.elapsed_ns = S  # the counter runs long before anybody reads it
    channels = meter.open()
    if learning:
        channels[0].schedule = Updates(0.1)
    world.elapsed_ns += S // 2
    trace = joined(world.sample(*channels)[0], "GPU:0")
    assert np.diff(trace.edges_ns)[0] == pytest.approx(S // 10, abs=11_000_000)
    assert trace.power_w[0] == pytest.approx(100.0, rel=0.12)


def test_a_counter_that_is_continuous_begins_when_it_is_first_read():
    world = World(end_ns=2 * S, elapsed_ns=3 * S // 1000)
    channel = FunctionChannel(lambda: world.elapsed_ns / S, Domain("CPU", "CPU", update_period_s=0.05))
    channel.schedule = Every(0.05)
    trace = joined(world.sample(channel)[0], "CPU")
    assert trace.power_w == pytest.approx(1.0)


def test_a_meter_that_fails_from_the_start_is_no_obstacle():
    quick = Quick()

    def never():
        raise MeterError("it is asleep.")

    with Running(quick.meter(), gpu(never)) as running:
        quick.wait_for_reads(20)
    assert running.texts == ["GPU:0 cannot be read: it is asleep. It is tried again."]
    assert {part.domain.name for batch in running.batches for part in batch.power} == {"package-0"}
