"""Precision: the paper's experiments on recordings and programs, and our intervals against a known truth."""

import io
import itertools
import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

import joulemap
from joulemap.accounting import attribute
from joulemap.cli import main
from joulemap.devices import Domain
from joulemap.precision.coverage import Trial, coverage
from joulemap.precision.footprints import stefs_by_stretch
from joulemap.precision.overhead import Overhead, Run
from joulemap.precision.repeats import stability, widening
from joulemap.precision.sampling import sparsing, thinned
from joulemap.recording import RecordingInfo, RecordingWriter
from joulemap.traces import EventTrace, PowerTrace

from .recordings import unsynced
from .variants import write_variant

DOCS = Path(__file__).parents[1] / "docs"
H200 = Path(__file__).parents[1] / "src" / "joulemap" / "data" / "bert-h200.joulemap"
MS = 1_000_000


def run(*arguments, check=0):
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", said)
        with pytest.raises(SystemExit) as ended:
            main(["precision", *map(str, arguments)])
    assert ended.value.code == check
    return said.getvalue()


def test_our_intervals_hold_the_truth_as_often_as_they_say():
    """A thousand runs through the whole accounting: operations, and the modules around them."""
    found = {one.name: one.share for one in coverage(1000)}
    assert set(found) >= {
        "model/attention/MatMul",
        "model/attention/Softmax",
        "model/attention",
        "model/output",
    }
    assert {name: share for name, share in found.items() if not 0.93 <= share <= 0.97} == {}


def test_a_meter_that_cannot_see_an_operation_is_off_whatever_the_interval_says():
    """The documented limit: near the meter's period, operations are given some of each other's power."""
    (fine,) = (one for one in coverage(60, Trial(period_s=0.001)) if one.name.endswith("Softmax"))
    (coarse,) = (one for one in coverage(60, Trial(period_s=0.05)) if one.name.endswith("Softmax"))
    assert abs(fine.bias) < 0.05 < coarse.bias
    assert coarse.share < fine.share


def test_a_thinned_trace_holds_the_same_energy():
    trace = PowerTrace(
        Domain("GPU:0", "GPU:0", update_period_s=0.1), np.arange(8) * 100 * MS, np.arange(1.0, 8.0)
    )
    thin = thinned(trace, 3)
    assert thin.edges_ns.tolist() == [0, 300 * MS, 600 * MS, 700 * MS]
    assert thin.energy_j.tolist() == [6.0, 15.0, 7.0]
    assert thin.domain.update_period_s == pytest.approx(0.3)
    nothing = PowerTrace(Domain("GPU:0", "GPU:0"), [], [])
    assert len(thinned(nothing, 2)) == 0


@pytest.fixture(name="uneven", scope="module")
def make_uneven(tmp_path_factory):
    """Operations of a few milliseconds that draw very different power, metered every millisecond."""
    path = tmp_path_factory.mktemp("precision") / "uneven.joulemap"
    rng = np.random.default_rng(0)
    length = rng.integers(3, 12, 300)
    edges = np.concatenate(([0], np.cumsum(length))) * MS
    kind = np.arange(300) % 7
    events = EventTrace.from_columns(
        name=[f"m/op{'abcdefg'[number]}" for number in kind],
        device="GPU:0",
        start_ns=edges[:-1],
        end_ns=edges[1:],
    )
    fine = np.arange(0, edges[-1] + 1, MS)
    power = 100.0 + 100.0 * kind[np.searchsorted(edges[1:], fine[:-1], side="right")]
    trace = PowerTrace(Domain("GPU:0", "GPU:0", update_period_s=0.001), fine, power / 1000)
    with unsynced(), RecordingWriter.create(path, RecordingInfo(window_ns=(0, int(edges[-1])))) as writer:
        writer.put_events(events)
        writer.put_power(trace)
    return path


def test_similarity_falls_as_the_meter_gets_slower(uneven):
    found = sparsing(joulemap.load(uneven))
    assert found[0].similarity == pytest.approx(1.0)
    assert [one.factor for one in found] == [2**power for power in range(len(found))]
    assert found[-1].period_s == pytest.approx(0.001 * found[-1].factor)
    similar = [one.similarity for one in found]
    assert similar[3] > similar[-1]
    assert similar[-1] < 0.95


def test_more_runs_and_runs_against_each_other():
    stefs = [{"a": 1.0, "b": 2.0, "c": 4.0}, {"a": 1.0, "b": 2.0, "c": 4.0}, {"a": 4.0, "b": 2.0, "d": 1.0}]
    assert [one.experiments for one in widening(stefs, 1)] == [2, 3]
    two, three = (one.similarity for one in widening(stefs, 1))
    assert two == pytest.approx(1.0)
    assert three == pytest.approx(np.corrcoef([1, 2, 4, 0], [2, 2, 8 / 3, 1 / 3])[0, 1])
    matrix = np.array(stability(stefs, 1))
    assert np.diag(matrix) == pytest.approx(1.0)
    assert matrix == pytest.approx(matrix.T)
    assert matrix[0, 2] < 0.7
    assert stability(stefs, 2) == ((pytest.approx(1.0),),)
    assert widening(stefs, 2) == []


def test_the_stretches_of_a_recording_are_its_repeats():
    footprint = joulemap.account(H200)
    stefs = stefs_by_stretch(footprint)
    assert len(stefs) == len(footprint.blocks)
    assert sum(sum(stef.values()) for stef in stefs) == pytest.approx(footprint.attributed_j)
    assert (
        stefs_by_stretch(attribute(EventTrace.from_columns(name=[], device=[], start_ns=[], end_ns=[]), []))
        == []
    )


def test_one_recording_by_its_steps(tmp_path):
    content = json.loads(run(H200, "--json", "--plot", tmp_path / "p.svg"))
    assert content["of"] == "stretches of steps"
    assert content["asss"][0] == {"factor": 1, "period_s": 0.1, "pcc": pytest.approx(1.0)}
    assert min(min(row) for row in content["stability_pcc"]) > 0.7
    assert content["overhead"] is None
    picture = ET.parse(tmp_path / "p.svg")
    name = "{http://www.w3.org/2000/svg}"
    assert len(list(picture.iter(f"{name}circle"))) == len(content["asss"]) + len(content["assw"])
    assert len(list(picture.iter(f"{name}rect"))) == len(content["stability_pcc"]) ** 2
    texts = [(float(one.get("x")), one.text) for one in picture.iter(f"{name}text")]
    ticks = [(x, text) for x, text in texts if text[0].isdigit() and text.endswith("s")]
    assert len(ticks) > 1
    assert all(after[0] - before[0] >= 6 * len(before[1]) for before, after in itertools.pairwise(ticks))
    page = (DOCS / "json.md").read_text()
    assert [
        key for key in (*content, *content["asss"][0], *content["assw"][0]) if f"`{key}`" not in page
    ] == []


def test_recordings_are_runs_and_some_of_them_an_experiment(tmp_path):
    paths = [write_variant(tmp_path / f"r-{number}.joulemap", number, steps=3) for number in range(4)]
    said = run(*paths, "--together", 2)
    assert "4 recordings, 2 together" in said
    assert "strong" in said
    assert "\x1b[" not in said
    alone = run(paths[0], "--together", 3)
    assert "not known: there is only one" in alone


def test_what_recording_costs():
    runs = tuple((Run(10.0, 100.0), Run(10.0 * more, 100.0)) for more in (1.01, 1.03, 1.02))
    overhead = Overhead(runs)
    assert overhead.time.relative == pytest.approx(0.02, abs=1e-4)
    assert 0 > overhead.time.low > -0.02
    assert overhead.time.high > 0.04
    assert overhead.energy.relative == overhead.energy.low == overhead.energy.high == 0.0
    assert Overhead(runs[:1]).time.low is None


def test_a_program_is_run_in_turns_with_and_without(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import pathlib, sys\n"
        "with (pathlib.Path(__file__).parent / 'log').open('a') as log:\n"
        "    log.write(f\"{'joulemap.recorder.inside' in sys.modules} {sys.argv[1:]}\\n\")\n"
        "print(sum(number * number for number in range(300_000)))\n"
    )
    done = subprocess.run(
        [
            *(sys.executable, "-m", "joulemap", "precision", "--runs", "2", "--overhead", "0"),
            *("-o", tmp_path / "runs", "--json", program, "--json", "x"),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    content = json.loads(run_of := done.stdout[: done.stdout.rindex("}") + 1])
    assert done.stdout == f"{run_of}\n"
    assert len(content["overhead"]["pairs"]) == 2
    assert all(value > 0 for pair in content["overhead"]["pairs"] for value in pair.values())
    assert (tmp_path / "log").read_text().count("['--json', 'x']\n") == 4
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["run-0.joulemap", "run-1.joulemap"]


def test_coverage_can_be_asked_for():
    content = json.loads(run("--coverage", "--runs", 5, "--json"))
    assert content["runs"] == 5
    assert all(0 <= one["share"] <= 1 for one in content["coverage"])
    assert "model/attention/MatMul" in run("--coverage", "--runs", 5)


@pytest.mark.parametrize(
    "arguments", [(), ("nowhere.joulemap",), (__file__,), ("--runs", "2", "nowhere.py"), ("-m", "nowhere")]
)
def test_what_cannot_be_examined_is_refused(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(*arguments, check=2)
