"""The accounting: the regressions of the published implementation, and properties against two oracles."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import joulemap.accounting.sweep as sweep
from joulemap.accounting import ProcessShares, attribute
from joulemap.devices import Domain
from joulemap.errors import ConservationError, InputError
from joulemap.traces import EventTrace, PowerTrace, Steps

from .strategies import events, power, steps
from .ticks import tick_footprint

S = 1_000_000_000
GPU = Domain("GPU:0", "GPU:0")


def by_name(footprint, **where):
    rows = [row for row in footprint.to_records() if all(row[key] == value for key, value in where.items())]
    total = {}
    for row in rows:
        total[row["name"]] = total.get(row["name"], 0.0) + row["energy_j"]
    return total


def trace(*spans, device="GPU:0", **columns):
    names, starts, ends = zip(*spans, strict=True) if spans else ((), (), ())
    return EventTrace.from_columns(
        name=names,
        device=device,
        start_ns=[int(t * S) for t in starts],
        end_ns=[int(t * S) for t in ends],
        **columns,
    )


def one_watt(seconds, domain=GPU):
    return PowerTrace.from_samples(domain, [t * S for t in range(seconds + 1)], [1.0] * (seconds + 1))


# What the published implementation gets wrong, one by one.


def test_back_to_back_operations_do_not_share():
    footprint = attribute(trace(("A", 0, 10), ("B", 10, 20)), one_watt(20))
    assert by_name(footprint) == pytest.approx({"A": 10, "B": 10})


def test_an_operation_does_not_take_the_gap_after_it():
    footprint = attribute(trace(("A", 0, 5), ("B", 15, 20)), one_watt(20))
    assert by_name(footprint) == pytest.approx({"A": 5, "B": 5})
    assert footprint.idle_j == pytest.approx(10)


def test_overlapping_operations_of_one_name_both_count():
    footprint = attribute(trace(("A", 0, 10), ("A", 0, 10), ("B", 0, 10)), one_watt(10))
    assert by_name(footprint) == pytest.approx({"A": 20 / 3, "B": 10 / 3})
    assert {row["name"]: row["calls"] for row in footprint.to_records()} == {"A": 2, "B": 1}


def test_zero_length_operations_get_nothing_but_were_called():
    footprint = attribute(trace(("A", 0, 10), ("B", 5, 5)), one_watt(10))
    assert by_name(footprint) == pytest.approx({"A": 10, "B": 0})
    assert {row["name"]: row["calls"] for row in footprint.to_records()} == {"A": 1, "B": 1}


def test_power_without_events_is_idle():
    footprint = attribute(trace(), one_watt(10))
    assert (footprint.idle_j, footprint.attributed_j, len(footprint)) == (pytest.approx(10), 0, 0)


def test_nothing_at_all_is_an_answer():
    footprint = attribute(trace(), [])
    assert (footprint.measured_j, footprint.to_records()) == (0, [])
    assert attribute(trace(), PowerTrace(GPU, [], [])).measured_j == 0


def test_events_without_power_are_said():
    footprint = attribute(trace(("A", 0, 1), device="CPU:0"), one_watt(2))
    assert footprint.idle_j == pytest.approx(2)
    assert "No power of CPU:0" in footprint.warnings[0]


def test_gpu_energy_goes_to_what_ran_on_the_gpu():
    spans = EventTrace.from_columns(
        name=["launch", "kernel"], device=["CPU:0", "GPU:0"], start_ns=[0, 2 * S], end_ns=[2 * S, 4 * S]
    )
    footprint = attribute(spans, [one_watt(4), one_watt(4, Domain("package-0", "CPU:0"))])
    assert by_name(footprint, domain="GPU:0") == pytest.approx({"kernel": 2})
    assert by_name(footprint, domain="package-0") == pytest.approx({"launch": 2})


def test_several_gpus_and_sockets_stay_apart():
    spans = EventTrace.from_columns(
        name=["a", "b", "c", "d"],
        device=["GPU:0", "GPU:1", "CPU:0", "CPU:1"],
        start_ns=[0] * 4,
        end_ns=[10 * S, 5 * S, 10 * S, 2 * S],
    )
    names = ("GPU:0", "GPU:1", "CPU:0", "CPU:1")
    footprint = attribute(spans, [one_watt(10, Domain(name, name)) for name in names])
    assert by_name(footprint) == pytest.approx({"a": 10, "b": 5, "c": 10, "d": 2})
    assert [account.idle_j for account in footprint.accounts] == pytest.approx([0, 5, 0, 8])


# The rule itself.


def test_energy_in_a_nested_event_is_the_inner_one_s():
    spans = trace(("outer", 0, 10), ("inner", 2, 5), device="CPU:0", lane=[1, 1])
    assert by_name(attribute(spans, one_watt(10, Domain("cpu", "CPU:0")))) == pytest.approx(
        {"outer": 7, "inner": 3}
    )


def test_a_caller_with_busy_workers_counts_as_its_workers():
    """Two matmuls side by side; the large one has two workers for most of the time."""
    spans = EventTrace.from_columns(
        name=["large", "large", "large", "small"],
        device="CPU:0",
        start_ns=[0, 1 * S, 1 * S, 0],
        end_ns=[10 * S, 9 * S, 9 * S, 10 * S],
        lane=[1, 2, 3, 4],
        kind=["op", "worker", "worker", "op"],
    )
    footprint = attribute(spans, one_watt(10, Domain("cpu", "CPU:0")))
    assert by_name(footprint) == pytest.approx({"large": 2 * 0.5 + 8 * 2 / 3, "small": 2 * 0.5 + 8 / 3})
    assert {row["name"]: row["calls"] for row in footprint.to_records()} == {"large": 1, "small": 1}


def test_runtime_glue_counts_only_where_nothing_else_runs():
    spans = trace(("glue", 0, 10), ("op", 4, 6), device="CPU:0", kind=["runtime", "op"])
    assert by_name(attribute(spans, one_watt(10, Domain("cpu", "CPU:0")))) == pytest.approx(
        {"glue": 8, "op": 2}
    )


def test_packages_and_their_memory_both_go_to_cpu_events():
    spans = trace(("a", 0, 10), device="CPU")
    traces = [one_watt(10, Domain(name, "CPU:0")) for name in ("package-0", "dram-0")]
    footprint = attribute(spans, [*traces, one_watt(10, Domain("core-0", "CPU:0", parent="package-0"))])
    assert footprint.measured_j == pytest.approx(20)
    assert by_name(footprint) == pytest.approx({"a": 20})
    assert "core-0 is part of package-0" in footprint.warnings[0]


def test_an_event_that_may_run_on_any_socket_draws_from_all():
    traces = [one_watt(10, Domain(f"package-{socket}", f"CPU:{socket}")) for socket in (0, 1)]
    footprint = attribute(trace(("a", 0, 4), device="CPU"), traces)
    assert by_name(footprint) == pytest.approx({"a": 8})
    assert footprint.idle_j == pytest.approx(12)


def test_outside_the_recording_and_other_processes_are_buckets():
    shares = {"cpu": ProcessShares.from_columns("cpu", [0, 10 * S, 20 * S], [1.0, 0.25])}
    footprint = attribute(
        trace(("a", 0, 20), device="CPU:0"),
        one_watt(20, Domain("cpu", "CPU:0")),
        window_ns=(2 * S, 18 * S),
        shares=shares,
    )
    assert footprint.outside_j == pytest.approx(4)
    assert footprint.other_processes_j == pytest.approx(6)
    assert by_name(footprint) == pytest.approx({"a": 10})


def test_weights_share_an_instant_and_calibrated_weights_share_an_interval():
    spans = trace(("hot", 0, 2), ("cold", 2, 6))
    power_trace = PowerTrace(GPU, [0, 10 * S], [100.0])
    even = attribute(spans, power_trace, weights=[3.0, 1.0])
    assert by_name(even) == pytest.approx({"hot": 20, "cold": 40})
    calibrated = attribute(spans, power_trace, "calibrated", weights=[3.0, 1.0], idle_weight=0.5)
    modelled = 2 * 3 + 4 * 1 + 4 * 0.5
    assert by_name(calibrated) == pytest.approx({"hot": 600 / modelled, "cold": 400 / modelled})
    assert calibrated.idle_j == pytest.approx(200 / modelled)
    assert {row["provenance"] for row in calibrated.to_records()} == {"calibrated"}


def test_weights_of_very_different_size_keep_their_shares():
    """A light event beside a heavy one that ends: the light one must not vanish in rounding."""
    spans = trace(("light", 0, 20), ("heavy", 0, 10))
    for light in (1e-20, 1e-12, 1e-6, 0.5):
        footprint = attribute(spans, PowerTrace(GPU, [0, 20 * S], [20.0]), weights=[light, 1e5])
        assert by_name(footprint) == pytest.approx({"light": 10, "heavy": 10}, rel=1e-5)
        calibrated = attribute(
            spans, PowerTrace(GPU, [0, 20 * S], [20.0]), "calibrated", weights=[light, 1e5], idle_weight=1.0
        )
        assert calibrated.attributed_j == pytest.approx(20)


def test_calibration_is_per_sensor_interval_whatever_cuts_it():
    spans = trace(("a", 0, 5), ("b", 5, 10))
    power_trace = PowerTrace(GPU, [0, 10 * S], [10.0])
    calibrated = partial(attribute, spans, power_trace, "calibrated", weights=[1.0, 9.0], idle_weight=1.0)
    assert by_name(calibrated()) == pytest.approx({"a": 1, "b": 9})
    ours = {"GPU:0": ProcessShares.from_columns("GPU:0", [0, 5 * S, 10 * S], [1.0, 1.0])}
    assert by_name(calibrated(shares=ours)) == pytest.approx({"a": 1, "b": 9})
    half = {"GPU:0": ProcessShares.from_columns("GPU:0", [0, 5 * S, 10 * S], [1.0, 0.5])}
    assert by_name(calibrated(shares=half)) == pytest.approx({"a": 1, "b": 4.5})
    window = calibrated(window_ns=(5 * S, 10 * S))
    assert (by_name(window)["b"], window.outside_j) == (pytest.approx(9), pytest.approx(1))


def test_a_thread_of_another_socket_is_another_thread():
    spans = EventTrace.from_columns(
        name=["x", "y"], device=["CPU:0", "CPU:1"], start_ns=[0, 0], end_ns=[10 * S, 5 * S], lane=["1", "1"]
    )
    footprint = attribute(spans, one_watt(10, Domain("psys", "CPU")))
    assert by_name(footprint) == pytest.approx({"x": 7.5, "y": 2.5})


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"rule": "guess"}, "no rule 'guess'"),
        ({"weights": [1.0]}, "2 events need 2 weights"),
        ({"weights": [1.0, 0.0]}, "positive"),
        ({"weights": [1.0, float("nan")]}, "positive"),
        ({"rule": "calibrated", "weights": [1.0, 1.0]}, "idle"),
        ({"power": [one_watt(2), one_watt(2)]}, "two power traces"),
        ({"power": one_watt(2, Domain("x", "GPU:0", parent="x"))}, "inside itself"),
        ({"window_ns": (2 * S, 0)}, "before it starts"),
        ({"shares": {"cpu": ProcessShares.from_columns("cpu", [0, S], [1.0])}}, "no power"),
        ({"steps": Steps.from_columns(start_ns=[0], end_ns=[5])}, "only 1 steps"),
    ],
)
def test_what_cannot_be_accounted_is_refused(bad, message):
    spans = trace(("A", 0, 1), ("B", 1, 2), step=[0, 3])
    with pytest.raises(InputError, match=message):
        attribute(spans, bad.pop("power", one_watt(2)), **bad)


# Properties.


def rows_of(footprint):
    return {
        (row["name"], row["phase"], row["domain"]): row["energy_j"]
        for row in footprint.to_records()
        if row["energy_j"] > 0
    }


def idle_of(footprint):
    return {account.domain.name: account.idle_j for account in footprint.accounts}


def assert_same_energy(found, expected, scale):
    names = found.keys() | expected.keys()
    for name in names:
        assert found.get(name, 0.0) == pytest.approx(expected.get(name, 0.0), rel=1e-9, abs=1e-9 * scale)


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_every_rule_agrees_with_the_ticks(data):
    spans = data.draw(events())
    traces = [
        data.draw(power(Domain("gpu", "GPU:0"))),
        data.draw(power(Domain("package", "CPU:0"))),
        data.draw(power(Domain("dram", "CPU"))),
    ]
    expected, idle = tick_footprint(spans, traces)
    scale = sum(one.total_j for one in traces)
    for rule in ("exact", "recency"):
        footprint = attribute(spans, traces, rule)
        assert_same_energy(rows_of(footprint), expected, scale)
        assert_same_energy(idle_of(footprint), idle, scale)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_weighted_rules_agree_with_the_ticks_and_conserve(data):
    spans = data.draw(events(devices=("GPU:0",)))
    weights = data.draw(st.lists(st.floats(0.01, 100), min_size=len(spans), max_size=len(spans)))
    trace_ = data.draw(power())
    expected, idle = tick_footprint(spans, [trace_], weights)
    for rule in ("exact", "recency"):
        footprint = attribute(spans, trace_, rule, weights=weights)
        assert_same_energy(rows_of(footprint), expected, trace_.total_j)
        assert_same_energy(idle_of(footprint), idle, trace_.total_j)
    attribute(spans, trace_, "calibrated", weights=weights, idle_weight=2.0).check()


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_calibrated_with_all_weights_equal_and_no_overlap_is_exact(data):
    spans = data.draw(events(devices=("GPU:0",), kinds=("kernel",), lanes=False, most=1))
    trace_ = data.draw(power())
    exact = attribute(spans, trace_)
    calibrated = attribute(spans, trace_, "calibrated", weights=np.full(len(spans), 7.0), idle_weight=7.0)
    assert_same_energy(rows_of(calibrated), rows_of(exact), trace_.total_j)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_windows_and_input_order_do_not_matter(data):
    spans = data.draw(events(most=20))
    traces = [data.draw(power(Domain("gpu", "GPU:0"))), data.draw(power(Domain("cpu", "CPU:0")))]
    whole = attribute(spans, traces)
    order = data.draw(st.permutations(range(len(spans))))
    if spans.lane is None or _distinct_within_lanes(spans):
        spans = spans.take(np.array(order, np.int64))
    before, sweep.WINDOW = sweep.WINDOW, data.draw(st.integers(1, 4))
    try:
        cut = attribute(spans, traces)
    finally:
        sweep.WINDOW = before
    scale = sum(one.total_j for one in traces)
    assert_same_energy(rows_of(cut), rows_of(whole), scale)
    assert_same_energy(idle_of(cut), idle_of(whole), scale)


def _distinct_within_lanes(spans):
    """Events that share lane, start and end are ordered by their row: only then does order matter."""
    keys = list(zip(spans.lane.codes.tolist(), spans.start_ns.tolist(), spans.end_ns.tolist(), strict=True))
    return len(set(keys)) == len(keys)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_steps_windows_and_shares_conserve(data):
    spans = data.draw(events(devices=("GPU:0",)))
    trace_ = data.draw(power())
    borders = sorted(data.draw(st.tuples(st.integers(-5, 45), st.integers(-5, 45))))
    share = ProcessShares.from_columns("gpu", [0, 10, 25], data.draw(st.tuples(*[st.floats(0, 1)] * 2)))
    footprint = attribute(
        spans,
        trace_,
        steps=data.draw(steps()),
        window_ns=data.draw(st.sampled_from((None, tuple(borders)))),
        shares=data.draw(st.sampled_from((None, {"gpu": share}))),
    )
    assert (footprint.low_j <= footprint.energy_j + 1e-9).all()
    assert (footprint.high_j >= footprint.energy_j - 1e-9).all()
    assert footprint.projected_j.sum() <= footprint.energy_j.sum() + 1e-9


def test_a_shuffled_trace_of_many_windows_matches_the_sorted_one():
    rng = np.random.default_rng(3)
    count = 5 * sweep.WINDOW
    start = np.sort(rng.integers(0, 10**9, count))
    end = start + rng.integers(0, 20_000, count)
    end[:10] = 10**9
    names = [f"n{i}" for i in range(50)]
    name = np.array(names)[rng.integers(0, 50, count)]
    trace_ = PowerTrace(GPU, np.linspace(0, 10**9, 2001).astype(int), rng.random(2000))
    sorted_ = attribute(
        EventTrace.from_columns(name=name, device="GPU:0", start_ns=start, end_ns=end), trace_
    )
    order = rng.permutation(count)
    shuffled = EventTrace.from_columns(
        name=name[order], device="GPU:0", start_ns=start[order], end_ns=end[order]
    )
    assert by_name(attribute(shuffled, trace_)) == pytest.approx(by_name(sorted_), rel=1e-9)


def test_a_microsecond_at_the_end_of_a_long_day_keeps_its_precision():
    day = 86_400
    edges = np.arange(day + 1) * S
    energy = np.full(day, 700.0)
    start = (day - 1) * S + 1000
    spans = EventTrace.from_columns(name=["op"], device="GPU:0", start_ns=[start], end_ns=[start + 1000])
    footprint = attribute(spans, PowerTrace(GPU, edges, energy))
    assert footprint.attributed_j == pytest.approx(700e-6, rel=1e-9)


# Steps.


def test_untraced_steps_are_projected_in_the_proportions_of_the_traced():
    spans = trace(
        ("A", 0, 3), ("B", 3, 4), ("A", 10, 13), ("B", 13, 14), step=[0, 0, 1, 1], device="CPU", lane="main"
    )
    steps_ = Steps.from_columns(
        start_ns=[0, 10 * S, 20 * S], end_ns=[5 * S, 15 * S, 30 * S], traced=[True, True, False]
    )
    footprint = attribute(spans, one_watt(30, Domain("cpu", "CPU:0")), steps=steps_)
    assert by_name(footprint) == pytest.approx({"A": 6 + 6, "B": 2 + 2})
    assert footprint.idle_j == pytest.approx(2 + 10 + 2)
    assert footprint.accounts[0].idle_outside_steps_j == pytest.approx(10)
    rows = {row["name"]: row for row in footprint.to_records()}
    assert rows["A"]["projected_j"] == pytest.approx(6)
    assert {row["provenance"] for row in rows.values()} == {"projected"}
    assert (rows["A"]["active_s"], rows["A"]["calls"]) == (pytest.approx(12), 3)
    assert footprint.accounts[0].step_j == pytest.approx([5, 5, 10])


@pytest.mark.parametrize(("untraced_s", "work_s"), [(3, 2), (2, 2), (1, 1), (10, 2)])
def test_a_gpu_does_its_work_no_slower_for_being_traced_it_waits_longer(untraced_s, work_s):
    """Traced, a step has 2 s of work in 6 s; untraced, it has the same work in whatever it takes."""
    spans = trace(("A", 1, 2), ("B", 4, 5), step=[0, 0])
    steps_ = Steps.from_columns(
        start_ns=[0, 6 * S], end_ns=[6 * S, (6 + untraced_s) * S], traced=[True, False]
    )
    footprint = attribute(spans, one_watt(6 + untraced_s), steps=steps_)
    assert by_name(footprint) == pytest.approx({"A": 1 + work_s / 2, "B": 1 + work_s / 2})
    assert footprint.idle_j == pytest.approx(4 + untraced_s - work_s)
    assert sum(footprint.active_s) == pytest.approx(2 + work_s)


def test_what_stands_for_many_steps_is_as_sure_as_the_energy_of_them_all():
    spans = trace(("A", 1, 2), step=[0])
    steps_ = Steps.from_columns(
        start_ns=[0, *range(4 * S, 400 * S, 4 * S)],
        end_ns=[4 * S, *range(8 * S, 404 * S, 4 * S)],
        traced=[True] + [False] * 99,
    )
    row = attribute(spans, one_watt(400), steps=steps_).to_records()[0]
    assert row["energy_j"] == pytest.approx(100)
    assert row["high_j"] - row["energy_j"] == pytest.approx(1.96 * 0.408 * 100 / 400, rel=0.01)


def test_an_event_that_runs_into_a_traced_step_belongs_to_it():
    spans = trace(("d", 9, 20))
    steps_ = Steps.from_columns(start_ns=[0, 10 * S], end_ns=[10 * S, 20 * S], traced=[False, True])
    assert by_name(attribute(spans, one_watt(20), steps=steps_)) == pytest.approx({"d": 20})


def test_steps_are_projected_by_their_label():
    spans = trace(("train", 0, 10), ("test", 10, 20))
    steps_ = Steps.from_columns(
        start_ns=[0, 10 * S, 20 * S],
        end_ns=[10 * S, 20 * S, 30 * S],
        traced=[True, True, False],
        label=["train", "test", "train"],
    )
    assert by_name(attribute(spans, one_watt(30), steps=steps_)) == pytest.approx({"train": 20, "test": 10})


def test_energy_of_steps_that_nothing_was_traced_of_is_untraced():
    steps_ = Steps.from_columns(start_ns=[0], end_ns=[10 * S], traced=False)
    footprint = attribute(trace(), one_watt(15), steps=steps_)
    assert by_name(footprint) == pytest.approx({"(untraced)": 10})
    assert footprint.idle_j == pytest.approx(5)


# The invariant is code.


def test_check_raises_when_energy_is_lost():
    from dataclasses import replace

    footprint = attribute(trace(("A", 0, 10)), one_watt(20))
    with pytest.raises(ConservationError, match="too much"):
        replace(footprint, energy_j=footprint.energy_j * (1 + 1e-8)).check()
    with pytest.raises(ConservationError, match="inf"):
        replace(footprint, energy_j=np.array([np.inf])).check()
    account = replace(footprint.accounts[0], idle_j=-10.0, outside_j=20.0)
    with pytest.raises(ConservationError, match="negative"):
        replace(footprint, accounts=(account,)).check()
