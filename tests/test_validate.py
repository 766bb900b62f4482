"""``joulemap validate`` on a real program, from the command line to the report."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

from joulemap.recorder.experiment import REPEATING  # noqa: E402
from joulemap.recording import Recording  # noqa: E402

from .environment import uncovered  # noqa: E402

MODEL = """
import torch
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Dropout(0.1), torch.nn.Linear(256, 64))
optimizer = torch.optim.AdamW(model.parameters())

def step():
    optimizer.zero_grad()
    torch.nn.functional.gelu(model(torch.rand(64, 64))).square().mean().backward()
    optimizer.step()
"""
PROGRAM = (
    MODEL
    + """
count = 0
try:
    while True:
        step()
        count += 1
except KeyboardInterrupt:
    torch.save([count, [one.detach() for one in model.parameters()]], "result.pt")
    print("learnt")
"""
)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """One run of everything: traced, repeated, interrupted, calibrated, accounted and drawn."""
    folder = tmp_path_factory.mktemp("validate")
    (folder / "train.py").write_text(PROGRAM)
    options = ["--stop", "--budget", "5", "--calibration", "5", "--least", "0.5%", "--modules", "1", "--json"]
    options += ["--recording", "r.joulemap", "-o", "accuracy.svg"]
    done = _validate(folder, *options, "train.py")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "joulemap: block 1: " in done.stderr
    return folder, done


def test_the_program_learns_the_same_to_the_bit(ran: Any) -> None:
    folder, done = ran
    assert "learnt" in done.stderr
    count, learnt = torch.load(folder / "result.pt")
    here: dict[str, Any] = {}
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    try:
        exec(MODEL, here)  # noqa: S102 - the same program
        for _ in range(count):
            here["step"]()
    finally:
        torch.set_num_threads(threads)
        torch.set_rng_state(state)
    assert _digest(learnt) == _digest(list(here["model"].parameters()))


def _digest(tensors: list[Any]) -> str:
    return hashlib.sha256(b"".join(one.detach().numpy().tobytes() for one in tensors)).hexdigest()


def test_operations_were_repeated_and_what_cannot_be_is_listed(ran: Any) -> None:
    folder, done = ran
    said = json.loads(done.stdout)
    assert said["blocks"] >= 1
    assert said["reached"] in ("the budget is spent", "all is known as well as was asked for")
    reasons = {one["name"].split()[0]: one["why"] for one in said["not_validated"]}
    assert any("writes into what it is given" in why for why in reasons.values())
    labels = Recording.open(folder / "r.joulemap").steps().label.words  # type: ignore[union-attr]
    assert set(labels) == {"train", "train" + REPEATING}
    for row in said["rows"]:
        assert row["executions"] == pytest.approx(round(row["executions"]))
        assert row["time"]["low_j"] <= row["time"]["energy_j"] <= row["time"]["high_j"]
    assert Xml.parse(folder / "accuracy.svg").getroot().tag.endswith("svg")


def test_an_estimate_is_called_one(ran: Any) -> None:
    said = json.loads(ran[1].stdout)
    if said["provenance"] != "estimated":
        pytest.skip("this machine has a meter")
    assert said["device"].startswith("CPU")


def test_a_program_that_catches_nothing_ends_quietly_and_its_report_is_printed(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(MODEL + "while True:\n    step()\n")
    options = ["--stop", "--budget", "0", "--calibration", "0", "--modules", "0", "--warm-up", "2"]
    done = _validate(tmp_path, *options, "train.py")
    assert done.returncode == 0, done.stderr
    assert "joulemap: block 1: " in done.stderr
    assert "Traceback" not in done.stderr
    assert "KeyboardInterrupt" not in done.stderr
    assert "the budget is spent" in done.stdout
    assert "failed" not in done.stdout


def test_a_program_that_somebody_interrupts_is_not_calibrated(tmp_path: Path) -> None:
    """Whoever presses Ctrl-C wants it to end: what is known by then is said. (Coverage is not measured: an
    exception in the middle of that leaves it locked.)"""
    (tmp_path / "train.py").write_text(MODEL + "while True:\n    step()\n")
    words = ["--calibration", "600", "--modules", "0", "--warm-up", "2", "train.py"]
    with subprocess.Popen(
        [sys.executable, "-m", "joulemap", "validate", *words],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**uncovered(), "XDG_CACHE_HOME": str(tmp_path), "JOULEMAP_METERS": ""},
        start_new_session=True,
    ) as running:
        assert running.stderr is not None
        next(line for line in running.stderr if "block 1: " in line)
        running.send_signal(signal.SIGINT)
        try:
            said, _ = running.communicate(timeout=300)
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)
            raise
    assert running.returncode == -signal.SIGINT
    assert "The program was interrupted, so its operations were not calibrated." in said
    assert "failed" not in said


def test_a_program_that_fails_keeps_its_exit_code(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import sys\nprint('no disk')\nsys.exit(3)")
    done = _validate(tmp_path, "--stop", "a.py")
    assert done.returncode == 3
    assert "no disk" in done.stderr
    assert "Nothing could be validated: the program ended before it was traced" in done.stderr
    assert not done.stdout


def test_what_is_no_program_or_picture_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("print('nothing to validate')")
    (tmp_path / "a.svg").write_text("drawn before")
    for arguments, why in (
        (["gone.py"], "does not exist"),
        (["-o", "a.svg", "a.py"], "replace it with --overwrite"),
        (["-o", "gone/x.svg", "a.py"], "x.svg cannot be written"),
        (["-o", "a.png", "a.py"], ".svg or .html"),
        (["a.py"], "Nothing could be validated: the program ended before it was traced"),
    ):
        done = _validate(tmp_path, *arguments)
        assert done.returncode == 2
        assert why in done.stderr
        assert ("nothing to validate" in done.stderr) == (arguments == ["a.py"])
    assert (tmp_path / "a.svg").read_text() == "drawn before"


def test_where_nothing_is_metered_the_hint_is_about_meters(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(MODEL + "for _ in range(60):\n    step()\n")
    done = _validate(tmp_path, "--recording", "r.joulemap", "train.py", JOULEMAP_METERS="no.such:meters")
    assert done.returncode == 2
    assert "nothing was metered" in done.stderr
    assert "joulemap doctor" in done.stderr.splitlines()[-1]
    [warning] = [one for one in Recording.open(tmp_path / "r.joulemap").info.warnings if "metered" in one]
    assert "\n" not in warning


def test_a_recording_of_that_name_is_replaced_only_where_that_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("print('nothing to validate')")
    for arguments, exists in (([], False), ([], True), (["--overwrite"], False)):
        done = _validate(tmp_path, "--recording", "r.joulemap", *arguments, "a.py")
        assert ("overwrite it with --overwrite" in done.stderr) == exists
        assert ("nothing to validate" in done.stderr) != exists


def _validate(folder: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "joulemap", "validate", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "XDG_CACHE_HOME": str(folder), "JOULEMAP_METERS": "", **env},
        timeout=400,
        check=False,
    )
