"""The accounting, whatever it is given: every rule against ticks counted one by one, and conservation."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import joulemap.accounting.sweep as sweep
from joulemap.accounting import ProcessShares, attribute
from joulemap.devices import Domain
from joulemap.traces import EventTrace, PowerTrace

from .small_traces import GPU, S, by_name
from .strategies import events, power, steps
from .ticks import tick_footprint


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
    ours, loads = (np.array(data.draw(st.tuples(*[st.floats(0, 1)] * 2))) for _ in range(2))
    share = ProcessShares.from_columns("gpu", [0, 10, 25], ours, ours * loads)
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
