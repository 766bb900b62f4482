"""Untraced steps: what the traced ones stand for."""

import pytest

from joulemap.accounting import attribute
from joulemap.devices import Domain
from joulemap.processes import ProcessShares
from joulemap.traces import PowerTrace, Steps
from joulemap.views.show import Question, answer

from .small_traces import S, by_name, one_watt, trace


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


@pytest.mark.parametrize("known", [True, False])
def test_what_the_tracer_does_stands_for_nothing_in_other_steps(known):
    """A second of its own in a traced step of five, beside three of A; another step takes ten."""
    steps_ = Steps.from_columns(start_ns=[0, 5 * S], end_ns=[5 * S, 15 * S], traced=[True, False])
    step = {"step": [0, 0]} if known else {}
    spans = trace(
        ("A", 0, 4), ("(profiler)/Activity Buffer Request", 1, 2), device="CPU", lane="main", **step
    )
    footprint = attribute(spans, one_watt(15, Domain("cpu", "CPU:0")), steps=steps_)
    rows = {row["name"]: row for row in footprint.to_records()}
    assert rows["A"]["energy_j"] == pytest.approx(3 + 10 * 3 / 4)
    assert footprint.idle_j == pytest.approx(1 + 10 * 1 / 4)
    assert footprint.accounts[0].step_j == pytest.approx([5, 10])
    own = rows["(profiler)/Activity Buffer Request"]
    assert (own["energy_j"], own["projected_j"], own["calls"]) == (pytest.approx(1), 0, 1)


@pytest.mark.parametrize(
    ("domain", "waits"),
    [(Domain("GPU:0", "GPU:0"), "waiting for the host"), (Domain("cpu", "CPU:0"), "waiting inside steps")],
)
def test_where_steps_are_known_idle_time_is_inside_them_or_not(domain, waits):
    spans = trace(("A", 0, 3), step=[0], device=domain.device)
    for until_s, expected in {
        5: {waits: 2},
        9: {waits: 2, "outside any step": 4},
    }.items():
        steps_ = Steps.from_columns(start_ns=[0], end_ns=[5 * S], traced=[True])
        footprint = attribute(spans, one_watt(until_s, domain), steps=steps_)
        whole, *parts = answer(footprint, Question()).idle
        assert whole.label == f"{domain.name} idle"
        told = {part.label: part.energy_j for part in parts}
        assert told == pytest.approx(expected if domain.name == "GPU:0" or len(expected) > 1 else {})
    steps_ = Steps.from_columns(start_ns=[0], end_ns=[3 * S], traced=[True])
    footprint = attribute(spans, one_watt(5, domain), steps=steps_)
    outside = [line.label for line in answer(footprint, Question()).idle[1:]]
    assert outside == (["outside any step"] if domain.name == "GPU:0" else [])


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


def test_costs_say_more_of_untraced_steps_than_the_meter_did_of_the_traced_one():
    """A and B cost the same. While the step was traced the meter saw 1 W in its first half and 3 in the
    other; its idle time draws half a watt."""
    spans = trace(("A", 0, 1), ("B", 2, 3), step=[0, 0])
    steps_ = Steps.from_columns(start_ns=[0, 4 * S], end_ns=[4 * S, 8 * S], traced=[True, False])
    power = PowerTrace(Domain("GPU:0", "GPU:0"), [0, 2 * S, 4 * S, 8 * S], [2.0, 6.0, 12.0])
    weighing = {"weights": [1.0, 1.0], "idle_weight": 0.5}
    footprint = attribute(spans, [power], "calibrated", steps=steps_, **weighing)
    traced_j, untraced_j = {"A": 2 / 1.5, "B": 6 / 1.5}, 12 / 3
    assert by_name(footprint) == pytest.approx({name: own + untraced_j for name, own in traced_j.items()})
    assert footprint.idle_j == pytest.approx(8 - 8 / 1.5 + 12 / 3)
    assert footprint.accounts[0].step_j == pytest.approx([8, 12])


POOL = ["op", "worker", "op"]
TWO_ALIKE = Steps.from_columns(start_ns=[0, 2 * S], end_ns=[2 * S, 4 * S], traced=[True, False])


@pytest.mark.parametrize(
    ("spans", "each_j"),
    [
        (trace(("op", 0, 2), ("glue", 0, 2), lane=[1, 2], kind=["op", "runtime"], step=[0, 0]), {"op": 20}),
        (
            trace(
                ("a", 0, 1),
                ("a", 0, 1),
                ("b", 1, 2),
                lane=[1, 2, 1],
                kind=["op", "worker", "op"],
                step=[0] * 3,
            ),
            {"a": 10, "b": 10},
        ),
    ],
    ids=["glue", "workers"],
)
def test_costs_share_an_untraced_step_as_they_do_a_traced_one(spans, each_j):
    """What waits for its workers, and glue beside work, takes nothing of either."""
    power = PowerTrace(Domain("GPU:0", "GPU:0"), [0, 2 * S, 4 * S], [20.0, 20.0])
    weights = [10.0] * len(spans)
    footprint = attribute(spans, [power], "calibrated", steps=TWO_ALIKE, weights=weights, idle_weight=1.0)
    found = {name: joules for name, joules in by_name(footprint).items() if joules}
    assert found == pytest.approx({name: 2 * joules for name, joules in each_j.items()})


def test_idle_time_of_a_device_that_is_shared_is_as_large_a_part_of_untraced_steps():
    spans = trace(("A", 0, 1), step=[0])
    power = PowerTrace(Domain("GPU:0", "GPU:0"), [0, 2 * S, 4 * S], [150.0, 150.0])
    shares = {"GPU:0": ProcessShares.from_columns("GPU:0", [0, 4 * S], [0.1])}
    weighing = {"weights": [100.0], "idle_weight": 50.0, "shares": shares}
    footprint = attribute(spans, [power], "calibrated", steps=TWO_ALIKE, **weighing)
    assert by_name(footprint) == pytest.approx({"A": 20})
    assert footprint.idle_j == pytest.approx(10)


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
    [row] = footprint.to_records()
    assert row["active_s"] == pytest.approx(10)


def test_untraced_steps_last_as_long_as_they_last_however_many_share_the_device():
    steps_ = Steps.from_columns(start_ns=[0, 10 * S], end_ns=[10 * S, 14 * S], traced=False)
    shares = {"GPU:0": ProcessShares.from_columns("GPU:0", [0, 14 * S], [0.25])}
    footprint = attribute(trace(), one_watt(14), steps=steps_, shares=shares)
    [row] = footprint.to_records()
    assert (row["energy_j"], row["active_s"]) == pytest.approx((14 / 4, 14))
