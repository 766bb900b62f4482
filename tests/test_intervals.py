"""One rule for all views: what one traced step stands for has no interval, since nothing says how alike steps
are; what stands for itself has the meter's."""

import json
import re

import pytest

import joulemap
from joulemap.accounting.diagram import energy_distribution
from joulemap.exports.graph import dot
from joulemap.report.contents import contents
from joulemap.views.question import Question
from joulemap.views.show import answer, to_json

from .command_line import said
from .report_recordings import write_partly_traced

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
