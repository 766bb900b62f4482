"""Costs as weights of a program's events: where operations ran, how long, and what the others draw."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from joulemap.accounting.rows import BY_TIME_RMS
from joulemap.api import load
from joulemap.calibration.book import Calibration
from joulemap.calibration.busy import Busy
from joulemap.calibration.closure import Closure
from joulemap.calibration.cost import TRANSFER_RMS, Cost
from joulemap.calibration.operation import COVERED, Operation, busy_s, by_time, own_seconds, places
from joulemap.calibration.recorded import CALIBRATION, SIGNATURES, Calibrated, calibrated
from joulemap.calibration.weights import UNSEEN_RMS, Weights, weigh, what_is_left
from joulemap.devices import Domain
from joulemap.errors import InputError
from joulemap.recording import RecordingInfo, RecordingWriter
from joulemap.traces import NO_STEP, EventTrace, PowerTrace, Steps

from .calibrated_recordings import called
from .recordings import unsynced

S = 1_000_000_000


def test_a_place_knows_its_busy_time_and_how_often_it_ran():
    events = EventTrace.from_columns(
        name=["net/mm", "net/mm", "net/mm", "net/add", "net/add", "net/lost"],
        device=["CPU", "GPU:0", "GPU:0", "CPU", "GPU:0", "GPU:0"],
        start_ns=[0, S, 2 * S, 3, 4 * S, 5 * S],
        end_ns=[1, 2 * S, 4 * S, 4, 5 * S, 6 * S],
        kind=["op", "kernel", "kernel", "op", "kernel", "kernel"],
        phase="forward",
    )
    here = places(events, "GPU:0", [called("mm", [8, 8]), called("add", [8]), called("gone", [8])])
    found = {place.name: (place.busy_s, place.executions) for place in here}
    assert found == {"net/mm": (3.0, 1), "net/add": (1.0, 1)}
    assert busy_s(events, "GPU:0") == pytest.approx(5.0)
    seconds = by_time(here, own_seconds(events))
    assert [operation.op for operation in seconds] == ["mm", "add"]


def test_of_a_place_with_several_operations_the_larger_take_longer():
    events = EventTrace.from_columns(
        name=["net/mm", "net/mm"],
        device="GPU:0",
        start_ns=[0, S],
        end_ns=[S, 2 * S],
        kind="kernel",
        phase="forward",
    )
    small, large = called("mm", [8, 8]), called("mm", [9000, 1000], types='["half"]')
    several = called("mm", [], shapes="[[[1000, 3000], [1000, 5000], []], [], null]", calls=2)
    unknown = called("mm", [], types="[]", shapes="")
    seconds = by_time(places(events, "GPU:0", [small, large, several, unknown]), own_seconds(events))
    assert list(seconds.values()) == pytest.approx([2 * 18 / 30, 2 * 10 / 30, 2 / 30, 2 / 30], rel=1e-3)


def test_an_event_weighs_its_cost_over_its_time_here_and_others_what_kinds_do_on_the_mean():
    events = EventTrace.from_columns(
        name=["net/mm", "net/mm", "net/mm", "net/add", "net/lost"],
        device=["CPU", "GPU:0", "GPU:0", "GPU:0", "GPU:0"],
        start_ns=[0, S, 2 * S, 4 * S, 5 * S],
        end_ns=[1, 2 * S, 4 * S, 5 * S, 6 * S],
        kind=["op", "kernel", "kernel", "kernel", "kernel"],
        phase="forward",
    )
    here = places(events, "GPU:0", [called("mm", [8, 8], cold="1"), called("add", [8], cold="0")])
    mm, add = by_time(here, own_seconds(events))
    costs = {mm: Cost(600.0, 2.0, 0.01, 2), add: Cost(100.0, 1.0, 0.02, 2)}
    found = weigh(events, here, Calibration("GPU:0", 0.0, costs))
    assert found.watts[1:] == pytest.approx([200, 200, 100, 150])
    assert np.isnan(found.cost_rms).tolist() == [True, False, False, False, True]
    assert found.cost_rms[3] == pytest.approx(np.hypot(0.02, TRANSFER_RMS))
    assert (found.covered, found.known_j, found.unknown_j) == pytest.approx((0.8, 700, 150))
    with pytest.raises(InputError, match="No operation on GPU:0"):
        weigh(events, here, Calibration("GPU:0", 0.0, {}))


def test_what_runs_while_nothing_is_traced_is_no_part_of_what_could_be_covered():
    """Stretches of untraced steps have what a session saw between them, as ``validate`` cuts them."""
    events = EventTrace.from_columns(
        name=["net/mm", "(between steps)"],
        device="GPU:0",
        start_ns=[0, 2 * S],
        end_ns=[S, 9 * S],
        kind="kernel",
    )
    here = places(events, "GPU:0", [called("mm", [8, 8], phase="other")])
    (mm,) = by_time(here, own_seconds(events))
    known = Calibration("GPU:0", 0.0, {mm: Cost(600.0, 1.0, 0.01, 2)})
    steps = Steps.from_columns(start_ns=[0, S], end_ns=[S, 9 * S], traced=[True, False])
    assert weigh(events, here, known, steps=steps).covered == 1.0


@pytest.mark.parametrize(
    ("alone_s", "here_j"),
    [
        (2.0, 600.0 + 50.0),  # one second longer than by itself
        (3.0, 600.0),
        (5.0, 600.0 - 100.0),  # it was launched from afar, and the device waited for that
        (40.0, 3 * 50.0),  # and never less than idle
    ],
)
def test_what_lasts_longer_than_by_itself_draws_idle_power_for_that(alone_s: float, here_j: float):
    events = EventTrace.from_columns(
        name="net/mm", device="GPU:0", start_ns=[0], end_ns=[3 * S], kind="kernel", phase="forward"
    )
    here = places(events, "GPU:0", [called("mm", [8, 8])])
    (mm,) = by_time(here, own_seconds(events))
    found = weigh(events, here, Calibration("GPU:0", 50.0, {mm: Cost(600.0, alone_s, 0.01, 2)}))
    assert found.known_j == pytest.approx(here_j)


def test_idle_power_is_drawn_once_where_streams_work_side_by_side():
    """Each of two products takes twice as long beside the other, and the device no longer than both."""
    events = EventTrace.from_columns(
        name="net/mm",
        device="GPU:0",
        lane=["stream 1", "stream 2"],
        start_ns=[0, 0],
        end_ns=[2 * S, 2 * S],
        kind="kernel",
        phase="forward",
    )
    here = places(events, "GPU:0", [called("mm", [8, 8])])
    (mm,) = by_time(here, own_seconds(events))
    found = weigh(events, here, Calibration("GPU:0", 100.0, {mm: Cost(300.0, 1.0, 0.01, 2)}))
    assert found.known_j == pytest.approx(600)


@pytest.mark.parametrize(
    ("here_s", "longer_s"), [(0.9, -0.1), (1.0, 0.0), (1.1, 0.0), (1.2, 0.0), (1.5, 0.3)]
)
def test_what_clocks_explain_is_not_longer(here_s: float, longer_s: float):
    """At clocks at which nobody saw it, it may last as long as before, or up to 1.2 times as long."""
    events = EventTrace.from_columns(
        name="net/mm",
        device="GPU:0",
        start_ns=[0],
        end_ns=[round(here_s * S)],
        kind="kernel",
        phase="forward",
    )
    here = places(events, "GPU:0", [called("mm", [8, 8])])
    (mm,) = by_time(here, own_seconds(events))
    alone = Cost(400.0, 1.0, 0.01, 2, clock_mhz=1980.0)
    at = Calibration("GPU:0", 100.0, {mm: alone}).at(1650.0)
    assert weigh(events, here, at).known_j == pytest.approx(at.costs[mm].energy_j + 100 * longer_s)


def test_what_has_no_cost_weighs_what_its_like_does():
    """Products of 300 W, copies of 100 W: another copy is like these, and what nobody knows in between."""
    events = EventTrace.from_columns(
        name=["net/mm", "net/copy_", "net/head/copy_", "net/(lost)"],
        device="GPU:0",
        start_ns=[0, 8 * S, 9 * S, 10 * S],
        end_ns=[8 * S, 9 * S, 10 * S, 11 * S],
        kind="kernel",
        phase="forward",
    )
    here = places(events, "GPU:0", [called("mm", [8, 8]), called("copy_", [8])])
    mm, copy = by_time(here, own_seconds(events))
    costs = {mm: Cost(2400.0, 8.0, 0.01, 2), copy: Cost(100.0, 1.0, 0.02, 2)}
    found = weigh(events, here, Calibration("GPU:0", 50.0, costs), rest=0.5)
    assert found.watts == pytest.approx([300, 100, 50, 100])
    assert (found.known_j, found.unknown_j) == pytest.approx((2500, 150))


PROMPT, TOKEN = called("mm", [8192, 64]), called("mm", [8, 64])
KINDS = Steps.from_columns(
    start_ns=[0, 4 * S, 8 * S, 12 * S], end_ns=[4 * S, 8 * S, 12 * S, 16 * S], label=["prefill", "decode"] * 2
)


def read_and_said(known: int) -> EventTrace:
    """A prompt is read in 3 s, a word said in 1, twice; the first steps' calls say what was given."""
    keys = [Operation.of(PROMPT).key, Operation.of(TOKEN).key] * 2
    start = np.repeat([0, 4 * S, 8 * S, 12 * S], 2)
    return EventTrace.from_columns(
        name="net/mm",
        device=["CPU", "GPU:0"] * 4,
        start_ns=start,
        end_ns=start + np.array([1, 3 * S, 1, S] * 2),
        kind=["op", "kernel"] * 4,
        phase="forward",
        signature=[
            key if part == 0 and step < known else "" for step, key in enumerate(keys) for part in (0, 1)
        ],
    )


def test_kinds_of_steps_that_call_the_same_with_something_else_are_places_of_their_own():
    events = read_and_said(known=2)
    here = places(events, "GPU:0", [PROMPT, TOKEN], KINDS)
    found = {place.executions * place.busy_s: [one.shapes for one in place.calls] for place in here}
    assert found == {2 * 6.0: ["[[8192, 64]]"], 2 * 2.0: ["[[8, 64]]"]}
    costs = {Operation.of(PROMPT): Cost(1800.0, 3.0, 0.01, 2), Operation.of(TOKEN): Cost(200.0, 1.0, 0.01, 2)}
    weights = weigh(events, here, Calibration("GPU:0", 50.0, costs))
    assert weights.watts[1::2] == pytest.approx([600, 200] * 2)
    assert weights.known_j == pytest.approx(2 * (1800 + 200))


def test_kinds_are_one_where_a_gpu_does_their_work_in_another_step():
    """It was given nothing of what is given there, and no operation is counted twice."""
    events = read_and_said(known=2)
    late = np.where(events.device.isin(["GPU:0"]), 4 * S, 0)
    events = replace(events, start_ns=events.start_ns + late, end_ns=events.end_ns + late)
    (place,) = places(events.take(slice(0, 2)), "GPU:0", [PROMPT, TOKEN], KINDS)
    assert (place.busy_s, place.executions, place.rows.tolist()) == (pytest.approx(3), 1, [1])
    assert [one.shapes for one in place.calls] == ["[[8192, 64]]"]


def test_labels_of_every_step_do_not_take_memory():
    labels = [f"request {number}" for number in range(2000)]
    steps = Steps.from_columns(start_ns=np.arange(2000) * 10, end_ns=np.arange(2000) * 10 + 9, label=labels)
    events = EventTrace.from_columns(
        name=[f"net/{number}/mm" for number in range(2000)],
        device="GPU:0",
        start_ns=np.arange(2000) * 10,
        end_ns=np.arange(2000) * 10 + 5,
    )
    rows = [called("mm", [8], name=f"net/{number}/mm", phase="other") for number in range(2000)]
    tracemalloc.start()
    assert len(places(events, "GPU:0", rows, steps)) == 2000
    assert tracemalloc.get_traced_memory()[1] < 20e6
    tracemalloc.stop()


def test_what_a_kind_of_step_was_called_with_is_what_all_were_where_it_does_not_say():
    """Nor do recordings of before."""
    shapes = {"[[8192, 64]]": 1, "[[8, 64]]": 1}
    for events, steps in ((read_and_said(known=0), KINDS), (read_and_said(known=2), None)):
        for place in places(events, "GPU:0", [PROMPT, TOKEN], steps):
            assert {one.shapes: calls for one, calls in place.calls.items()} == shapes
    first, second = places(read_and_said(known=1), "GPU:0", [PROMPT, TOKEN], KINDS)
    assert [len(first.calls), len(second.calls)] == [1, 2]


def test_what_an_operation_calls_is_not_counted_twice():
    """A linear of 1 s itself calls an addmm of 3 s; a mul with a scalar calls the mul that works."""
    events = EventTrace.from_columns(
        name=["net/linear", "net/addmm", "net/mul", "net/mul"],
        device="CPU",
        start_ns=[0, S, 4 * S, 4 * S],
        end_ns=[4 * S, 4 * S, 6 * S, 6 * S],
        lane="thread 1",
        kind="op",
        phase="forward",
    )
    rows = [called("linear", [8, 8]), called("addmm", [8, 8]), called("mul", [8])]
    here = {place.name: place for place in places(events, "CPU", rows)}
    assert [place.executions for place in here.values()] == [1, 1, 1]
    assert [place.part for place in here.values()] == pytest.approx([0.25, 1, 1])
    costs = {Operation.of(row): Cost(400.0, 4.0, 0.01, 2) for row in rows}
    found = weigh(events, list(here.values()), Calibration("CPU", 0.0, costs))
    assert found.known_j == pytest.approx(100 + 300 + 200)  # a CPU works as long as it takes


@pytest.mark.parametrize("device", ["CPU", "CPU:1"])
def test_what_a_cpu_does_between_operations_draws_what_it_does_in_them(device: str):
    """However many watts that is; and it is busy meanwhile, on whichever socket that is metered."""
    events = EventTrace.from_columns(
        name=["net/mm", "net/(python)", "net/add"],
        device="CPU",
        start_ns=[0, S, 3 * S],
        end_ns=[S, 3 * S, 4 * S],
        kind=["op", "runtime", "op"],
        phase="forward",
    )
    rows = [called("mm", [8, 8]), called("add", [8])]
    mm, add = map(Operation.of, rows)
    costs = {mm: Cost(70.0, 1.0, 0.01, 2), add: Cost(5.0, 0.1, 0.01, 2)}
    found = weigh(events, places(events, device, rows), Calibration(device, 0.1, costs))
    assert found.watts == pytest.approx([70, 60, 50])
    assert (found.covered, found.known_j, found.unknown_j) == pytest.approx((0.5, 120, 120))


@pytest.mark.parametrize(("other_s", "counts"), [(1.0, 2.0), (1.2, 2.0), (3.0, 4.0), (0.2, 1.2)])
def test_what_was_not_seen_and_takes_another_time_was_given_something_else(other_s: float, counts: float):
    """A second step kept no shapes: it is like the first, or as much more as its work takes longer."""
    events = EventTrace.from_columns(
        name="net/mm",
        device=["CPU", "GPU:0"] * 2,
        start_ns=[0, 0, 4 * S, 4 * S],
        end_ns=[1, S, 4 * S + 1, 4 * S + round(other_s * S)],
        kind=["op", "kernel"] * 2,
        phase="forward",
        signature=[Operation.of(TOKEN).key, "", "", ""],
    )
    steps = Steps.from_columns(start_ns=[0, 4 * S], end_ns=[4 * S, 8 * S])
    (place,) = places(events, "GPU:0", [TOKEN], steps)
    assert place.executions == pytest.approx(counts)
    costs = {Operation.of(TOKEN): Cost(200.0, 1.0, 0.01, 2)}
    found = weigh(events, [place], Calibration("GPU:0", 50.0, costs))
    assert found.known_j == pytest.approx(200 * counts + 50 * (1 + other_s - counts))


def test_of_a_place_that_is_known_in_part_the_rest_weighs_what_its_like_does():
    """Two calls in 4 s: one is known to take 1 s and 300 J, so the other took 3 s, and drew as much."""
    events = EventTrace.from_columns(
        name=["net/mm", "net/add"],
        device="GPU:0",
        start_ns=[0, 4 * S],
        end_ns=[4 * S, 5 * S],
        kind="kernel",
        phase="forward",
    )
    rows = [called("mm", [8, 8], cold="1"), called("mm", [9, 9]), called("add", [8])]
    here = places(events, "GPU:0", rows)
    small, add = Operation.of(rows[0]), Operation.of(rows[2])
    here = [replace(place, executions=len(place.calls)) for place in here]
    costs = {small: Cost(300.0, 1.0, 0.01, 2), add: Cost(100.0, 1.0, 0.01, 2)}
    found = weigh(events, here, Calibration("GPU:0", 0.0, costs))
    assert found.watts == pytest.approx([300, 100])
    assert (found.covered, found.known_j, found.unknown_j) == pytest.approx((0.4, 400, 900))
    less = weigh(events, here, Calibration("GPU:0", 0.0, costs), rest=0.5)
    assert less.watts == pytest.approx([(300 + 3 * 150) / 4, 100])
    assert np.isnan(found.cost_rms).tolist() == [True, False]
    costs = {**costs, small: Cost(900.0, 3.0, 0.01, 2)}
    longer = weigh(events, here, Calibration("GPU:0", 0.0, costs))
    assert longer.cost_rms[0] == pytest.approx(
        np.hypot(0.75 * np.hypot(0.01, TRANSFER_RMS), 0.25 * BY_TIME_RMS)
    )
    assert longer.covered == pytest.approx(0.8)
    slower = weigh(events, here, Calibration("GPU:0", 0.0, {small: Cost(800.0, 9.0, 0.01, 2)}))
    assert slower.watts == pytest.approx([200, 200])


def test_what_has_no_cost_has_what_is_left_as_far_as_costs_are_sure():
    assert what_is_left(50.0, 50.0, 100.0) == 1.0
    assert what_is_left(100.0, 0.0, 80.0) == 1.0
    half = what_is_left(50.0, 50.0, 80.0)
    assert 50 + half * 50 == pytest.approx(80, abs=1)
    little = what_is_left(99.0, 1.0, 97.0)
    assert 0.9 < little < 1.0
    assert (what_is_left(50.0, 50.0, 10.0), what_is_left(50.0, 50.0, 900.0)) == (0.5, 2.0)


@pytest.mark.parametrize(
    ("cold", "shape", "rms"),
    [("", [8], UNSEEN_RMS), ("", [20000, 20000], TRANSFER_RMS), ("0", [8], TRANSFER_RMS)],
)
def test_where_nobody_looked_into_the_cache_costs_of_what_fits_into_it_are_less_sure(cold, shape, rms):
    events = EventTrace.from_columns(
        name=["net/add"], device="GPU:0", start_ns=[0], end_ns=[S], kind="kernel", phase="forward"
    )
    row = called("add", shape, cold=cold)
    costs = {Operation.of(row): Cost(100.0, 1.0, 0.0, 2)}
    found = weigh(events, places(events, "GPU:0", [row]), Calibration("GPU:0", 0.0, costs))
    assert found.cost_rms == pytest.approx([rms])
    assert found.looked == bool(cold)
    said = Calibrated(found, Calibration("GPU:0", 0.0, costs), None).notes()
    assert any("in a cache" in one for one in said) != bool(cold)


def test_what_is_between_steps_is_no_part_of_what_could_be_covered():
    events = EventTrace.from_columns(
        name=["(start-up)", "net/mm", "net/(python)"],
        device="CPU",
        start_ns=[0, 10 * S, 11 * S],
        end_ns=[10 * S, 11 * S, 12 * S],
        kind=["runtime", "op", "runtime"],
        phase="forward",
    )
    row = called("mm", [8, 8])
    known = Calibration("CPU", 0.1, {Operation.of(row): Cost(70.0, 1.0, 0.01, 2)})
    steps = Steps.from_columns(start_ns=[10 * S], end_ns=[12 * S])
    found = weigh(events, places(events, "CPU", [row], steps), known, steps=steps)
    assert found.watts == pytest.approx([70, 70, 70])
    assert (found.covered, found.known_j, found.unknown_j) == pytest.approx((0.5, 70, 70))


def test_a_cpu_that_is_slower_while_it_is_traced_adds_up(tmp_path: Path):
    """Of a traced step of 4 s it works 3, so of the others, of 2 s, it works 1.5."""
    row, cpu = called("mm", [8, 8]), Domain("CPU", "CPU")
    start_ns, end_ns = [0, 4 * S, 6 * S], [4 * S, 6 * S, 8 * S]
    steps = Steps.from_columns(start_ns=start_ns, end_ns=end_ns, traced=[True, False, False])
    edges = np.arange(9) * S
    known = Calibration("CPU", 10.0, {Operation.of(row): Cost(90.0, 1.0, 0.01, 2)}, domain="CPU")
    info = RecordingInfo(extra={CALIBRATION: known.to_json()})
    with unsynced(), RecordingWriter.create(tmp_path / "r.joulemap", info) as writer:
        writer.put_events(
            EventTrace.from_columns(
                name="net/mm",
                device="CPU",
                start_ns=[0],
                end_ns=[3 * S],
                kind="op",
                phase="forward",
                lane="main",
            )
        )
        writer.put_steps(steps)
        writer.put_power(PowerTrace(cpu, edges, np.full(8, 0.75 * 90 + 0.25 * 10)))
        writer.put_table(SIGNATURES, pa.Table.from_pylist([row]))
    closure = calibrated(load(tmp_path / "r.joulemap")).closure
    assert closure is not None
    assert closure.total == pytest.approx(1.0)


def test_what_is_planned_is_of_what_is_said_to_be_calibrated():
    """Operations between steps are seen by chance, and Python in steps has no cost: of the 10 s that count 8
    are operations', half of them one's."""
    steps = Steps.from_columns(start_ns=[0, 20 * S], end_ns=[10 * S, 30 * S], traced=[True, False])
    mm, add, tanh = (Operation.of(called(op, [8])) for op in ("mm", "add", "tanh"))
    events = EventTrace.from_columns(
        name=["net/mm", "net/add", "net/(python)", "net/tanh"],
        device="CPU",
        start_ns=[0, 4 * S, 8 * S, 10 * S],
        end_ns=[4 * S, 8 * S, 10 * S, 19 * S],
        phase="forward",
        kind=["op", "op", "runtime", "op"],
        step=[0, 0, 0, NO_STEP],
    )
    signatures = [called("mm", [8]), called("add", [8]), called("tanh", [8])]
    here = places(events, "CPU", signatures, steps)
    found = Busy.of(events, "CPU", here, steps)
    assert found.seconds == {mm: 4.0, add: 4.0, tanh: 0.0}
    assert (found.total_s, found.operations_s) == (10.0, 8.0)
    assert found.enough == pytest.approx(0.8 * COVERED)
    known = Calibration("CPU", 1.0, {mm: Cost(1.0, 1.0, 0.01, 2)})
    assert found.covered(known.costs) == weigh(events, here, known, steps=steps).covered == pytest.approx(0.4)
    assert found.leaves([mm], [])
    assert not found.leaves([mm], [add])
    assert not found.leaves([mm, add], [])
    outside = events.take(np.array([2, 3]))  # where operations are not in steps at all, all of them count
    alone = Busy.of(outside, "CPU", places(outside, "CPU", signatures, steps), steps)
    assert (alone.seconds, alone.total_s) == ({tanh: 9.0}, 11.0)


def test_a_longer_budget_is_advised_where_it_would_replay_more():
    """And not where all that is left is Python, or cannot be replayed."""
    little = Calibrated(
        Weights(np.zeros(0), np.zeros(0), 0.2, 1.0, 4.0), Calibration("CPU", 1.0, {}), Closure(0.2, 0.0, 0.7)
    )
    [more] = little.warnings()
    [none] = replace(little, left=False).warnings()
    assert "a longer --budget replays more operations" in more
    assert "no longer --budget has more" in none


@pytest.mark.parametrize(("device", "look"), [("CPU", False), ("GPU:0", True)])
def test_who_looks_into_a_cache_is_said_where_anybody_can(device: str, look: bool):
    weights = Weights(np.zeros(0), np.zeros(0), 0.8, 1.0, 1.0, looked=False)
    said = Calibrated(weights, Calibration(device, 1.0, {}), None).notes()[-1]
    assert said.startswith("Nobody has looked")
    assert ("run --calibrate looks" in said) == look
