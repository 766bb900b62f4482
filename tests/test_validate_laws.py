"""A whole report on a GPU at its power limit, where operations go with clocks each in its own way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from joulemap.api import load
from joulemap.calibration.book import Calibration
from joulemap.calibration.cost import Cost
from joulemap.calibration.operation import Operation
from joulemap.calibration.recorded import CALIBRATION, CLOCK, SIGNATURES
from joulemap.recorder.experiment import EASED_STEP, REPEATING
from joulemap.recording import RecordingInfo, RecordingWriter
from joulemap.traces import EventTrace, Steps
from joulemap.validating import metered
from joulemap.validating.laws import laws
from joulemap.validating.report import CALIBRATED, Report
from joulemap.validating.stretch import Stretch
from joulemap.validating.target import Target
from joulemap.validating.validate import Experiment, report_of

from .limited_gpu import (
    BUSY,
    FACTS,
    HIGHEST_MHZ,
    IDLE_W,
    LAWS,
    OWN,
    SCALE,
    STEP,
    WORK_S,
    S,
    at_clock,
    experiment,
)
from .recordings import unsynced

BY_ITSELF = 0.7
"""Clocks of what is replayed without waits, as a part of the highest."""
NAMES = {number: f"net/{number}" for number in STEP}


def test_truths_are_told_at_the_programs_clocks_as_costs_go_with_them(tmp_path: Path) -> None:
    report = reported(tmp_path / "run.joulemap", clocks=True)
    assert report.easing is not None
    assert report.easing.plain_mhz == pytest.approx(OWN * HIGHEST_MHZ)
    for row in report.rows:
        number = int(row.name)
        assert row.truth.law == pytest.approx(LAWS[number], rel=0.002)
        assert row.truth_j == pytest.approx(at_clock([STEP[number]], OWN)[1], rel=0.015)
        assert abs(row.error(CALIBRATED) or 0.0) < 0.02  # waits draw a little more than rests
    assert report.notes[-1].endswith("and so do the truths, each as its cost goes with clocks.")
    assert [one["law"] for one in report.to_json()["rows"]] == [row.truth.law for row in report.rows]


@pytest.mark.parametrize("missing", STEP)
def test_what_has_no_cost_goes_with_clocks_as_all_does(tmp_path: Path, missing: int) -> None:
    """As do all others, where that is most of the work."""
    report = reported(tmp_path / "run.joulemap", clocks=True, missing=missing)
    for row in report.rows:
        number = int(row.name)
        true_j = at_clock([STEP[number]], OWN)[1]
        assert abs(row.truth_j - true_j) <= row.half_j
        assert row.truth_j == pytest.approx(true_j, rel=0.08)
        assert (row.truth.law == 1.0) == (number == missing or missing == 0)
    found = {int(row.name): row.truth.law for row in report.rows}
    others = [number for number in STEP if number != missing]
    if missing:
        told, true = (laws_[others[1]] / laws_[others[0]] for laws_ in (found, LAWS))
        assert told == pytest.approx(true, rel=0.002)


def test_a_module_goes_as_what_is_in_it(tmp_path: Path) -> None:
    rows = frozenset({(NAMES[1], "forward"), (NAMES[2], "forward")})
    report = reported(tmp_path / "run.joulemap", clocks=True)
    recording, easing = load(tmp_path / "run.joulemap"), report.easing
    module = Target(7, "module", "net", "", (), rows, 0.4, 0.0)
    parts = [STEP[1], STEP[2]]
    both = at_clock(parts, OWN)[1] / at_clock(parts, 1.0)[1] / SCALE
    steps = recording.steps()
    assert steps is not None
    assert laws(recording, [module], steps, "train", easing, "GPU:0") == {7: pytest.approx(both, rel=0.002)}
    assert laws(recording, [module], steps, "train", None, "GPU:0") == {}
    assert laws(recording, [module], steps, "test", easing, "GPU:0") == {}
    elsewhere = replace(module, rows=frozenset({("other", "forward")}))
    assert laws(recording, [elsewhere], steps, "train", easing, "GPU:0") == {}
    assert laws(recording, [module], steps, "train", easing, "GPU:1") == {}


def test_without_looks_at_clocks_all_truths_are_told_alike(tmp_path: Path) -> None:
    report = reported(tmp_path / "run.joulemap", clocks=False)
    assert [row.truth.law for row in report.rows] == [1.0] * len(STEP)
    assert report.notes[-1].endswith("and so do the truths.")
    off = {row.name: row.truth_j / at_clock([STEP[int(row.name)]], OWN)[1] - 1 for row in report.rows}
    assert off["0"] > 0.01
    assert max(off["1"], off["2"]) < -0.03


def reported(path: Path, clocks: bool, missing: int | None = None) -> Report:
    """On a recording of the experiment with ``joulemap calibrate``'s costs in it, all exactly right, found
    at the highest clocks and at those that each operation has by itself."""
    stretches, power = experiment()
    signatures = [
        {"name": name, "op": name, "phase": "forward", "shapes": "[[8]]", "strides": "", "types": '["float"]'}
        | {"scalars": "", "calls": 1}
        for name in NAMES.values()
    ]
    costs = {Operation.of(row): _cost(part) for row, part in zip(signatures, STEP.values(), strict=True)}
    if missing is not None:
        del costs[list(costs)[missing]]
    calibration = Calibration("GPU:0", IDLE_W, costs).to_json()
    info = RecordingInfo(window_ns=(0, stretches[-1].end_ns), extra={CALIBRATION: calibration})
    starts = np.cumsum([0.0, *BUSY.values()])
    events = EventTrace.from_columns(
        name=list(NAMES.values()),
        device="GPU:0",
        start_ns=(S * starts[:-1]).astype(int),
        end_ns=(S * starts[1:]).astype(int),
        phase="forward",
        step=[0] * len(NAMES),
    )
    with unsynced(), RecordingWriter.create(path, info) as writer:
        writer.put_events(events)
        writer.put_steps(_steps(stretches))
        writer.put_power(power)
        writer.put_table(SIGNATURES, pa.Table.from_pylist(signatures))
        writer.put_table("facts", _facts(stretches if clocks else []))
    targets = [
        Target(number, "operation", str(number), name, (), frozenset({(name, "forward")}), s / WORK_S, s, s)
        for (number, name), s in zip(NAMES.items(), BUSY.values(), strict=True)
    ]
    found = Experiment("train", "GPU:0", False, targets, {}, stretches, 12, 0, "done", "", 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metered, "_rest_w", lambda *_: IDLE_W)
        return report_of(path, found, 0.0)


def _cost(part: tuple[float, float, float]) -> Cost:
    seconds, joules = at_clock([part], BY_ITSELF)
    return Cost(joules, seconds, 0.001, 2, BY_ITSELF * HIGHEST_MHZ, part[1], HIGHEST_MHZ)


def _steps(stretches: list[Stretch]) -> Steps:
    start, end, labels = list[int](), list[int](), list[str]()
    for one in stretches:
        edges = np.linspace(one.start_ns, one.end_ns, one.steps + 1).astype(int).tolist()
        start, end = start + edges[:-1], end + edges[1:]
        labels += ["train" + (REPEATING if one.target >= 0 else EASED_STEP if one.ease else "")] * one.steps
    return Steps.from_columns(start_ns=start, end_ns=end, label=labels, traced=np.arange(len(start)) == 0)


def _facts(stretches: list[Stretch]) -> pa.Table:
    looks = [((one.start_ns + one.end_ns) // 2, f"GPU:0 {CLOCK}", one.clock_mhz) for one in stretches]
    columns = zip(*FACTS, *looks, strict=True)
    return pa.table(dict(zip(("t_ns", "name", "value"), map(list, columns), strict=True)))
