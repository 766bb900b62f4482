"""Exports, read back by what they are for: a trace processor, schemas, pandas' and Graphviz's own readers."""

import csv
import gzip
import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import jsonschema
import numpy as np
import pyarrow.parquet as pq
import pygraphviz
import pytest

import joulemap
from joulemap.accounting.charges import energy_of_events
from joulemap.accounting.diagram import energy_distribution
from joulemap.cli import commands
from joulemap.commands import export as export_command
from joulemap.devices import Domain
from joulemap.exports import FORMATS, tables
from joulemap.exports.graph import dot, quoted
from joulemap.exports.picture import svg
from joulemap.exports.source import Asked, Source
from joulemap.exports.tracks import tracks_of
from joulemap.program import Program
from joulemap.recording import RecordingInfo, RecordingWriter
from joulemap.traces import EventTrace, PowerTrace, Steps

from .recordings import unsynced
from .test_summarise import footprint_of
from .trace_processor import TraceProcessor

ROOT = Path(__file__).parents[1]
H200 = ROOT / "src" / "joulemap" / "data" / "bert-h200.joulemap"
MS = 1_000_000
T0 = 1_790_000_000_000_000_000


def export(recording, to, output, *more):
    commands.main(
        ["export", str(recording), "--to", to, "-o", str(output), *map(str, more)], standalone_mode=False
    )
    return output


@pytest.fixture(name="recording", scope="module")
def make_recording(tmp_path_factory):
    """Two devices, three domains, kernels side by side, a name that is trouble, and a step nobody traced."""
    path = tmp_path_factory.mktemp("export") / "run.joulemap"
    start = T0 + MS * np.array([10, 12, 20, 30, 0, 45, 60])
    end = T0 + MS * np.array([20, 22, 30, 40, 40, 50, 60])
    events = EventTrace.from_columns(
        name=["m/a/MatMul", "m/a/Add", "m/b/MatMul", "m/b/MatMul", "m/x;y z/<op>", "m/a/MatMul", "m/b/Nop"],
        device=["GPU:0"] * 4 + ["CPU:0"] * 2 + ["GPU:0"],
        start_ns=start,
        end_ns=end,
        phase=["forward", "forward", "forward", "backward", "other", "forward", "forward"],
        step=[0, 0, 0, 0, 0, 0, 0],
    )
    edges = T0 + MS * np.arange(0, 101, 10)
    domains = [
        Domain("GPU:0", "GPU:0", update_period_s=0.01),
        Domain("package-0", "CPU"),
        Domain("dram-0", "CPU"),
    ]
    steps = Steps.from_columns(
        start_ns=[T0, T0 + 70 * MS], end_ns=[T0 + 70 * MS, T0 + 100 * MS], traced=[1, 0]
    )
    info = RecordingInfo(command=["train.py"], window_ns=(T0, T0 + 100 * MS), host={"name": "here"})
    program = Program.of(
        {"m/a/MatMul": "MatMul", "m/a/Add": "Add", "m/b/MatMul": "MatMul"},
        [("m/a/MatMul", "m/a/Add"), ("m/a/Add", "m/b/MatMul")],
    )
    with unsynced(), RecordingWriter.create(path, info) as writer:
        writer.put_events(events)
        writer.put_steps(steps)
        for scale, domain in enumerate(domains, 1):
            gap = np.arange(10) == 9
            writer.put_power(PowerTrace(domain, edges, np.where(gap, 0.0, scale * np.arange(1.0, 11.0)), gap))
        writer.put_program(program)
    return path


@pytest.fixture(name="perfetto", scope="module")
def make_perfetto(recording, tmp_path_factory):
    return TraceProcessor(export(recording, "perfetto", tmp_path_factory.mktemp("p") / "run.json.gz"))


def test_every_event_is_a_slice_with_its_joules(perfetto, recording):
    rows = perfetto.query(
        "SELECT s.name, s.ts, s.dur, s.category, extract_arg(s.arg_set_id, 'args.energy_j') AS energy_j, "
        "process.name AS device FROM slice s JOIN thread_track t ON s.track_id = t.id "
        "JOIN thread USING (utid) JOIN process USING (upid) WHERE process.name != 'steps' ORDER BY s.ts"
    )
    events = joulemap.load(recording).events()
    assert [row["ts"] for row in rows] == sorted((events.start_ns - T0).tolist())
    assert sorted(row["dur"] for row in rows) == sorted((events.end_ns - events.start_ns).tolist())
    assert {row["name"] for row in rows} == set(events.name.words)
    assert {row["device"] for row in rows} == {"GPU:0", "CPU:0"}
    footprint = joulemap.account(recording)
    traced_j = footprint.attributed_j - float(footprint.projected_j.sum())
    assert sum(row["energy_j"] for row in rows) == pytest.approx(traced_j, rel=1e-5)
    gpu = {row["name"]: row["energy_j"] for row in rows if row["device"] == "GPU:0" and row["dur"] == 10 * MS}
    assert gpu["m/a/Add"] == pytest.approx(0.8 * 2 / 2 + 0.2 * 3 / 2, rel=1e-5)


def test_nothing_is_wrong_with_the_trace(perfetto):
    assert perfetto.query("SELECT name, value FROM stats WHERE severity != 'info' AND value > 0") == []


def test_power_is_a_counter_of_its_device(perfetto):
    rows = perfetto.query("SELECT name, ts, value FROM counter JOIN counter_track t ON track_id = t.id")
    gpu = [(row["ts"], row["value"]) for row in rows if row["name"].startswith("GPU:0 power")]
    assert gpu[:3] == [(0, 100.0), (10 * MS, 200.0), (20 * MS, 300.0)]
    assert {row["name"] for row in rows} == {f"{name} power W" for name in ("GPU:0", "package-0", "dram-0")}
    unread = perfetto.query("SELECT ts FROM slice WHERE name = 'GPU:0 was not read'")
    assert unread == [{"ts": 90 * MS}]


def test_steps_and_domains_are_in_the_trace(perfetto):
    assert [row["name"] for row in perfetto.query("SELECT name FROM slice WHERE category = 'step'")] == [
        "step 0",
        "step 1",
    ]
    keys = {row["key"] for row in perfetto.query("SELECT DISTINCT key FROM args")}
    assert {"args.energy_j package-0", "args.energy_j dram-0", "args.phase", "args.power_w"} <= keys


def test_slices_that_do_not_nest_get_tracks_of_their_own():
    events = EventTrace.from_columns(
        name=list("abcde"),
        device="GPU:0",
        start_ns=[0, 5, 6, 10, 12],
        end_ns=[10, 15, 8, 20, 18],
        lane=["stream 7"] * 5,
    )
    tracks = tracks_of(events)
    assert tracks.of_event.tolist() == [0, 1, 0, 0, 0]
    assert tracks.names == ["stream 7", "stream 7 (2)"]
    assert tracks_of(events.take(slice(0, 0))).names == []


def test_a_plain_trace_is_written_where_the_name_says_so(recording, tmp_path):
    plain = json.loads(export(recording, "perfetto", tmp_path / "run.json").read_text())
    packed = json.loads(gzip.decompress(export(recording, "perfetto", tmp_path / "run.json.gz").read_bytes()))
    assert plain == packed
    assert plain["otherData"]["start_ns"] == T0


def test_event_energies_add_up_to_the_footprint():
    recording = joulemap.load(H200)
    (gpu,) = energy_of_events(
        recording.events(), recording.power(), steps=recording.steps(), window_ns=recording.info.window_ns
    )
    assert gpu.energy_j.sum() == pytest.approx(joulemap.account(recording).attributed_j, rel=1e-9)
    assert (gpu.energy_j >= 0).all()


def test_folded_stacks_hold_all_energy_that_was_drawn(recording, tmp_path):
    footprint = joulemap.account(recording)
    lines = export(recording, "folded", tmp_path / "f").read_text().splitlines()
    stacks = {stack: int(weight) for stack, weight in (line.rsplit(" ", 1) for line in lines)}
    drawn_uj = (footprint.attributed_j + footprint.idle_j) * 1e6
    assert sum(stacks.values()) == pytest.approx(drawn_uj, abs=len(stacks))
    assert "GPU:0;m;b;MatMul_(backward)" in stacks
    assert "CPU:0;m;x_y_z;<op>_(other)" in stacks
    assert "CPU;package-0_idle" in stacks


def test_speedscope_reads_its_own_schema(recording, tmp_path):
    content = json.loads(export(recording, "speedscope", tmp_path / "s").read_text())
    schema = json.loads((ROOT / "tests" / "data" / "speedscope.schema.json").read_text())
    jsonschema.validate(content, schema)
    footprint = joulemap.account(recording)
    drawn_mj = (footprint.attributed_j + footprint.idle_j) * 1e3
    assert sum(sum(profile["weights"]) for profile in content["profiles"]) == pytest.approx(drawn_mj)
    names = [frame["name"] for frame in content["shared"]["frames"]]
    gpu = next(profile for profile in content["profiles"] if profile["name"].startswith("GPU:0"))
    assert ["m", "a", "Add"] in [[names[frame] for frame in sample] for sample in gpu["samples"]]


@pytest.mark.parametrize("source", ["recording", H200])
def test_json_keeps_its_published_schema(source, recording, tmp_path):
    path = export(recording if source == "recording" else source, "json", tmp_path / "j")
    schema = json.loads((ROOT / "docs" / "schemas" / "export-1.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    content = json.loads(path.read_text())
    jsonschema.validate(content, schema, jsonschema.Draft202012Validator)
    parts = ("attributed_j", "idle_j", "other_processes_j", "outside_j", "baseline_j")
    assert sum(content[part] for part in parts) == pytest.approx(content["measured_j"])
    del content["rows"][0]["energy_j"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(content, schema, jsonschema.Draft202012Validator)


def test_tables_carry_their_units_and_add_up(recording, tmp_path):
    footprint = joulemap.account(recording)
    table = pq.read_table(export(recording, "parquet", tmp_path / "rows.parquet"))
    assert table.to_pylist() == footprint.to_records()
    assert table.schema.metadata[b"recording"] == b"run.joulemap"
    with export(recording, "csv", tmp_path / "rows.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert sum(float(row["energy_j"]) for row in rows) == pytest.approx(footprint.attributed_j)
    power = pq.read_table(export(recording, "parquet", tmp_path / "p", "--table", "power"))
    assert sum(power["energy_j"].to_pylist()) == pytest.approx(footprint.measured_j)
    events = pq.read_table(export(recording, "parquet", tmp_path / "e", "--table", "events"))
    projected = float(footprint.projected_j.sum())
    assert sum(events["energy_j"].to_pylist()) == pytest.approx(footprint.attributed_j - projected)
    steps = pq.read_table(export(recording, "parquet", tmp_path / "s", "--table", "steps"))
    assert steps["GPU:0_energy_j"].to_pylist() == pytest.approx(footprint.accounts[0].step_j.tolist())
    for one in (table, power, events, steps):
        units = {"name", "op", "phase", "device", "domain", "provenance", "calls", "spread", "interval"}
        units |= {"kind", "label", "step", "traced", "gap"}
        assert all(name.endswith(("_j", "_w", "_s", "_ns")) for name in set(one.column_names) - units)


@pytest.mark.parametrize("table", ["footprint", "events", "power", "steps"])
def test_an_empty_recording_makes_empty_tables(table, tmp_path):
    with unsynced(), RecordingWriter.create(tmp_path / "none.joulemap", RecordingInfo()):
        pass
    for to in ("csv", "parquet"):
        export(tmp_path / "none.joulemap", to, tmp_path / to, "--table", table)
    assert pq.read_table(tmp_path / "parquet").num_rows == 0


def test_the_diagram_is_graphviz_s_and_looks_like_the_paper_s(recording, tmp_path):
    graph = pygraphviz.AGraph(export(recording, "dot", tmp_path / "d", "--module", "m").read_text())
    shown = {node.attr["label"].split("\\n")[0]: node.attr["style"] for node in graph.nodes()}
    assert shown == {"a": "rounded,filled", "b": "rounded,filled", "x;y z": "rounded,filled"}
    assert [tuple(graph.get_node(end).attr["label"][0] for end in edge) for edge in graph.edges()] == [
        ("a", "b")
    ]
    inner = pygraphviz.AGraph(export(recording, "dot", tmp_path / "e", "--module", "m/a").read_text())
    assert {node.attr["style"] for node in inner.nodes()} == {"filled"}


def test_the_picture_has_every_box_arrow_and_share(recording, tmp_path):
    picture = ET.parse(export(recording, "svg", tmp_path / "m.svg", "--module", "m", "--phase", "forward"))
    name = "{http://www.w3.org/2000/svg}"
    texts = [text.text for text in picture.iter(f"{name}text")]
    footprint = joulemap.account(recording).where(phase="forward")
    shares = [
        f"{100 * node.energy_j / footprint.attributed_j:.1f} %"
        for node in footprint.tree().children[0].children
    ]
    assert texts == [texts[0], "a", shares[0], "b", shares[1]]
    assert [rect.get("rx") for rect in picture.iter(f"{name}rect")] == ["12", "12"]
    assert len([path for path in picture.iter(f"{name}path") if path.get("marker-end")]) == 1
    assert "m/a: " in next(picture.iter(f"{name}title")).text
    deep = footprint_of({"a_long_name/of_a_layer/deep_inside/x": 1.0})
    inside = ET.fromstring(svg(energy_distribution(deep, Program(), "a_long_name/of_a_layer/deep_inside")))
    assert float(inside.get("width")) > 7 * len("a_long_name/of_a_layer/deep_inside · 1.00 J")


def test_names_are_names_whatever_they_look_like():
    names = ['<script>alert("1")</script>', 'back\\n"slash', "a" * 200, "層"]
    footprint = footprint_of({f"m/{name}": 1.0 for name in names if "/" not in name} | {"m/<b>&": 2.0})
    diagram = energy_distribution(footprint, Program(), "m")
    document = ET.fromstring(svg(diagram))
    assert "<b>&" in "".join(document.itertext())
    assert not [element for element in document.iter() if element.tag.endswith(("}b", "script"))]
    labels = [node.attr["label"] for node in pygraphviz.AGraph(dot(diagram)).nodes()]
    assert len(labels) == len(diagram.boxes)
    assert quoted('a\\n"b"') == '"a\\\\n\\"b\\""'


def test_layers_of_a_kind_can_be_one(recording, tmp_path):
    source = Source(joulemap.load(recording), Asked(summarised=True))
    assert source.footprint.attributed_j == pytest.approx(joulemap.account(recording).attributed_j)
    assert set(source.program.operations) <= set(source.footprint.name.words)
    assert ("m/a/Add", "m/b/MatMul") in source.program.edges


def run(*arguments, check=0):
    done = subprocess.run(
        [sys.executable, "-m", "joulemap", "export", *map(str, arguments)], capture_output=True, check=False
    )
    assert done.returncode == check, done.stderr
    assert b"Traceback" not in done.stderr
    return done


def test_standard_output_is_the_file_and_nothing_else(recording, tmp_path):
    piped = run(recording, "--to", "folded", "-o", "-")
    assert piped.stdout.decode() == export(recording, "folded", tmp_path / "f").read_text()
    assert piped.stderr == b""


def test_what_is_refused_leaves_nothing_behind(recording, tmp_path):
    output = tmp_path / "a.svg"
    assert (
        b"no layer 'm/nothing'"
        in run(recording, "--to", "svg", "--module", "m/nothing", "-o", output, check=2).stderr
    )
    assert (
        b"phase 'sideways'"
        in run(recording, "--to", "svg", "--phase", "sideways", "-o", output, check=2).stderr
    )
    assert list(tmp_path.iterdir()) == []
    recency = ("--rule", "recency", "-o", output)
    assert b"shared out by time" in run(recording, "--to", "perfetto", *recency, check=2).stderr
    output.write_text("mine")
    assert b"--overwrite" in run(recording, "--to", "svg", "-o", output, check=2).stderr
    assert output.read_text() == "mine"
    assert b"Wrote" in run(recording, "--to", "svg", "-o", output, "--overwrite").stdout


def test_choices_on_the_command_line_are_those_of_the_code():
    assert export_command.TABLES == tables.TABLES


def test_every_format_has_its_row_in_the_documentation():
    page = (ROOT / "docs" / "export.md").read_text()
    assert all(f"`{name}`" in page for name in FORMATS)
