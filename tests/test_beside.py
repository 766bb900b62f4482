"""Calibrated beside time-based: every view says what the rule has changed."""

import json

import pyarrow.parquet as pq
import pytest

import joulemap
from joulemap.accounting.diagram import energy_distribution
from joulemap.accounting.watching import watched
from joulemap.calibration.recorded import costs_by_name
from joulemap.comparing.variant import Run, Variant
from joulemap.exports.graph import dot
from joulemap.exports.source import Asked, Source
from joulemap.report.contents import contents

from .calibrated_recordings import CALIBRATED_J, STEPS, TIME_BASED_J, write_calibrated
from .command_line import said


@pytest.fixture(name="path", scope="module")
def make_path(tmp_path_factory):
    return write_calibrated(tmp_path_factory.mktemp("beside") / "run.joulemap")


@pytest.fixture(name="footprint", scope="module")
def make_footprint(path):
    return joulemap.account(path, "calibrated")


def each(energies, times=STEPS):
    return pytest.approx({name: times * joules for name, joules in energies.items()})


def column(footprint, name):
    return {record["name"]: record[name] for record in footprint.to_records()}


def test_a_calibrated_footprint_knows_what_time_alone_gives(path, footprint):
    assert column(footprint, "energy_j") == each(CALIBRATED_J)
    assert column(footprint, "time_based_j") == each(TIME_BASED_J)
    (account,) = footprint.accounts
    assert (account.idle_j, account.idle_time_based_j) == pytest.approx((8.0, 22.4))
    by_time = joulemap.account(path)
    assert column(by_time, "time_based_j") == column(by_time, "energy_j") == each(TIME_BASED_J)
    assert by_time.tree().children[0].time_based_j is None


def test_the_progress_of_two_accountings_is_that_of_one(path):
    told = []
    with watched(told.append):
        joulemap.account(path, "calibrated")
    assert told == sorted(told)
    assert told[0] <= 0.5 < told[-1] <= 1.0


def test_sums_of_rows_and_net_energy_keep_it(path, footprint):
    (net,) = footprint.tree(depth=1).children
    assert (net.energy_j, net.time_based_j) == pytest.approx((48.0, 33.6))
    above, by_time = footprint.net({"GPU:0": 10.0}), joulemap.account(path).net({"GPU:0": 10.0})
    assert column(above, "time_based_j") == pytest.approx(column(by_time, "energy_j"))
    assert above.accounts[0].idle_time_based_j == pytest.approx(by_time.accounts[0].idle_j)


def test_the_terminal_has_a_column_for_it(path):
    shown = said("show", path, "--rule", "calibrated", "--by", "op")
    assert "at the edges, and how far costs are off." in " ".join(shown.split())
    assert "and what the meter resolves at the edges." in " ".join(said("show", path).split())
    lines = {line.split()[0]: line for line in shown.splitlines() if line.strip()}
    assert lines["op"].split()[1:4] == ["energy", "by", "time"]
    assert "11.2 J" in lines["MatMul"]
    assert "22.4 J" in next(line for line in shown.splitlines() if line.startswith("GPU:0 idle"))
    assert "shared out by time alone (--rule exact)" in shown
    assert "by time:" not in said("show", path)


def test_what_is_too_short_for_the_meter_is_said_where_time_alone_shares_it_out(path):
    note = "2 of 2 lines run for less than one update of the meter (100 ms) at a time"
    assert note in said("show", path, "--by", "op")
    assert note not in said("show", path, "--by", "module")
    assert note not in said("show", path, "--by", "op", "--rule", "calibrated")


def test_a_comparison_shows_the_change_that_time_alone_sees(path, tmp_path):
    more = write_calibrated(tmp_path / "more.joulemap", factor=1.5)
    content = json.loads(said("compare", path, more, "--rule", "calibrated", "--depth", 2, "--json"))
    assert content["rule"] == "calibrated"
    rows = {row["name"]: row for row in content["comparisons"][0]["rows"]}
    matmul = rows["net/MatMul"]
    assert (matmul["relative"], matmul["time_based_relative"]) == pytest.approx((0.5, 4 / 14))
    assert rows["net/Add"]["relative"] == pytest.approx(0.0, abs=1e-9)
    assert rows["net/Add"]["time_based_relative"] == pytest.approx(4 / 14)
    shown = said("compare", path, more, "--rule", "calibrated")
    assert "by time" in shown
    assert "+28.6 %" in shown
    assert "by time |" in said("compare", path, more, "--rule", "calibrated", "--markdown")
    assert "by time" not in said("compare", path, more)


def test_a_comparison_knows_by_which_costs_energy_was_shared(path, tmp_path):
    """A module has the costs of all that is in it."""
    other = write_calibrated(tmp_path / "other.joulemap", factor=1.2)
    amounts = {}
    for one in (path, other):
        footprint, costs = joulemap.account(one, "calibrated"), costs_by_name(joulemap.load(one))
        [amounts[one]] = Variant("it", (Run("it", footprint, STEPS, costs),)).amounts("module")
    for name, same in {"net": False, "net/MatMul": False, "net/Add": True}.items():
        mine, theirs = amounts[path][name], amounts[other][name]
        assert (mine.costs == theirs.costs) == same
        assert mine.cost_j > 0
    assert amounts[path]["net"].costs == amounts[path]["net/MatMul"].costs | amounts[path]["net/Add"].costs
    assert amounts[path]["whole program"].cost_j == 0
    note = json.loads(said("compare", path, path, "--rule", "calibrated", "--json"))["comparisons"][0][
        "notes"
    ][0]
    assert "and what costs are off by" in note


def test_single_executions_are_charged_by_their_costs(path, tmp_path):
    charged = Source(joulemap.load(path), Asked(rule="calibrated")).charged()
    names = list(joulemap.load(path).events().name)
    assert dict(zip(names, charged.energy_j, strict=True)) == each(CALIBRATED_J, 1)
    assert charged.time_based_j is not None
    assert dict(zip(names, charged.time_based_j, strict=True)) == each(TIME_BASED_J, 1)
    table, trace = tmp_path / "events.parquet", tmp_path / "trace.json"
    said("export", path, "--to", "parquet", "--table", "events", "--rule", "calibrated", "-o", table)
    assert pq.read_table(table)["time_based_j"].to_numpy().sum() == pytest.approx(33.6)
    said("export", path, "--to", "perfetto", "--rule", "calibrated", "-o", trace)
    events = json.loads(trace.read_text())["traceEvents"]
    matmul = next(one for one in events if one["name"] == "net/MatMul")
    assert (matmul["args"]["energy_j"], matmul["args"]["time_based_j"]) == pytest.approx((8.0, 2.8))
    refused = said("export", path, "--to", "perfetto", "--rule", "recency", "-o", tmp_path / "no", check=2)
    assert "recency is for footprints" in refused


def test_pictures_tell_it_where_they_are_pointed_at(path, footprint):
    program = joulemap.load(path).program()
    assert "by time 11.2 J" in dot(energy_distribution(footprint, program, "net"))
    assert "by time" not in dot(energy_distribution(joulemap.account(path), program, "net"))


def test_the_page_holds_it(path, footprint):
    recording = joulemap.load(path)
    page = contents(recording, footprint)
    assert page["nodes"]["views"]["all"]["time_based_j"] == pytest.approx([33.6, 11.2, 22.4])
    changed = [(row["name"], row["energy_j"], row["time_based_j"]) for row in page["tensors"]["changed"]]
    assert changed == [("net/MatMul", 32.0, 11.2), ("net/Add", 16.0, 22.4)]
    plain = contents(recording, joulemap.account(recording))
    assert plain["tensors"]["changed"] is None
    assert "time_based_j" not in plain["nodes"]["views"]["all"]
