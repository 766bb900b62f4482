"""The energy of calls: exact where the truth is known, conserved always, wide where the meter cannot tell."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulemap.accounting.calls import (
    AFTER,
    BETWEEN,
    GATE,
    START_UP,
    TAIL,
    WHOLE,
    Stretches,
    account_calls,
)
from joulemap.devices import Domain
from joulemap.processes import ProcessShares
from joulemap.traces import PowerTrace

S = 1_000_000_000
CPU = Domain("CPU", "CPU", sensor="made up", update_period_s=0.01)


def calls(*rows, waited=None):
    """Rows ``(start_s, end_s, parent, thread)``, numbered in their order."""
    columns = np.array([row + (-1, 1)[len(row) - 2 :] for row in rows], float).reshape(-1, 4)
    start, end, parent, thread = columns.T
    numbers = np.arange(len(rows))
    waits = None if waited is None else np.rint(np.array(waited, float) * S).astype(np.int64)
    return Stretches.of(
        numbers,
        parent.astype(np.int64),
        thread.astype(np.int64),
        np.rint(start * S).astype(np.int64),
        np.rint(end * S).astype(np.int64),
        waits,
    )


def steady(watts=10.0, seconds=10.0, domain=CPU, every_s=0.01):
    edges = np.rint(np.arange(0, seconds + every_s / 2, every_s) * S).astype(np.int64)
    return PowerTrace(domain, edges, watts * np.diff(edges) / S)


def steps(*levels, domain=CPU, every_s=0.01):
    """``(until_s, watts)`` one after the other."""
    edges = np.rint(np.arange(0, levels[-1][0] + every_s / 2, every_s) * S).astype(np.int64)
    middle = (edges[:-1] + edges[1:]) / 2 / S
    watts = np.array([next(power for until, power in levels if t < until) for t in middle])
    return PowerTrace(domain, edges, watts * np.diff(edges) / S)


def test_a_call_has_what_was_drawn_in_its_own_interval_and_the_rest_has_names():
    found = account_calls(calls((2, 3), (5, 7)), [steps((2, 10), (3, 50), (5, 10), (7, 30), (10, 10))])
    assert found.energy_j == pytest.approx([50, 60])
    assert found.rest_j() == pytest.approx({START_UP: 20, BETWEEN: 20, AFTER: 30})


def test_a_short_call_is_not_measured_one_sample_early():
    """The published tool reads the sample before: calls of up to a second come out eight times too small."""
    slow = PowerTrace(CPU, np.arange(0, 11 * S, S // 2), np.where(np.arange(21) == 8, 25.0, 5.0))
    found = account_calls(calls((4.0, 4.5)), [slow], baseline_w={"CPU": 10.0})
    assert found.energy_j == pytest.approx([25])
    assert found.net_j == pytest.approx([20])


def test_what_is_inside_counts_once_and_again_for_who_asks():
    found = account_calls(calls((1, 9), (2, 4, 0), (3, 4, 1), (5, 6, 0)), [steady()])
    assert found.energy_j == pytest.approx([50, 10, 10, 10])
    assert found.inclusive_j == pytest.approx([80, 20, 10, 10])


def test_threads_that_are_in_calls_at_once_share():
    found = account_calls(calls((0, 4, -1, 1), (2, 6, -1, 2), (3, 4, 1, 2)), [steady()])
    assert found.energy_j == pytest.approx([20 + 10, 5 + 20, 5])
    assert found.inclusive_j == pytest.approx([30, 30, 5])


def test_coroutines_that_overlap_in_one_thread_are_conserved():
    found = account_calls(calls((1, 4), (2, 6)), [steady()])
    assert found.energy_j.sum() == pytest.approx(50)


def test_other_processes_and_what_is_outside_are_not_the_calls():
    shares = {"CPU": ProcessShares.from_columns("CPU", [0, 10 * S], [0.25])}
    found = account_calls(calls((2, 4)), [steady()], window_ns=(S, 9 * S), shares=shares)
    assert found.energy_j == pytest.approx([5])
    assert found.other_processes_j == pytest.approx(60)
    assert found.outside_j == pytest.approx(20)
    assert sum(found.rest_j().values()) == pytest.approx(15)


def test_domains_add_up_but_not_what_is_inside_another():
    core = Domain("core", "CPU", parent="CPU")
    gpu = Domain("GPU:0", "GPU:0")
    found = account_calls(calls((1, 2)), [steady(), steady(4, domain=core), steady(100, domain=gpu)])
    assert [one.domain.name for one in found.domains] == ["CPU", "GPU:0"]
    assert found.energy_j == pytest.approx([110])


def test_net_is_above_the_baseline_for_the_time_that_fell_to_a_call():
    found = account_calls(calls((0, 4, -1, 1), (2, 6, -1, 2)), [steady()], baseline_w={"CPU": 8.0})
    assert found.net_j == pytest.approx([2 * 2 + 1 * 2, 1 * 2 + 2 * 2])
    assert found.rest_net_j() == pytest.approx({AFTER: 8, BETWEEN: 0}, abs=1e-9)
    assert account_calls(calls((0, 4)), [steady()]).net_j is None


def test_a_call_under_the_meters_resolution_is_kept_with_an_interval_that_says_so():
    coarse = steady(100.0, domain=Domain("GPU:0", "GPU:0", update_period_s=0.1), every_s=0.1)
    found = account_calls(calls((1, 1.001), (3, 8), (8.5, 8.5)), [coarse])
    low, high = found.interval_j()
    assert found.energy_j == pytest.approx([0.1, 500, 0])
    assert low[0] == 0
    assert high[0] > 50 * found.energy_j[0]
    assert high[1] - low[1] < 0.05 * found.energy_j[1]
    assert low[2] == 0 < high[2]


def test_a_call_whose_parent_was_lost_has_none():
    lost = Stretches.of(
        *(np.array(column, np.int64) for column in ([3, 5], [2, 3], [1, 1], [S, 2 * S])),
        np.array([4 * S, 3 * S]),
    )
    assert lost.parent.tolist() == [-1, 0]


def test_an_isolated_call_has_its_own_baseline_and_its_lag():
    power = steps((3, 20), (4, 10), (5, 60), (6, 30), (10, 10))
    found = account_calls(calls((4, 5), (4.2, 4.4, 0), waited=[(3, 7), (0, 0)]), [power], baseline_s=1.0)
    assert found.net_j == pytest.approx([40, 10])
    assert found.lag_j == pytest.approx([20, 0])
    assert found.rest_j() == pytest.approx(
        {START_UP: 60, GATE: 10, TAIL: 40, AFTER: 30, BETWEEN: 0}, abs=1e-9
    )


def test_no_call_at_all_and_no_power_at_all_are_answers():
    assert account_calls(calls(), [steady()]).rest_j() == pytest.approx({WHOLE: 100})
    empty = PowerTrace(CPU, [], [])
    assert account_calls(calls((1, 2)), [empty]).energy_j.tolist() == [0]
    assert account_calls(calls((1, 2)), []).measured_j == 0


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 99), st.integers(0, 60), st.integers(0, 2)), max_size=30),
    st.lists(st.integers(0, 50), min_size=1, max_size=20),
)
def test_calls_and_rest_are_always_all_there_is(spans, levels):
    rows = sorted((start, min(start + length, 100), -1, thread) for start, length, thread in spans)
    edges = np.linspace(0, 100 * S, len(levels) + 1).astype(np.int64)
    found = account_calls(calls(*rows), [PowerTrace(CPU, edges, levels)], window_ns=(10 * S, 90 * S)).check()
    total = found.energy_j.sum() + sum(found.rest_j().values()) + found.outside_j
    assert total == pytest.approx(sum(levels))
    assert (found.energy_j >= 0).all()
    assert found.inclusive_j == pytest.approx(found.energy_j)


def test_a_million_calls_are_no_trouble():
    """A loop over calls would take minutes; this is a question of seconds, and of one array a column."""
    count = 1_000_000
    start = np.arange(count, dtype=np.int64) * 10_000
    parent = np.where(np.arange(count) % 10 == 0, -1, np.arange(count) // 10 * 10)
    end = np.where(parent == -1, start + 100_000, start + 9_000)
    found = account_calls(
        Stretches.of(np.arange(count), parent, np.ones(count, np.int64), start, end), [steady(50.0)]
    )
    assert found.inclusive_j[parent == -1].sum() == pytest.approx(500)
    assert found.energy_j.sum() == pytest.approx(500)
