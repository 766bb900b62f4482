"""One rule for all views: what one traced step stands for has no interval, since nothing says how alike steps
are; what stands for itself has the meter's."""

import io
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

import joulemap
from joulemap.accounting import attribute
from joulemap.accounting.diagram import energy_distribution
from joulemap.devices import Domain
from joulemap.exports.graph import dot
from joulemap.labels import Labels
from joulemap.report.contents import contents
from joulemap.traces import KINDS, Steps
from joulemap.views.question import Question
from joulemap.views.show import answer, to_json
from joulemap.views.table import Heading, render

from .command_line import said
from .report_recordings import write_partly_traced
from .small_traces import S, one_watt, trace

KNOWN = {"net/MatMul": True, "net/Rare": False, "(start-up)": True}


@pytest.fixture(name="recording", scope="module")
def make_recording(tmp_path_factory):
    return joulemap.load(write_partly_traced(tmp_path_factory.mktemp("intervals") / "part.joulemap"))


@pytest.fixture(name="footprint", scope="module")
def make_footprint(recording):
    return joulemap.account(recording)


def test_one_traced_step_for_many_has_no_interval(footprint):
    rows = {record["name"]: record for record in footprint.to_records()}
    assert {name: row["interval"] for name, row in rows.items()} == KNOWN
    assert {name: row["spread"] for name, row in rows.items()} == {**KNOWN, "(start-up)": False}
    assert rows["net/Rare"]["low_j"] <= rows["net/Rare"]["energy_j"] <= rows["net/Rare"]["high_j"]


def test_a_sum_with_a_known_spread_has_an_interval(footprint):
    (net,) = [node for node in footprint.tree().children if node.name == "net"]
    assert net.half_width_j is not None
    assert [node.half_width_j is None for node in net.children] == [False, True]


def test_the_terminal_prints_it_and_says_why(recording):
    shown = said("show", recording.path, "--by", "tensor")
    lines = {line.split()[0]: line for line in shown.splitlines() if line and not line.startswith(" ")}
    assert {name: "±" in lines[name] for name in KNOWN} == KNOWN
    assert "1 of 3 lines have no ±: one traced step stands" in shown
    assert "1 of 3 lines have the meter's ± alone" in shown


def test_the_printed_tree_has_no_interval_that_is_not_known(footprint):
    printed = {line.split()[0]: line for line in str(footprint.tree()).splitlines()}
    assert "±" in printed["MatMul"]
    assert "±" not in printed["Rare"]


def test_steps_keep_what_the_meter_resolves(footprint):
    assert all(line.half_width_j for line in answer(footprint, Question(by="step")).lines)


def test_json_pictures_and_the_page_say_the_same(recording, footprint):
    by_tensor = to_json(footprint, Question(by="tensor"))["rows"]
    assert {row["name"]: row["interval"] for row in by_tensor} == KNOWN
    drawn = dot(energy_distribution(footprint, recording.program(), "net"))
    told = dict(re.findall(r'tooltip="([^:]+): ([^"]+)"', drawn))
    assert {name: "±" in text for name, text in told.items()} == {
        name: KNOWN[name] for name in ("net/MatMul", "net/Rare")
    }
    page = json.loads(json.dumps(contents(recording, footprint)))
    assert {row["name"]: row["interval"] for row in page["tensors"]["energy"]} == KNOWN
    view = page["nodes"]["views"]["all"]
    names = [page["nodes"]["name"][node] for node in view["node"]]
    assert dict(zip(names, view["interval"], strict=True)) == {
        "net": 1,
        "MatMul": 1,
        "Rare": 0,
        "(start-up)": 1,
    }


@pytest.mark.parametrize("costed", [True, False])
def test_what_has_a_cost_is_as_sure_as_that_where_one_traced_step_stands_for_all(costed):
    """Three steps of a second, one of them traced, in which one operation works for half of the time."""
    steps = Steps.from_columns(start_ns=[0, S, 2 * S], end_ns=[S, 2 * S, 3 * S], traced=[True, False, False])
    footprint = attribute(
        trace(("A", 0, 0.5), step=[0], device="GPU:0"),
        one_watt(3, Domain("GPU:0", "GPU:0", update_period_s=0.1)),
        "calibrated",
        steps=steps,
        weights=np.ones(1),
        idle_weight=1.0,
        cost_rms=np.array([0.04 if costed else np.nan]),
    )
    [row] = footprint.to_records()
    assert (row["interval"], row["spread"]) == (costed, False)
    if costed:
        assert row["high_j"] - row["energy_j"] >= 1.9 * 0.04 * row["energy_j"] / 2  # half of it is waiting
    console = Console(file=io.StringIO(), width=200)
    render(answer(footprint, Question(by="tensor")), Heading("run", []), console)
    shown = console.file.getvalue()
    assert ("± of meter and costs alone" in shown) == costed
    assert ("no ±" in shown) != costed


def test_waiting_in_untraced_steps_is_as_sure_as_the_work_that_leaves_it():
    """Of eight steps of a second every second one is traced; a GPU works for 0.4 or 0.6 s of these."""
    begins = S * np.arange(8)
    steps = Steps.from_columns(start_ns=begins, end_ns=begins + S, traced=[True, False] * 4)
    events = trace(
        *(("A", 2 * number, 2 * number + length) for number, length in enumerate([0.4, 0.6] * 2)),
        step=[0, 2, 4, 6],
        device="GPU:0",
    )
    power = one_watt(8, Domain("GPU:0", "GPU:0", update_period_s=1e-6))
    halves_j = {}
    for kind in ("kernel", "op"):
        of_kind = replace(events, kind=Labels.among(KINDS, kind, len(events)))
        footprint = attribute(of_kind, power, steps=steps)
        low_j, high_j = footprint.accounts[0].idle_interval_j(footprint.blocks)
        assert footprint.idle_j == pytest.approx(4)
        halves_j[kind] = (high_j - low_j) / 2
    of_traced_j = halves_j["op"] / 2  # a CPU's waiting in untraced steps goes by that of traced ones
    assert halves_j["kernel"] == pytest.approx(np.hypot(2 * of_traced_j, of_traced_j), rel=0.2)
