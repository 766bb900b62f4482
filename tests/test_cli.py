"""The command line, as a user runs it: real processes, their output, their exit codes."""

import csv
import gzip
import io
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

DATA = Path(__file__).parent / "data"
SHARED = Path(__file__).parents[2] / "shared" / "data"


def joulemap(*arguments, check=0, columns=None, **env):
    """Run a command; its exit code must be ``check``."""
    done = subprocess.run(
        [sys.executable, "-m", "joulemap", *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": str(columns or ""), **env},
        timeout=120,
        check=False,
    )
    assert done.returncode == check, done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    return done


def on_a_terminal(*arguments, columns):
    """What a command prints when it believes that people are looking."""
    out = b""
    pid, terminal = pty.fork()
    if pid == 0:
        environment = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm-256color"}
        os.execve(sys.executable, [sys.executable, "-m", "joulemap", *map(str, arguments)], environment)
    while True:
        try:
            chunk = os.read(terminal, 1 << 16)
        except OSError:
            break
        if not chunk:
            break
        out += chunk
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    return out.decode().replace("\r\n", "\n")


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


def test_importing_says_what_it_understood(tmp_path):
    arguments = ("--events", DATA / "h200-step.json.gz", "--power", DATA / "h200-step-power.csv")
    said = joulemap("import", *arguments, "-o", tmp_path / "a.joulemap").stdout
    assert "events: torch" in said
    assert "power: GPU:0 on GPU:0, measured" in said
    content = json.loads(joulemap("import", *arguments, "-o", tmp_path / "b.joulemap", "--json").stdout)
    assert content["framework"] == "torch"
    assert content["steps"] == 1
    assert content["domains"][0]["measured_j"] > 0


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


@pytest.mark.parametrize("by", ["module", "op", "phase", "device", "step"])
def test_every_view_adds_up_to_the_same(recording, by):
    content = json.loads(joulemap("show", recording, "--by", by, "--json").stdout)
    total = content["attributed_j"] if by != "step" else None
    energies = sum(row["energy_j"] for row in content["rows"])
    if total is not None:
        assert energies == pytest.approx(total)
    rows = list(csv.DictReader(io.StringIO(joulemap("show", recording, "--by", by, "--csv").stdout)))
    assert sum(float(row["energy_j"]) for row in rows) == pytest.approx(energies)
    assert joulemap("show", recording, "--by", by).stdout.splitlines()[2].startswith(by)


def test_depth_top_and_summaries(recording):
    rows = json.loads(joulemap("show", recording, "--depth", 1, "--json").stdout)["rows"]
    assert {row["name"] for row in rows} >= {"bert", "cls", "optimizer"}
    summarised = joulemap("show", recording, "--summarised", "--depth", 4).stdout
    assert re.search(r"encoder/layer/\*", summarised)
    named = json.loads(joulemap("show", recording, "--name", "*=transformer", "--json").stdout)["rows"]
    assert any("encoder/layer/transformer/" in row["name"] for row in named)
    assert "No module matches" in joulemap("show", recording, "--name", "layer_?=x", check=2).stderr
    top = joulemap("show", recording, "--by", "op", "--top", 3).stdout
    assert len(re.findall(r"^\S+ +[\d.]+ ± ", top, re.MULTILINE)) >= 3
    assert re.search(r"^… \d+ more ", top, re.MULTILINE)


def test_net_needs_a_baseline_and_says_how(recording):
    net = json.loads(joulemap("show", recording, "--baseline", "GPU:0=100W", "--json").stdout)
    gross = json.loads(joulemap("show", recording, "--json").stdout)
    assert net["attributed_j"] < gross["attributed_j"]
    assert net["baseline_j"] > 0
    assert "DOMAIN=" in joulemap("show", "--help").stdout
    assert "--baseline GPU:0=WATTS" in joulemap("show", recording, "--net", check=2).stderr
    assert "not a baseline" in joulemap("show", recording, "--baseline", "100W", check=2).stderr


def test_both_rules_agree(recording):
    exact = json.loads(joulemap("show", recording, "--depth", 1, "--json").stdout)
    recency = json.loads(joulemap("show", recording, "--depth", 1, "--rule", "recency", "--json").stdout)
    for one, other in zip(exact["rows"], recency["rows"], strict=True):
        assert one["energy_j"] == pytest.approx(other["energy_j"], rel=1e-9)


def test_questions_that_make_no_sense_are_refused(recording):
    assert "Choose one" in joulemap("show", recording, "--json", "--csv", check=2).stderr
    assert "no domain 'GPU:9'" in joulemap("show", recording, "--baseline", "GPU:9=3W", check=2).stderr
    assert (
        "cannot be the idle baseline"
        in joulemap("show", recording, "--baseline", "GPU:0=-5W", check=2).stderr
    )
    assert "--power" in joulemap("show", recording, "--by", "step", "--power", check=2).stderr
    assert "No such option" in joulemap("show", recording, "--nonsense", check=2).stderr


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


def power_file(folder, text, name="power.csv"):
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("power", "message"),
    [
        ("t_ns,domain,power_w\n1,GPU:0,100\n2,GPU:0,100\n", "another clock"),
        ("t_ns,domain\n1,GPU:0\n", "power_w"),
        ("t_ns,domain,power_mw\n1,GPU:0,5\n", "power_mw"),
        ("", "empty"),
        ("t_ns,domain,energy_j\n1000000000000000000,GPU:0,9\n1000000001000000000,GPU:0,4\n", "GPU:0"),
    ],
)
def test_power_that_cannot_be_right_is_refused_with_the_reason(tmp_path, power, message):
    path = power_file(tmp_path, power)
    output = tmp_path / "out.joulemap"
    done = joulemap("import", "--events", DATA / "h200-step.json.gz", "--power", path, "-o", output, check=2)
    assert message in done.stderr
    assert not output.exists()


def test_a_laptop_does_not_draw_fifty_kilowatts(tmp_path):
    lines = (DATA / "h200-step-power.csv").read_text().splitlines()
    rows = [line.split(",") for line in lines[1:]]
    text = "\n".join([lines[0], *(f"{t},{domain},{float(energy) * 1000}" for t, domain, energy in rows)])
    path = power_file(tmp_path, text + "\n")
    done = joulemap(
        "import",
        "--events",
        DATA / "h200-step.json.gz",
        "--power",
        path,
        "-o",
        tmp_path / "o.joulemap",
        check=2,
    )
    assert "kW" in done.stderr or " W" in done.stderr
    assert "mJ" in done.stderr or "milli" in done.stderr


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"<html></html>", "HTML"), (b"", "empty"), (b'{"traceEvents": []}', "no trace events")],
)
def test_events_that_are_none_are_refused(tmp_path, content, message):
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    done = joulemap(
        "import", "--events", path, "--power", "CPU:0=65W", "-o", tmp_path / "o.joulemap", check=2
    )
    assert message in done.stderr


def test_a_clock_that_is_off_can_be_shifted(tmp_path):
    lines = (DATA / "h200-step-power.csv").read_text().splitlines()
    hour = 3600 * 10**9
    rows = [line.split(",") for line in lines[1:]]
    text = "\n".join([lines[0], *(f"{int(t) + hour},{domain},{energy}" for t, domain, energy in rows)])
    arguments = ("--events", DATA / "h200-step.json.gz", "--power", power_file(tmp_path, text + "\n"))
    done = joulemap("import", *arguments, "-o", tmp_path / "o.joulemap", check=2)
    assert "1 h" in done.stderr
    joulemap("import", *arguments, "-o", tmp_path / "o.joulemap", "--shift-power", "-3600s")


def test_clocks_and_timestamps_that_are_absurd_are_refused(tmp_path):
    arguments = ("import", "--events", DATA / "h200-step.json.gz", "-o", tmp_path / "o.joulemap")
    shifted = ("--power", DATA / "h200-step-power.csv", "--shift-power", "1e300s")
    assert "clock is not off" in joulemap(*arguments, *shifted, check=2).stderr
    trace = json.loads(gzip.decompress((DATA / "tf-timeline.json.gz").read_bytes()))
    next(event for event in trace["traceEvents"] if event["ph"] == "X")["ts"] = 12
    stray = tmp_path / "stray.json"
    stray.write_text(json.dumps(trace))
    done = joulemap(
        "import", "--events", stray, "--power", "CPU:0=65W", "-o", tmp_path / "o.joulemap", check=2
    )
    assert "stray timestamp" in done.stderr


def test_assumed_power_is_estimated_everywhere(tmp_path):
    path = tmp_path / "tf.joulemap"
    joulemap("import", "--events", DATA / "tf-timeline.json.gz", "--power", "CPU:0=65W", "-o", path)
    content = json.loads(joulemap("show", path, "--json").stdout)
    assert {row["provenance"] for row in content["rows"]} == {"estimated"}
    assert content["domains"][0]["provenance"] == "estimated"
    shown = joulemap("show", path).stdout
    assert "estimated: not read off a meter" in shown
    assert "encoder" in shown
    assert {"forward", "backward", "optimizer"} <= {row["phase"] for row in content["rows"]}


@pytest.mark.external
def test_the_whole_h200_recording_goes_through(tmp_path):
    if not (SHARED / "h200").is_dir():
        pytest.skip("the published recordings are not beside the repository (../shared/data)")
    script = Path(__file__).parents[1] / "scripts" / "h200_as_chrome_trace.py"
    subprocess.run([sys.executable, script, SHARED / "h200", tmp_path], check=True)
    path = tmp_path / "h200.joulemap"
    joulemap("import", "--events", tmp_path / "trace.json.gz", "--power", tmp_path / "power.csv", "-o", path)
    content = json.loads(joulemap("show", path, "--depth", 4, "--json").stdout)
    layers = {
        (row["name"].split("/")[3], row["phase"])
        for row in content["rows"]
        if row["name"].startswith("bert/encoder/layer/") and row["energy_j"] > 0
    }
    assert layers == {(str(layer), phase) for layer in range(12) for phase in ("forward", "backward")}
    assert {row["phase"] for row in content["rows"] if row["name"].startswith("optimizer")} == {"optimizer"}
    assert content["idle_j"] > content["attributed_j"]


@pytest.mark.external
def test_three_timelines_are_three_steps(tmp_path):
    folder = SHARED / "smaragdine" / "bert-base-cpu"
    if not folder.is_dir():
        pytest.skip("the published recordings are not beside the repository (../shared/data)")
    path = tmp_path / "tf.joulemap"
    events = [item for number in (1, 2, 3) for item in ("--events", folder / f"timeline-{number}.json.gz")]
    joulemap("import", *events, "--power", "CPU:0=65W", "-o", path)
    content = json.loads(
        joulemap("show", path, "--summarised", "--name", "layer_*=transformer", "--json").stdout
    )
    assert any("encoder/transformer/output/dense" in row["name"] for row in content["rows"])
    assert len(json.loads(joulemap("show", path, "--by", "step", "--json").stdout)["rows"]) == 3


def test_gzip_is_told_by_content(tmp_path):
    plain = tmp_path / "trace.json"
    plain.write_bytes(gzip.decompress((DATA / "h200-step.json.gz").read_bytes()))
    joulemap(
        "import",
        "--events",
        plain,
        "--power",
        DATA / "h200-step-power.csv",
        "-o",
        tmp_path / "plain.joulemap",
    )


def test_importing_the_package_is_quick_and_light():
    code = (
        "import sys, joulemap; print(*{name.partition('.')[0] for name in sys.modules} & set(sys.argv[1:]))"
    )
    heavy = ["numpy", "pyarrow", "tensorflow", "torch", "jax", "rich", "click"]
    done = subprocess.run([sys.executable, "-c", code, *heavy], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
