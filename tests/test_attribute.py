"""The accounting: the regressions of the published implementation, and the rule itself."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from joulemap.accounting import ProcessShares, attribute
from joulemap.devices import Domain
from joulemap.errors import ConservationError, InputError
from joulemap.traces import EventTrace, PowerTrace, Steps

from .small_traces import GPU, S, by_name, one_watt, trace

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


def test_what_loads_data_is_a_row_of_its_own_in_every_step():
    """In steps that were traced, in others and between them: no layer has any of it."""
    shares = {"cpu": ProcessShares.from_columns("cpu", [0, 10 * S, 20 * S], [0.8, 0.8], [0.0, 0.4])}
    steps = Steps.from_columns(
        start_ns=[0, 8 * S, 14 * S], end_ns=[6 * S, 12 * S, 18 * S], traced=[True, False, True], label="train"
    )
    footprint = attribute(
        trace(("a", 0, 6), ("a", 14, 18), device="CPU:0"),
        one_watt(20, Domain("cpu", "CPU:0")),
        window_ns=(0, 19 * S),
        steps=steps,
        shares=shares,
    )
    (row,) = (one for one in footprint.to_records() if one["name"] == "input pipeline/workers")
    assert (row["energy_j"], row["active_s"]) == (pytest.approx(0.4 * 9), pytest.approx(9))
    assert (row["provenance"], row["phase"], row["projected_j"]) == ("apportioned", "other", 0)
    assert by_name(footprint)["a"] == pytest.approx(0.8 * 6 + 0.4 * 4 + (0.8 * 2 + 0.4 * 2))
    (account,) = footprint.accounts
    assert account.step_j.tolist() == pytest.approx([0.8 * 6, 0.8 * 4, 0.8 * 4])
    assert account.idle_j == pytest.approx(0.8 * 2 + 0.4 * 3)
    assert footprint.other_processes_j == pytest.approx(0.2 * 19)


@pytest.mark.parametrize("start_s", [0, 30])
@pytest.mark.parametrize(("until_s", "said"), [(5, False), (6, True)])
def test_much_energy_between_steps_is_worth_a_word(until_s, said, start_s):
    """However long the program has taken to start."""
    spans = trace(
        ("a", 0, 2), ("(between steps)", 2, until_s), ("a", until_s, 10), ("(start-up)", 10, 10 + start_s),
        device="CPU:0",
    )  # fmt: skip
    warnings = attribute(spans, one_watt(10 + start_s, Domain("cpu", "CPU:0"))).warnings
    assert any("40.0 % of the energy after the start is of the" in one for one in warnings) == said


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


# The invariant is code.


def test_check_raises_when_energy_is_lost():
    footprint = attribute(trace(("A", 0, 10)), one_watt(20))
    with pytest.raises(ConservationError, match="too much"):
        replace(footprint, energy_j=footprint.energy_j * (1 + 1e-8)).check()
    with pytest.raises(ConservationError, match="inf"):
        replace(footprint, energy_j=np.array([np.inf])).check()
    account = replace(footprint.accounts[0], idle_j=-10.0, outside_j=20.0)
    with pytest.raises(ConservationError, match="negative"):
        replace(footprint, accounts=(account,)).check()
