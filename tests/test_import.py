"""``joulemap import``: traces and power of others become a recording, or it says why not."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from .command_line import joulemap, said

DATA = Path(__file__).parent / "data"
SHARED = Path(__file__).parents[2] / "shared" / "data"


def test_importing_says_what_it_understood(tmp_path):
    arguments = ("--events", DATA / "h200-step.json.gz", "--power", DATA / "h200-step-power.csv")
    said = joulemap("import", *arguments, "-o", tmp_path / "a.joulemap").stdout
    assert "events: torch" in said
    assert "power: GPU:0 on GPU:0, measured" in said
    content = json.loads(joulemap("import", *arguments, "-o", tmp_path / "b.joulemap", "--json").stdout)
    assert content["framework"] == "torch"
    assert content["steps"] == 1
    assert content["domains"][0]["measured_j"] > 0


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
    done = said("import", "--events", DATA / "h200-step.json.gz", "--power", path, "-o", output, check=2)
    assert message in done
    assert not output.exists()


def test_a_laptop_does_not_draw_fifty_kilowatts(tmp_path):
    lines = (DATA / "h200-step-power.csv").read_text().splitlines()
    rows = [line.split(",") for line in lines[1:]]
    text = "\n".join([lines[0], *(f"{t},{domain},{float(energy) * 1000}" for t, domain, energy in rows)])
    path = power_file(tmp_path, text + "\n")
    done = said(
        "import",
        "--events",
        DATA / "h200-step.json.gz",
        "--power",
        path,
        "-o",
        tmp_path / "o.joulemap",
        check=2,
    )
    assert "kW" in done or " W" in done
    assert "mJ" in done or "milli" in done


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"<html></html>", "HTML"), (b"", "empty"), (b'{"traceEvents": []}', "no trace events")],
)
def test_events_that_are_none_are_refused(tmp_path, content, message):
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    done = said("import", "--events", path, "--power", "CPU:0=65W", "-o", tmp_path / "o.joulemap", check=2)
    assert message in done


def test_a_clock_that_is_off_can_be_shifted(tmp_path):
    lines = (DATA / "h200-step-power.csv").read_text().splitlines()
    hour = 3600 * 10**9
    rows = [line.split(",") for line in lines[1:]]
    text = "\n".join([lines[0], *(f"{int(t) + hour},{domain},{energy}" for t, domain, energy in rows)])
    arguments = ("--events", DATA / "h200-step.json.gz", "--power", power_file(tmp_path, text + "\n"))
    done = said("import", *arguments, "-o", tmp_path / "o.joulemap", check=2)
    assert "1 h" in done
    said("import", *arguments, "-o", tmp_path / "o.joulemap", "--shift-power", "-3600s")


def test_clocks_and_timestamps_that_are_absurd_are_refused(tmp_path):
    arguments = ("import", "--events", DATA / "h200-step.json.gz", "-o", tmp_path / "o.joulemap")
    shifted = ("--power", DATA / "h200-step-power.csv", "--shift-power", "1e300s")
    assert "clock is not off" in said(*arguments, *shifted, check=2)
    trace = json.loads(gzip.decompress((DATA / "tf-timeline.json.gz").read_bytes()))
    next(event for event in trace["traceEvents"] if event["ph"] == "X")["ts"] = 12
    stray = tmp_path / "stray.json"
    stray.write_text(json.dumps(trace))
    done = said("import", "--events", stray, "--power", "CPU:0=65W", "-o", tmp_path / "o.joulemap", check=2)
    assert "stray timestamp" in done


def test_assumed_power_is_estimated_everywhere(tmp_path):
    path = tmp_path / "tf.joulemap"
    said("import", "--events", DATA / "tf-timeline.json.gz", "--power", "CPU:0=65W", "-o", path)
    content = json.loads(said("show", path, "--json"))
    assert {row["provenance"] for row in content["rows"]} == {"estimated"}
    assert content["domains"][0]["provenance"] == "estimated"
    shown = said("show", path)
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
