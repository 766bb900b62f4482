"""``joulemap run --isolate`` and ``--repeat`` on a real program, with a counter that it moves itself."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import joulemap
from joulemap.call_energy import account_calls_of
from joulemap.calls.protocol import ISOLATION

from .scale_meters import VARIABLE

ROOT = Path(__file__).parents[1]
PROGRAM = """
    import json, os, time
    counter = os.environ["JOULEMAP_TEST_COUNTER"]
    def drawing(number):
        time.sleep(0.3)
        total = int(open(counter).read()) + 3_000_000
        with open(counter + "~", "w") as file:
            file.write(str(total))
        os.replace(counter + "~", counter)
        time.sleep(0.3)
        return "3 J" * int(number.real)
    time.sleep(0.1)
    for size in range(2):
        print(len(json.dumps(complex(size), default=drawing)))
"""


def ran(folder, *options, **more):
    (folder / "program.py").write_text(textwrap.dedent(PROGRAM))
    (folder / "counter").write_text("0")
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "JOULEMAP_METERS": "tests.scale_meters:meters",
        "XDG_CACHE_HOME": str(folder / "cache"),
        VARIABLE: str(folder / "counter"),
        **more,
    }
    command = [sys.executable, "-m", "joulemap", "run", "--calls", "json", *options, "program.py"]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.fixture(scope="module")
def isolated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("isolated")
    done = ran(folder, "--isolate", "-q", "-o", "r.joulemap")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["2", "5"]
    return joulemap.load(folder / "r.joulemap")


def test_each_call_waits_for_calm_before_and_after(isolated):
    calls = isolated.calls()
    assert list(calls.api) == ["json.dumps"] * 2
    assert list(calls.gate_outcome) == ["stable"] * 2
    assert (calls.gate_start_ns < calls.start_ns).all()
    assert (calls.tail_end_ns > calls.end_ns).all()
    assert calls.tail_end_ns[0] <= calls.gate_start_ns[1]


def test_the_energy_of_an_isolated_call_is_above_its_own_baseline(isolated):
    _, found = account_calls_of(isolated)
    assert isolated.info.extra[ISOLATION]["name"] == "joulemap"
    assert found.net_j == pytest.approx([3, 3], abs=1.0)
    assert found.lag_j == pytest.approx([0, 0], abs=1.0)
    assert found.rest_j().keys() >= {"(waiting for the gate)", "(waiting after the call)"}


def test_nothing_of_the_gate_is_left_in_the_recording(isolated):
    assert not list(isolated.path.rglob("gate.*"))


def test_a_program_is_repeated_in_processes_of_their_own(tmp_path):
    done = ran(tmp_path, "--repeat", "2", "-o", "r.joulemap")
    assert done.returncode == 0
    assert done.stdout.split() == ["2", "5"] * 2
    runs = [tmp_path / f"r-run{number}.joulemap" for number in (1, 2)]
    assert all(joulemap.load(path).info.status == "complete" for path in runs)
    assert "Means over 2 runs" in done.stderr
    shown = [sys.executable, "-m", "joulemap", "show", *map(str, runs), "--by", "call", "--json"]
    (row,) = json.loads(subprocess.run(shown, capture_output=True, check=True, timeout=100).stdout)["rows"]
    assert (row["runs"], row["calls"]) == (2, 2)
    assert row["energy_j"] == pytest.approx(6, abs=1.0)


def test_the_summary_of_a_run_with_calls_is_of_its_calls(tmp_path):
    done = ran(tmp_path, "-o", "r.joulemap")
    assert "json.dumps" in done.stderr
    assert "--by call" in done.stderr


def test_without_a_meter_the_program_is_not_kept_waiting(tmp_path):
    done = ran(tmp_path, "--isolate", "-q", "-o", "r.joulemap", JOULEMAP_METERS="builtins:list")
    assert done.stdout.split() == ["2", "5"]
    recording = joulemap.load(tmp_path / "r.joulemap")
    assert list(recording.calls().gate_outcome) == ["timed out"] * 2
    assert any("not calm in time before 2 of 2" in text for text in recording.info.warnings)


def test_isolation_is_of_calls(tmp_path):
    command = [sys.executable, "-m", "joulemap", "run", "--isolate", __file__]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 2
    assert "--isolate needs --calls" in done.stderr
