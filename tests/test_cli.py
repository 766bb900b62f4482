"""The command line, as a user runs it: real processes, their output, their exit codes."""

import csv
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from joulemap import load

from .command_line import joulemap, on_a_terminal, said

DATA = Path(__file__).parent / "data"


@pytest.fixture(name="recording", scope="module")
def make_recording(tmp_path_factory):
    path = tmp_path_factory.mktemp("cli") / "bert.joulemap"
    joulemap(
        "import", "--events", DATA / "h200-step.json.gz", "--power", DATA / "h200-step-power.csv", "-o", path
    )
    return path


def test_help_names_every_command_and_says_what_it_does():
    help_text = joulemap("--help").stdout
    for command in ("demo", "import", "show"):
        assert re.search(rf"^  {command} +\S", help_text, re.MULTILINE)
    assert "joulemap show run.joulemap" in joulemap("show", "--help").stdout
    assert joulemap("--version").stdout.startswith("joulemap, version 0.")


def test_the_demo_shows_where_the_joules_went():
    shown = joulemap("demo", "--recorded").stdout
    for name in ("bert", "encoder/layer", "optimizer/AdamW", "GPU:0 idle", "measured 1.531 kJ ="):
        assert name in shown
    assert "joulemap report " in shown
    assert "\x1b[" not in shown


def test_a_recording_is_not_overwritten_by_accident(recording, tmp_path):
    arguments = (
        "--events",
        DATA / "h200-step.json.gz",
        "--power",
        DATA / "h200-step-power.csv",
        "-o",
        recording,
    )
    assert "overwrite" in joulemap("import", *arguments, check=2).stderr
    joulemap("import", *arguments, "--overwrite")


def test_json_adds_up_and_keeps_its_contract(recording):
    content = json.loads(joulemap("show", recording, "--json").stdout)
    assert content["format"] == 1
    parts = ("attributed_j", "idle_j", "other_processes_j", "outside_j", "baseline_j")
    assert sum(content[part] for part in parts) == pytest.approx(content["measured_j"], rel=1e-9)
    assert sum(row["energy_j"] for row in content["rows"]) == pytest.approx(content["attributed_j"])
    assert content["domains"][0].keys() >= {"name", "device", "provenance", "sensor", "measured_j"}
    wanted = {
        "name",
        "phase",
        "device",
        "domain",
        "energy_j",
        "low_j",
        "high_j",
        "active_s",
        "calls",
        "provenance",
    }
    assert all(row.keys() >= wanted for row in content["rows"])
    assert all(row["low_j"] <= row["energy_j"] <= row["high_j"] for row in content["rows"])
    documented = (Path(__file__).parents[1] / "docs" / "json.md").read_text()
    for key in (*content, *content["rows"][0], *content["domains"][0]):
        assert f"`{key}`" in documented


@pytest.mark.parametrize("by", ["module", "op", "phase", "device", "step", "kind"])
def test_every_view_adds_up_to_the_same(recording, by):
    content = json.loads(said("show", recording, "--by", by, "--json"))
    total = content["attributed_j"] if by not in ("step", "kind") else None
    energies = sum(row["energy_j"] for row in content["rows"])
    if total is not None:
        assert energies == pytest.approx(total)
    rows = list(csv.DictReader(io.StringIO(said("show", recording, "--by", by, "--csv"))))
    assert sum(float(row["energy_j"]) for row in rows) == pytest.approx(energies)
    assert said("show", recording, "--by", by).splitlines()[2].startswith(by)


def test_depth_top_and_summaries(recording):
    rows = json.loads(said("show", recording, "--depth", 1, "--json"))["rows"]
    assert {row["name"] for row in rows} >= {"bert", "cls", "optimizer"}
    summarised = said("show", recording, "--summarised", "--depth", 4)
    assert re.search(r"encoder/layer/\*", summarised)
    named = json.loads(said("show", recording, "--name", "*=transformer", "--json"))["rows"]
    assert any("encoder/layer/transformer/" in row["name"] for row in named)
    assert "No module matches" in said("show", recording, "--name", "layer_?=x", check=2)
    top = said("show", recording, "--by", "op", "--top", 3)
    assert len(re.findall(r"^\S+ +[\d.]+ ± ", top, re.MULTILINE)) >= 3
    assert re.search(r"^… \d+ more ", top, re.MULTILINE)


def test_net_needs_a_baseline_and_says_how(recording):
    net = json.loads(said("show", recording, "--baseline", "GPU:0=100W", "--json"))
    gross = json.loads(said("show", recording, "--json"))
    assert net["attributed_j"] < gross["attributed_j"]
    assert net["baseline_j"] > 0
    assert "DOMAIN=" in said("show", "--help")
    assert "--baseline GPU:0=WATTS" in said("show", recording, "--net", check=2)
    assert "not a baseline" in said("show", recording, "--baseline", "100W", check=2)


def test_both_rules_agree(recording):
    exact = json.loads(said("show", recording, "--depth", 1, "--json"))
    recency = json.loads(said("show", recording, "--depth", 1, "--rule", "recency", "--json"))
    for one, other in zip(exact["rows"], recency["rows"], strict=True):
        assert one["energy_j"] == pytest.approx(other["energy_j"], rel=1e-9)


def test_kinds_of_steps_have_what_their_steps_have(recording):
    steps, kinds = (
        json.loads(said("show", recording, "--by", by, "--json"))["rows"] for by in ("step", "kind")
    )
    assert sum(row["energy_j"] for row in kinds) == pytest.approx(sum(row["energy_j"] for row in steps))
    assert sum(row["calls"] for row in kinds) == len(steps)
    assert {row["kind"] for row in kinds} == set(load(recording).steps().label)
    assert "± is the 95 % interval: what the meter resolves at the edges." in said(
        "show", recording, "--by", "kind"
    )


def test_questions_that_make_no_sense_are_refused(recording):
    assert "Choose one" in said("show", recording, "--json", "--csv", check=2)
    assert "no domain 'GPU:9'" in said("show", recording, "--baseline", "GPU:9=3W", check=2)
    assert "cannot be the idle baseline" in said("show", recording, "--baseline", "GPU:0=-5W", check=2)
    assert "--power" in said("show", recording, "--by", "step", "--power", check=2)
    assert "Steps are stretches" in said("show", recording, "--by", "kind", "--power", check=2)
    assert "no regions" in said("show", recording, "--by", "region", check=2)
    assert "No such option" in said("show", recording, "--nonsense", check=2)


@pytest.fixture(name="odd", scope="module")
def make_odd_recording(tmp_path_factory):
    """Names that try to be clever, and one that is very long."""
    from joulemap import Domain, EventTrace, PowerTrace, RecordingWriter
    from joulemap.recording import RecordingInfo

    path = tmp_path_factory.mktemp("odd") / "odd ü.joulemap"
    second = 10**9
    names = ["[red]markup[/red]/op", "\x1b[31mred\x1b[0m/op", "two\nlines", "\u202eright to left", "n" * 120]
    times = [number * second for number in range(len(names) + 1)]
    with RecordingWriter.create(path, RecordingInfo()) as writer:
        writer.put_events(
            EventTrace.from_columns(name=names, device="GPU:0", start_ns=times[:-1], end_ns=times[1:])
        )
        writer.put_power(PowerTrace(Domain("GPU:0", "GPU:0"), times, [10.0] * len(names)))
    return path


@pytest.mark.parametrize("columns", [40, 80])
def test_no_name_can_hide_the_numbers_or_move_the_cursor(odd, columns):
    plain = re.sub(r"\x1b\[[0-9;]*m", "", on_a_terminal("show", odd, columns=columns))
    assert len(re.findall(r"10\.0 ± [\d.]+ J +20\.0 %", plain)) >= 5
    assert max(map(len, plain.splitlines())) <= columns
    piped = joulemap("show", odd).stdout
    assert "[red]markup[/red]" in piped
    assert "\x1b" not in piped
    assert "two\\nlines" in piped
    assert "\u202e" not in piped


def test_output_that_cannot_be_written_is_said_not_traced(recording):
    for redirect, code in (("> /dev/full", 2), (">&-", 0)):
        command = f"{sys.executable} -m joulemap show {recording} --json {redirect}"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
        assert "Traceback" not in done.stderr
        assert done.returncode == code
    assert "?" in joulemap("show", recording, PYTHONIOENCODING="ascii").stdout


@pytest.mark.parametrize("columns", [80, 160])
def test_a_terminal_gets_colour_bars_and_lines_that_fit(recording, columns):
    shown = on_a_terminal("show", recording, columns=columns)
    assert "\x1b[" in shown
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert max(map(len, plain.splitlines())) <= columns
    assert "├─ encoder/layer" in plain
    assert "█" in plain
    assert ("backward" in plain.splitlines()[2]) == (columns == 160)


def test_output_can_be_cut_off_by_a_pager(recording):
    command = f"{sys.executable} -m joulemap show {recording} --csv | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("name,")
    assert done.stderr == ""


def test_a_damaged_recording_is_named_and_the_rest_can_be_had(recording, tmp_path):
    import shutil

    broken = tmp_path / "broken.joulemap"
    shutil.copytree(recording, broken)
    events = broken / "events.parquet"
    content = bytearray(events.read_bytes())
    content[len(content) // 2] ^= 0xFF
    events.write_bytes(content)
    said = joulemap("show", broken, check=2).stderr
    assert "events.parquet" in said
    assert "--salvage" in said
    assert "measured" in joulemap("show", broken, "--salvage").stdout
    events.unlink()
    assert "(untraced)" in joulemap("show", broken, "--salvage").stdout
    newer = json.loads((broken / "recording.json").read_text()) | {"format": 99}
    (broken / "recording.json").write_text(json.dumps(newer))
    assert "newer joulemap" in joulemap("show", broken, check=2).stderr


def test_importing_the_package_is_quick_and_light():
    code = (
        "import sys, joulemap; print(*{name.partition('.')[0] for name in sys.modules} & set(sys.argv[1:]))"
    )
    heavy = ["numpy", "pyarrow", "tensorflow", "torch", "jax", "rich", "click"]
    done = subprocess.run([sys.executable, "-c", code, *heavy], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
