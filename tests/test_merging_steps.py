"""Ranks that traced different steps: each has its own budget for tracing."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import joulemap
from joulemap.accounting import Footprint, attribute
from joulemap.merging import merge
from joulemap.merging.together import Traced, together
from joulemap.recording import Recording, RecordingInfo, RecordingWriter
from joulemap.traces import NO_STEP, EventTrace, PowerTrace, Steps

S = 1_000_000_000
COUNT = 10
LATE = 1_000_000
"""How much later each rank begins a step than the one before it, in ns."""


def steps_of(rank: int, traced: set[int], labels: list[str] | str = "step", *, late: int = LATE) -> Steps:
    """A second each; those of a higher rank begin later."""
    start = np.arange(COUNT) * S + rank * late
    flags = [number in traced for number in range(COUNT)]
    return Steps.from_columns(start_ns=start, end_ns=start + S, traced=flags, label=labels)


def events_of(rank: int, steps: Steps, device: str, busy: float = 1.0) -> EventTrace:
    """``layer`` in each traced step, on its device, for the first part of the step."""
    start = steps.start_ns[steps.traced]
    return EventTrace.from_columns(
        name=[f"layer{rank}"] * len(start),
        device=device,
        start_ns=start,
        end_ns=start + round(busy * S),
        lane=f"rank {rank} 7",
    )


def traced_by(rank: int, traced: set[int], device: str, busy: float = 1.0, late: int = LATE) -> Traced:
    steps = steps_of(rank, traced, late=late)
    return Traced(rank, steps, events_of(rank, steps, device, busy))


def accounted(ranks: list[Traced], *watts: float) -> tuple[Footprint, dict[str, dict[str, float]]]:
    """The job's footprint, with a domain for each device; and by name its energy and calls."""
    found = together(ranks)
    edges = np.arange(COUNT + 1) * S
    devices = list(dict.fromkeys(str(word) for one in ranks for word in one.events.device.words))
    power = [
        PowerTrace(joulemap.Domain(device, device), edges, np.full(COUNT, one))
        for device, one in zip(devices, watts, strict=True)
    ]
    footprint = attribute(EventTrace.joined(found.events), power, steps=found.steps)
    return footprint, {row["name"]: row for row in footprint.to_records()}


def test_each_gpu_has_its_energy_whichever_step_its_rank_traced(tmp_path: Path) -> None:
    for rank, step in ((0, 3), (1, 5)):
        info = RecordingInfo(rank=rank, world_size=2, host={"machine": "one"}, window_ns=(0, COUNT * S))
        with RecordingWriter.create(tmp_path / f"rank{rank}.joulemap", info) as writer:
            steps = steps_of(0, {step})
            writer.put_events(events_of(rank, steps, f"GPU:{rank}"))
            writer.put_steps(steps)
            for gpu in range(2 if rank == 0 else 0):
                domain = joulemap.Domain(f"GPU:{gpu}", f"GPU:{gpu}")
                writer.put_power(PowerTrace(domain, np.arange(COUNT + 1) * S, np.full(COUNT, 100.0)))
    parts = [Recording.open(tmp_path / f"rank{rank}.joulemap") for rank in range(2)]
    merged = merge(parts, tmp_path / "job.joulemap")
    assert merged.notes == [
        "The ranks did not trace the same steps. At the time of others of their kind stand 1 of rank 1."
    ]
    footprint = joulemap.account(tmp_path / "job.joulemap")
    rows = {row["name"]: row for row in footprint.to_records()}
    for rank in range(2):
        assert rows[f"layer{rank}"]["energy_j"] == pytest.approx(1000.0)
        assert rows[f"layer{rank}"]["calls"] == pytest.approx(COUNT)
    assert footprint.idle_j == pytest.approx(0.0, abs=1e-6)


def test_ranks_of_one_processor_share_it_by_their_time_whichever_steps_they_traced() -> None:
    same = [traced_by(0, {3}, "CPU:0", busy=0.5, late=0), traced_by(1, {3}, "CPU:0", busy=0.25, late=0)]
    other = [traced_by(0, {3}, "CPU:0", busy=0.5, late=0), traced_by(1, {5}, "CPU:0", busy=0.25, late=0)]
    (expected, rows), (found, moved) = accounted(same, 80.0), accounted(other, 80.0)
    assert found.idle_j == pytest.approx(expected.idle_j) == 400.0
    for name in ("layer0", "layer1"):
        assert moved[name]["energy_j"] == pytest.approx(rows[name]["energy_j"])
        assert moved[name]["calls"] == rows[name]["calls"] == COUNT


def test_steps_that_all_have_traced_stay_as_they_are_and_the_rest_is_paired() -> None:
    ranks = [traced_by(0, {2, 4, 6}, "GPU:0"), traced_by(1, {3, 4, 7, 8}, "GPU:1")]
    found = together(ranks)
    assert found.steps is not None
    assert np.flatnonzero(found.steps.traced).tolist() == [2, 4, 6]
    assert [events.step.tolist() for events in found.events] == [[2, 4, 6], [2, 4, 6]]
    starts = found.events[1].start_ns.tolist()
    assert starts == [2 * S, 4 * S + LATE, 6 * S]  # what was traced by all is where it was
    assert found.notes == [
        "The ranks did not trace the same steps. At the time of others of their kind stand 2 of rank 1. "
        "Left out are 1 of rank 1."
    ]


@pytest.mark.parametrize("other", ["layer", "(profiler)/Activity Buffer Request"])
def test_a_step_takes_the_length_of_the_one_in_whose_place_it_stands(other: str) -> None:
    first = Steps.from_columns(start_ns=[0, 100], end_ns=[100, 300], traced=[False, True])
    second = Steps.from_columns(start_ns=[0, 100], end_ns=[100, 300], traced=[True, False])
    trace = EventTrace.from_columns(name="layer", device="GPU:0", start_ns=[110, 150], end_ns=[150, 290])
    short = EventTrace.from_columns(
        name=["layer", other], device="GPU:1", start_ns=[10, 30], end_ns=[30, 100]
    )
    found = together([Traced(0, first, trace), Traced(1, second, short)])
    assert found.events[1].start_ns.tolist() == [120, 160]
    assert found.events[1].end_ns.tolist() == [160, 300]


def test_labels_are_kept_apart_and_what_only_one_rank_has_stays() -> None:
    labels = ["train", "train", "train", "test"] + ["train"] * 6
    first, second = steps_of(0, {1, 3}, labels), steps_of(1, {2}, labels)
    found = together(
        [Traced(0, first, events_of(0, first, "GPU:0")), Traced(1, second, events_of(1, second, "GPU:1"))]
    )
    assert found.steps is not None
    assert np.flatnonzero(found.steps.traced).tolist() == [1, 3]
    assert [events.step.tolist() for events in found.events] == [[1, 3], [1]]


def test_ranks_that_were_given_other_sizes_are_in_it_together() -> None:
    """Each has all its events; before, those of a size that rank 0 did not have were idle."""
    sizes = [["inference (16 numbers)"] * COUNT, ["inference (12 numbers)"] * COUNT]
    steps = [steps_of(0, {1, 3}, sizes[0]), steps_of(1, {2, 5}, sizes[1])]
    ranks = [Traced(rank, one, events_of(rank, one, f"GPU:{rank}")) for rank, one in enumerate(steps)]
    _, rows = accounted(ranks, 1.0, 2.0)
    assert [rows[name]["energy_j"] for name in ("layer0", "layer1")] == pytest.approx([10.0, 20.0], rel=1e-6)
    assert [rows[name]["calls"] for name in ("layer0", "layer1")] == pytest.approx([COUNT, COUNT])
    found = together(ranks).steps
    assert found is not None
    assert set(found.label) == {"inference (16 numbers)"}


def test_a_rank_without_traced_steps_is_said_and_events_outside_steps_stay() -> None:
    outside = EventTrace.from_columns(name="(start-up)", device="CPU", start_ns=[-5], end_ns=[-1], lane="l")
    found = together([traced_by(0, {3}, "GPU:0"), Traced(1, steps_of(1, set()), outside)])
    assert found.events[1].start_ns.tolist() == [-5]
    assert found.events[1].step.tolist() == [NO_STEP]
    [note] = found.notes
    assert "No step of rank 1 was traced" in note
    assert together([Traced(0, None, outside), Traced(1, None, outside)]).steps is None


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sets(st.integers(0, COUNT - 1), min_size=1), min_size=2, max_size=4),
    st.booleans(),
    st.integers(0, 400_000_000),
)
def test_whichever_steps_ranks_traced_each_has_all_its_calls_and_its_energy(
    traced: list[set[int]], shared: bool, late: int
) -> None:
    devices = ["CPU:0" if shared else f"GPU:{rank}" for rank in range(len(traced))]
    ranks = [
        traced_by(rank, its, device, late=0 if shared else late)
        for rank, (its, device) in enumerate(zip(traced, devices, strict=True))
    ]
    footprint, rows = accounted(ranks, *([100.0] * len(set(devices))))
    footprint.check()
    assert footprint.measured_j == pytest.approx(1000.0 * len(set(devices)))
    part = 1000.0 / len(traced) if shared else 1000.0
    for rank in range(len(traced)):
        assert rows[f"layer{rank}"]["calls"] == pytest.approx(COUNT)
        if shared or not late:
            assert rows[f"layer{rank}"]["energy_j"] == pytest.approx(part)
    found = together(ranks)
    assert found.steps is not None
    places = [Counter(events.step.tolist()) for events in found.events]
    assert all(place == places[0] for place in places)
    assert set(np.flatnonzero(found.steps.traced).tolist()) == set(places[0])
