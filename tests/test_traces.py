"""Traces: what is refused, and what readings mean."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulemap.devices import Device, Domain, roots
from joulemap.errors import InputError
from joulemap.labels import Labels
from joulemap.traces import NO_STEP, ClockAnchor, EventTrace, PowerTrace, Steps

S = 1_000_000_000
GPU = Domain("GPU:0", "GPU:0")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("GPU:0", "GPU:0"),
        ("cuda:1", "GPU:1"),
        ("/job:localhost/replica:0/task:0/device:CPU:0", "CPU:0"),
        ("cpu", "CPU"),
        ("gpu0", "GPU:0"),
        ("TPU:3", "TPU:3"),
    ],
)
def test_devices_are_understood(text, shown):
    assert str(Device.parse(text)) == shown


def test_a_device_without_an_index_is_any():
    assert Device.parse("CPU:1").runs(Device.parse("CPU"))
    assert Device.parse("CPU").runs(Device.parse("CPU:1"))
    assert not Device.parse("GPU:0").runs(Device.parse("GPU:1"))
    assert not Device.parse("GPU:0").runs(Device.parse("CPU:0"))
    with pytest.raises(InputError, match="does not name a device"):
        Device.parse("?!")


def test_only_roots_add_up():
    domains = [Domain("psys", "CPU"), Domain("package-0", "CPU:0", parent="psys"), Domain("dram", "CPU:0")]
    assert [domain.name for domain in roots(domains)] == ["psys", "dram"]
    assert [domain.name for domain in roots(domains[1:])] == ["package-0", "dram"]


@pytest.mark.parametrize("bad", [{"provenance": "guessed"}, {"update_period_s": 0.0}, {"device": ""}])
def test_a_domain_must_make_sense(bad):
    with pytest.raises(InputError):
        Domain(**{"name": "x", "device": "CPU:0"} | bad)


def columns(**changes):
    return {"name": ["a", "b"], "device": "CPU:0", "start_ns": [0, 5], "end_ns": [5, 9]} | changes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"end_ns": [5, 4]}, r"Event 1 \(b\) ends 1 ns before"),
        ({"end_ns": [5]}, "2 start times but 1 of end_ns"),
        ({"name": ["a"]}, "2 start times but 1 of name"),
        ({"signature": ["[]"]}, "2 start times but 1 of signature"),
        ({"start_ns": [0.0, float("nan")]}, "not finite"),
        ({"start_ns": ["0", "5"]}, "must be nanoseconds since 1970"),
        ({"start_ns": np.array([0, 2**63 + 5], np.uint64)}, "no times"),
        ({"end_ns": [5, 1e30]}, "no times"),
        ({"step": [-7, 0]}, "no steps"),
        ({"step": [0.5, 1]}, "no steps"),
        ({"step": [float("nan"), 1]}, "not finite"),
        ({"name": ["a", None]}, "None is not a name"),
        ({"start_ns": [[0, 5]]}, "column"),
        ({"kind": "thread"}, "'thread' is none of"),
        ({"phase": ["forward", "sideways"]}, "'sideways' is none of"),
        ({"device": ["CPU:0", "!"]}, "does not name a device"),
    ],
)
def test_events_that_cannot_be_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        EventTrace.from_columns(**columns(**changes))


def test_event_columns_have_defaults():
    events = EventTrace.from_columns(**columns(name=["m/a", "m/b"], device=["CPU:0", "GPU:0"]))
    assert list(events.kind) == ["op", "kernel"]
    assert list(events.op) == ["a", "b"]
    assert list(events.phase) == ["other"] * 2
    assert events.step.tolist() == [NO_STEP] * 2
    assert events.lane is None
    assert events.span_ns == (0, 9)
    assert events.take(np.array([True, False])).span_ns == (0, 5)
    assert EventTrace.from_columns(name=[], device=[], start_ns=[], end_ns=[]).span_ns is None


def test_what_operations_were_called_with_survives_where_it_is_known():
    known, unknown = (
        EventTrace.from_columns(**columns(signature=["[8]", ""])),
        EventTrace.from_columns(**columns()),
    )
    both = EventTrace.joined([unknown, known])
    assert list(both.signatures()) == ["", "", "[8]", ""]
    assert list(both.take(slice(1, 3)).signatures()) == ["", "[8]"]
    assert EventTrace.joined([unknown, unknown]).signature is None
    assert list(unknown.signatures()) == ["", ""]


@pytest.mark.parametrize(
    ("edges", "energy", "message"),
    [
        ([0, 1, 2], [1.0], "1 intervals need 2 edges"),
        ([0, 2, 1], [1.0, 1.0], "back in time"),
        ([0, 1], [float("nan")], "not finite"),
        ([0, 1], [-1.0], "negative"),
        ([0, 0], [1.0], "take no time"),
        ([0, 1], ["x"], "must be numbers"),
        ([0, 1], [[1.0]], "must be a column"),
        ([-(2**62), 2**62], [1.0], "no times"),
    ],
)
def test_power_that_cannot_be_is_refused(edges, energy, message):
    with pytest.raises(InputError, match=message):
        PowerTrace(GPU, edges, energy)


def test_a_counter_gives_intervals_and_wraps():
    trace = PowerTrace.from_counter(GPU, [0, S, 2 * S, 3 * S], [90.0, 95.0, 3.0, 9.0], wraps_at_j=100.0)
    assert trace.energy_j.tolist() == pytest.approx([5, 8, 6])
    with pytest.raises(InputError, match="go backwards"):
        PowerTrace.from_counter(GPU, [0, S], [5.0, 4.0])


def test_a_counter_that_is_polled_faster_than_it_updates_gives_its_updates():
    """NVML's counter: read every 5 ms, updated every 100 ms."""
    t = np.arange(0, 2000, 5) * 1_000_000
    trace = PowerTrace.from_counter(GPU, t, np.floor(np.arange(0, 2000, 5) / 100) * 30.0)
    assert np.diff(trace.edges_ns).tolist() == [100_000_000] * 19
    assert trace.power_w.tolist() == pytest.approx([300.0] * 19)
    assert trace.period_s == pytest.approx(0.1)


def test_a_declared_update_period_is_believed():
    domain = Domain("GPU:0", "GPU:0", update_period_s=0.1)
    t = np.arange(300) * 1_000_000
    trace = PowerTrace.from_counter(domain, t, np.floor(t / 1e8) * 10)
    assert trace.edges_ns.tolist() == [0, 100_000_000, 200_000_000]
    assert trace.power_w.tolist() == pytest.approx([100.0, 100.0])
    still = PowerTrace.from_counter(domain, t, np.full(300, 7.0))
    assert (still.total_j, still.edges_ns[-1]) == (0, t[-1])


def test_a_trace_does_not_change_with_the_arrays_it_was_made_from():
    start = np.array([0, 5])
    events = EventTrace.from_columns(**columns(start_ns=start))
    start[0] = 3
    assert events.start_ns.tolist() == [0, 5]
    with pytest.raises(ValueError, match="read-only"):
        events.start_ns[0] = 1
    with pytest.raises(InputError, match="2 gap marks"):
        PowerTrace(GPU, [0, 1], [1.0], gap=np.zeros(2, bool))


def test_a_device_that_draws_nothing_for_long_has_measured_zero():
    t = np.arange(0, 3000, 5) * 1_000_000
    total = np.floor(np.clip(np.arange(0, 3000, 5), 0, 1000) / 100) * 30.0
    trace = PowerTrace.from_counter(GPU, t, total)
    assert trace.energy_between(1_500_000_000, 2_500_000_000) == 0
    assert trace.edges_ns[-1] == t[-1]


def test_samples_hold_until_the_next_and_gaps_stay_visible():
    t = [0, S, 2 * S, 3 * S, 100 * S, 101 * S]
    trace = PowerTrace.from_samples(GPU, t, [10.0] * 6)
    assert trace.gap.tolist() == [False, False, False, True, False]
    assert trace.total_j == pytest.approx(40)
    assert PowerTrace.from_samples(GPU, [0, S], [1.0, 3.0], end_ns=3 * S).energy_j.tolist() == [1.0, 6.0]
    counter = PowerTrace.from_counter(GPU, t, [0.0, 10.0, 20.0, 30.0, 1000.0, 1010.0])
    assert counter.gap.tolist() == [False, False, False, True, False]
    assert counter.total_j == pytest.approx(1010)


def test_readings_out_of_order_are_sorted():
    trace = PowerTrace.from_samples(GPU, [2 * S, 0, S], [3.0, 1.0, 2.0])
    assert trace.energy_j.tolist() == [1.0, 2.0]


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=10), st.data())
def test_energy_between_telescopes(energy, data):
    trace = PowerTrace(GPU, np.arange(len(energy) + 1) * 10, energy)
    borders = sorted(data.draw(st.lists(st.integers(-5, 10 * len(energy) + 5), min_size=3, max_size=3)))
    a, b, c = borders
    both = trace.energy_between(a, b) + trace.energy_between(b, c)
    assert trace.energy_between(a, c) == pytest.approx(both, abs=1e-6)
    assert trace.energy_between(-100, 1000) == pytest.approx(sum(energy))


def test_steps_know_their_times():
    steps = Steps.from_columns(start_ns=[0, 20], end_ns=[10, 30], traced=[True, False], label="train")
    assert steps.at(np.array([-1, 0, 9, 10, 25, 30])).tolist() == [-1, 0, 0, -1, 1, -1]
    for bad in ({"start_ns": [0, 5], "end_ns": [10, 12]}, {"start_ns": [5], "end_ns": [1]}):
        with pytest.raises(InputError, match="overlap"):
            Steps.from_columns(**bad)


def test_a_clock_is_moved_and_stretched_onto_ours():
    anchor = ClockAnchor("trace", 1000, 500_000, 1_001_000, 1_500_100)
    assert anchor.drift_ppm == pytest.approx(100)
    assert anchor.to_ours([1000, 501_000, 1_001_000]).tolist() == [500_000, 1_000_050, 1_500_100]


@given(st.lists(st.text(max_size=5), max_size=20))
def test_labels_are_what_went_in(words):
    labels = Labels.of(words)
    assert list(labels) == words
    assert list(Labels.from_arrow(labels.to_arrow())) == words
    assert list(Labels.joined([labels, Labels.of(["new", *words])])) == [*words, "new", *words]
    assert list(labels.mapped(["same"] * len(labels.words))) == ["same"] * len(words)
