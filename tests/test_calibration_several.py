"""Several GPUs in one recording: pipelines over them, replicas and ranks that call the same on each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from joulemap.accounting import Footprint
from joulemap.api import account, load
from joulemap.calibrating import Candidates, covered_by, left_to_time
from joulemap.calibration.book import Calibration
from joulemap.calibration.cost import Cost
from joulemap.calibration.operation import Operation, own_seconds, places
from joulemap.calibration.recorded import CALIBRATION, calibrated
from joulemap.commands.calibrate import _costs
from joulemap.devices import Domain
from joulemap.labels import Labels
from joulemap.merging import merge
from joulemap.recorder.finish import FLAGS
from joulemap.recording import Recording, RecordingInfo, RecordingWriter
from joulemap.recording.info import save_info
from joulemap.recording.names import SIGNATURES
from joulemap.traces import EventTrace, PowerTrace, Steps

from .calibrated_recordings import called
from .recordings import unsynced

MS = 1_000_000
STEPS, STEP_MS, IDLE_W = 4, 100, 50.0
NUMBER = "12345678-1234-1234-1234-1234567890a"
COSTS_J, LASTS_MS = {"mm": 8.0, "add": 2.0}, {"mm": 20, "add": 40}
"""Of one call. The multiplication draws 400 W, the addition 50 W."""
Calls = list[tuple[str, str, str]]
"""In each step, one after the other on each GPU: the name, the operation and the GPU."""
PIPELINE: Calls = [("a/mm", "mm", "GPU:0"), ("a/add", "add", "GPU:0"), ("b/mm", "mm", "GPU:1")]
REPLICAS: Calls = [("net/mm", "mm", "GPU:0"), ("net/mm", "mm", "GPU:1"), ("net/add", "add", "GPU:1")]


def operation(op: str) -> Operation:
    return Operation.of(called(op, [8]))


def drawn_j(calls: Calls, device: str) -> float:
    """What a GPU draws in a step."""
    here = [op for _, op, where in calls if where == device]
    return sum(COSTS_J[op] for op in here) + IDLE_W * (STEP_MS - sum(LASTS_MS[op] for op in here)) / 1e3


def write(
    path: Path,
    calls: Calls,
    models: tuple[str, ...] = ("NVIDIA H200", "NVIDIA H200"),
    metered: Calls | None = None,
    **more: Any,
) -> Recording:
    columns: dict[str, list[Any]] = {
        key: [] for key in ("name", "device", "start_ns", "end_ns", "kind", "lane")
    }
    for step in range(STEPS):
        free_ms = {"GPU:0": step * STEP_MS, "GPU:1": step * STEP_MS}
        for number, (name, op, device) in enumerate(calls):
            begin = step * STEP_MS + number
            launch = (name, "CPU", begin * MS, begin * MS + 1000, "op", f"thread {device}")
            until = free_ms[device] + LASTS_MS[op]
            kernel = (name, device, free_ms[device] * MS, until * MS, "kernel", f"stream {device}")
            free_ms[device] = until
            for one in (launch, kernel):
                for column, value in zip(columns.values(), one, strict=True):
                    column.append(value)
    edges = STEP_MS * MS * np.arange(STEPS + 1)
    rows = [{**called(op, [8], STEPS), "name": name} for name, op in dict.fromkeys(one[:2] for one in calls)]
    which = {f"cuda:{number}": f"{model} {NUMBER}{number}" for number, model in enumerate(models)}
    info = RecordingInfo(window_ns=(0, int(edges[-1])), extra={FLAGS: {"gpus": which}}, **more)
    with unsynced(), RecordingWriter.create(path, info) as writer:
        writer.put_events(EventTrace.from_columns(**columns, phase="forward"))
        writer.put_steps(Steps.from_columns(start_ns=edges[:-1], end_ns=edges[1:]))
        for device in ("GPU:0", "GPU:1") if metered != [] else ():
            step_j = drawn_j(metered or calls, device)
            writer.put_power(PowerTrace(Domain(device, device), edges, [step_j] * STEPS))
        writer.put_table(SIGNATURES, pa.Table.from_pylist(rows))
    return Recording.open(path)


def calibrate(recording: Recording, **of: Any) -> Calibration:
    """As if that had been replayed on the device that is calibrated."""
    found = Candidates.of(recording)
    costs = {operation(op): Cost(COSTS_J[op], LASTS_MS[op] / 1e3, 0.01, 2) for op in COSTS_J}
    domain = found.power.domain
    known = Calibration(domain.device, IDLE_W, costs, domain=domain.name, alike=found.alike, **of)
    recording.info.extra[CALIBRATION] = known.to_json()
    save_info(recording.path, recording.info)
    return known


@pytest.mark.parametrize("calls", [PIPELINE, REPLICAS])
def test_what_is_measured_on_one_gpu_holds_on_others_of_its_model(tmp_path: Path, calls: Calls) -> None:
    recording = write(tmp_path / "r.joulemap", calls)
    known = calibrate(recording)
    assert sorted(known.devices) == ["GPU:0", "GPU:1"]
    found = calibrated(load(recording.path))
    assert found.closure is not None
    assert found.closure.total == pytest.approx(1.0)
    assert found.weights.covered == pytest.approx(1.0)
    assert covered_by(known, recording) == pytest.approx(1.0)
    assert left_to_time(known, recording) == []
    told, by_time = account(recording.path, "calibrated"), account(recording.path)
    truth_j: dict[str, float] = {}
    for name, op, _ in calls:
        truth_j[name] = truth_j.get(name, 0.0) + STEPS * COSTS_J[op]
    assert energies(told) == pytest.approx(truth_j)
    assert energies(by_time) != pytest.approx(truth_j, rel=0.1)
    [said, *_] = found.notes()
    assert " and 1 more of its model is calibrated, by what operations took on GPU:" in said


def energies(footprint: Footprint) -> dict[str, float]:
    """Of operations, on all GPUs together."""
    every: dict[str, float] = {}
    for name, device, joules in zip(footprint.name, footprint.device, footprint.energy_j, strict=True):
        if device.startswith("GPU") and "/" in name:
            every[name] = every.get(name, 0.0) + joules
    return every


def test_of_what_is_called_on_several_each_has_its_own_calls(tmp_path: Path) -> None:
    """Else what eight ranks call eight times would be taken for eight calls on each GPU."""
    recording = write(tmp_path / "r.joulemap", REPLICAS)
    for device in ("GPU:0", "GPU:1"):
        here = places(recording.events(), device, [{**called("mm", [8]), "name": "net/mm"}])
        assert [(one.name, one.executions) for one in here] == [("net/mm", STEPS)]


def test_merged_ranks_are_calibrated_as_a_whole(tmp_path: Path) -> None:
    """The first one has the meters of both."""
    host = {"machine": "one"}
    ranks = [
        write(
            tmp_path / f"{rank}.joulemap",
            [call for call in REPLICAS if call[2] == f"GPU:{rank}"],
            metered=[] if rank else REPLICAS,
            rank=rank,
            world_size=2,
            host=host,
        )
        for rank in (0, 1)
    ]
    merge(ranks, tmp_path / "job.joulemap")
    recording = load(tmp_path / "job.joulemap")
    calibrate(recording)
    found = calibrated(load(recording.path))
    assert found.closure is not None
    assert found.closure.total == pytest.approx(1.0)
    told = account(recording.path, "calibrated")
    assert energies(told) == pytest.approx({"net/mm": STEPS * 16.0, "net/add": STEPS * 2.0})


def test_what_runs_on_any_of_them_is_replayed(tmp_path: Path) -> None:
    found = Candidates.of(write(tmp_path / "r.joulemap", REPLICAS))
    assert dict(found.busy.seconds) == pytest.approx(
        {operation("mm"): 2 * STEPS * 0.02, operation("add"): STEPS * 0.04}
    )
    assert found.busy.total_s == pytest.approx(STEPS * 0.08)


@pytest.mark.parametrize("models", [("NVIDIA H200", "NVIDIA H100"), ("NVIDIA H200",), ()])
def test_others_stay_shared_by_time(
    tmp_path: Path, models: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Of another model, or where nobody has said which they are."""
    recording = write(tmp_path / "r.joulemap", PIPELINE, models)
    known = calibrate(recording)
    [device] = known.devices
    [other] = {"GPU:0", "GPU:1"} - {device}
    assert left_to_time(known, recording) == [other]
    weights = calibrated(load(recording.path)).weights
    assert (
        weights.watts[recording.events().device.codes == recording.events().device.code(other)] == 1
    ).all()
    _costs(known, 0.5, [other])
    assert f"The energy of {other} stays shared by time" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("op", ["mm", "add"])
def test_one_of_which_no_operation_has_a_cost_stays_shared_by_time(tmp_path: Path, op: str) -> None:
    """It may be the one on which the costs of the others were measured."""
    calls = [("a/mm", "mm", "GPU:0"), ("b/add", "add", "GPU:1")]
    recording = write(tmp_path / "r.joulemap", calls)
    every = calibrate(recording)
    known = replace(every, costs={operation(op): every.costs[operation(op)]})
    recording.info.extra[CALIBRATION] = known.to_json()
    save_info(recording.path, recording.info)
    [own] = [device for _, other, device in calls if other == op]
    [other] = {"GPU:0", "GPU:1"} - {own}
    found = calibrated(load(recording.path))
    assert found.calibration.devices == [own]
    assert list(found.calibration.idle_weight) == [own]
    assert left_to_time(known, recording) == [other]
    share = LASTS_MS[op] / (LASTS_MS["mm"] + LASTS_MS["add"])
    assert covered_by(known, recording) == found.weights.covered == pytest.approx(share)
    assert found.left
    assert f"{other} ran nothing that has a cost, and is shared by time." in found.notes()


@pytest.mark.parametrize("others_in", [[0], [1, 2, 3]])
def test_calls_are_told_step_by_step(tmp_path: Path, others_in: list[int]) -> None:
    """Of four, in all of which the first GPU works; what was called is said in the first."""
    recording = write(tmp_path / "r.joulemap", REPLICAS)
    events, steps = recording.events(), recording.steps()
    of_other = np.array([device.endswith("1") for device in map(str, events.lane or ())])
    kept = events.take(~of_other | np.isin(steps.at(events.start_ns), others_in))
    said = [operation("mm").key if step == 0 else "" for step in steps.at(kept.start_ns).tolist()]
    kept = replace(kept, signature=Labels.of(said))
    [place, *_] = places(kept, "GPU:0", [{**called("mm", [8]), "name": "net/mm"}], steps)
    assert place.executions == pytest.approx(STEPS)


def test_what_a_call_takes_itself_is_told_by_the_calls_on_its_device(tmp_path: Path) -> None:
    """An operation that calls another one, which is called alone on another GPU."""
    names = ["net/outer", "net/outer/inner", "net/outer/inner"]
    events = EventTrace.from_columns(
        name=[*names, "net/outer", "net/outer/inner", "net/outer/inner"],
        device=["CPU"] * 3 + ["GPU:0", "GPU:0", "GPU:1"],
        start_ns=[0, 10, 100, 1000, 2000, 2000],
        end_ns=[90, 80, 150, 2000, 3000, 3000],
        kind=["op"] * 3 + ["kernel"] * 3,
        lane=["thread"] * 3 + ["stream 0", "stream 0", "stream 1"],
        phase="forward",
    )
    rows = [{**called("outer", [8]), "name": "net/outer"}]
    [place] = places(events, "GPU:0", rows)
    assert place.part == pytest.approx(0.5)


def test_of_one_meter_only_its_device_counts(tmp_path: Path) -> None:
    """As where a single GPU is validated."""
    recording = write(tmp_path / "r.joulemap", PIPELINE)
    calibrate(recording)
    for power in recording.power():
        found = calibrated(load(recording.path), power=power)
        assert found.calibration.devices == [power.domain.device]
        assert found.closure is not None
        assert found.closure.total == pytest.approx(1.0)


def test_a_recording_keeps_which_are_alike(tmp_path: Path) -> None:
    known = calibrate(write(tmp_path / "r.joulemap", PIPELINE))
    again = Calibration.from_json(known.to_json())
    assert again.alike == known.alike
    assert again.on(again.devices[1]).idle_weight == {again.devices[1]: IDLE_W}


def test_own_seconds_are_computed_once_and_cannot_be_changed(tmp_path: Path) -> None:
    events = write(tmp_path / "r.joulemap", PIPELINE).events()
    assert own_seconds(events) is own_seconds(events)
    with pytest.raises(ValueError, match="read-only"):
        own_seconds(events)[0] = 1.0
