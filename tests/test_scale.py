"""``joulemap scale``: real programs, a counter that they move themselves, and the line that comes out."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from joulemap.commands import scale
from joulemap.errors import InputError
from joulemap.scaling import Measured, Trial, fits, trials

from .scale_meters import VARIABLE

ROOT = Path(__file__).parents[1]
PROGRAM = """
    import json, os, sys, time
    size = float(sys.argv[1].partition("=")[2])
    assert size < 1000, "too large"
    counter = os.environ["JOULEMAP_TEST_COUNTER"]
    def draw(joules):
        time.sleep(0.2)
        total = int(open(counter).read()) + round(joules * 1e6)
        with open(counter + "~", "w") as file:
            file.write(str(total))
        os.replace(counter + "~", counter)
        time.sleep(0.2)
    time.sleep(0.15)
    draw(5.0)
    json.dumps(object(), default=lambda _: draw(0.1 * size))
    print("done with", size)
"""


def scaled(folder, *options):
    """``joulemap scale`` on the program above."""
    (folder / "program.py").write_text(textwrap.dedent(PROGRAM))
    (folder / "counter").write_text("0")
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "JOULEMAP_METERS": "tests.scale_meters:meters",
        VARIABLE: str(folder / "counter"),
    }
    command = [sys.executable, "-m", "joulemap", "scale", *options, "program.py", "--n={size}"]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scale")
    done = scaled(folder, "--sizes", "10,20,40,80", "--repeat", "1", "-o", "kept", "--json")
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout), done.stderr


def test_the_line_that_the_program_drew_is_found(said):
    (found,) = said[1]["fits"]
    assert found["domain"] == "GPU:0"
    assert found["shape"] in ("linear", "proportional")
    assert found["slope_j"]["value"] == pytest.approx(0.1, rel=0.1)
    assert found["offset_j"]["value"] == pytest.approx(5.0, abs=1.0)
    assert found["r"] > 0.99


def test_every_run_is_a_recording_that_is_kept(said):
    folder, content, _ = said
    assert sorted(run["size"] for run in content["runs"]) == [10, 20, 40, 80]
    assert all((folder / run["recording"] / "recording.json").exists() for run in content["runs"])
    assert content["program"][0] == "program.py"


def test_what_the_program_prints_is_on_standard_error(said):
    assert "done with 80.0" in said[2]
    assert "run 4 of 4" in said[2]


def test_one_api_alone_has_no_offset_of_the_program(tmp_path):
    done = scaled(tmp_path, "--sizes", "20,40,80", "--repeat", "1", "--call", "json.dumps", "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["call"] == "json.dumps"
    (found,) = said["fits"]
    assert found["slope_j"]["value"] == pytest.approx(0.1, rel=0.2)
    assert abs(found["offset_j"]["value"]) < 2


def test_an_api_that_is_not_called_is_told_with_those_that_are(tmp_path):
    done = scaled(tmp_path, "--sizes", "20,40", "--repeat", "1", "--call", "json.loads")
    assert done.returncode == 2
    assert "no call of json.loads" in done.stderr
    assert "json.dumps" in done.stderr


def test_a_size_that_fails_is_told(tmp_path):
    done = scaled(tmp_path, "--sizes", "5000,6000", "--repeat", "1")
    assert done.returncode == 2
    assert "With size" in done.stderr
    assert "too large" in done.stderr


def test_the_order_is_of_chance_and_the_same_for_a_seed():
    planned = trials([1, 2, 4, 8], 3, seed=1)
    assert sorted((trial.size, trial.run) for trial in planned) == [
        (s, r) for s in (1, 2, 4, 8) for r in (1, 2, 3)
    ]
    assert [trial.size for trial in planned] != sorted(trial.size for trial in planned)
    assert planned == trials([1, 2, 4, 8], 3, seed=1)
    assert planned != trials([1, 2, 4, 8], 3, seed=2)


def made_up(energy):
    return [
        Measured(
            trial,
            Path("folder") / trial.name,
            1.0,
            {"CPU": energy(trial.size) + 0.01 * (trial.run - 2), "DRAM": 2.0 + 0.01 * (trial.run - 2)},
            {"CPU": "estimated", "DRAM": "estimated"},
        )
        for trial in trials([1, 2, 4, 8], 3, seed=0)
    ]


@pytest.mark.parametrize(
    ("energy", "words"),
    [
        (lambda size: 3 * size, "proportional to size"),
        (lambda size: 7 + 3 * size, "linear, with an offset"),
        (lambda size: size**2, "not linear: it grows ever faster"),
        (lambda size: 4.0 + 0 * size, "does not grow"),
    ],
)
def test_people_are_told_in_words(energy, words, capsys):
    runs = made_up(energy)
    scale._print(runs, fits(runs), Path("folder"))
    said = capsys.readouterr().out
    assert f"CPU: {words}" in said
    assert "all domains:" in said
    assert "estimated" in said
    assert "12 runs" in said


def test_the_size_goes_wherever_it_stands():
    assert Trial(2.5, 1).arguments(["a.py", "--n={size}", "{size}x{size}"]) == ["a.py", "--n=2.5", "2.5x2.5"]
    assert Trial(1e6, 1).arguments(["{size}"]) == ["1000000"]


@pytest.mark.parametrize("sizes", ["", "1", "a,b", "1,1", "1,inf"])
def test_what_are_no_sizes_is_refused(sizes):
    with pytest.raises(InputError, match="are not sizes"):
        scale._sizes(sizes)
