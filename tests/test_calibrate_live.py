"""A real PyTorch program that is run and calibrated by one command."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

import joulemap
from joulemap.calibrating import Candidates, _shelf, calibrate, covered_by
from joulemap.calibration.book import Book, Calibration
from joulemap.calibration.cost import Cost
from joulemap.calibration.operation import WORTH
from joulemap.calibration.recorded import CALIBRATION
from joulemap.errors import InputError
from joulemap.recording.info import save_info
from joulemap.replaying import Replays
from joulemap.units import fmt_share

from .environment import uncovered

pytest.importorskip("torch", reason="needs PyTorch")

PROGRAM = """
import torch
torch.set_num_threads(1)
torch.set_float32_matmul_precision("high")
torch.backends.cuda.enable_flash_sdp(False)
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 256))
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(60):
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(torch.rand(256, 256)).float()
    loss.square().mean().backward()
    optimizer.step()
print("done")
"""


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A program that was run, and its operations by themselves afterwards."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "train.py").write_text(PROGRAM)
    words = ["run", "--steps", "10-14", "-o", "r.joulemap", "--calibrate", "--budget", "5", "train.py"]
    done = subprocess.run(
        [sys.executable, "-m", "joulemap", *words],
        cwd=folder,
        env={**uncovered(), "XDG_CACHE_HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return folder, done


def test_a_program_is_calibrated_when_it_has_run(
    calibrated: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    """By at least one operation, however slow the machine; its output and its end are its own."""
    folder, done = calibrated
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n"
    assert re.search("Closure: costs and waiting add up to|No closure: costs are", done.stderr)
    assert "joulemap show r.joulemap --rule calibrated" in done.stderr
    recording = joulemap.load(folder / "r.joulemap")
    chosen = recording.info.extra["flags"]
    tf32 = chosen.get("cuda.matmul.fp32_precision", chosen.get("cuda.matmul.allow_tf32"))  # older versions
    assert tf32 in ("tf32", True)
    assert chosen["cuda.flash_sdp"] is False
    assert chosen["autocast"] == {"cpu": "bfloat16"}
    assert chosen["threads"] == 1
    [known] = Book(folder / "joulemap").all_of(recording.info.host["machine"]).values()
    assert len(known.costs) >= 1
    assert all(cost.energy_j > cost.half_j and 1 <= cost.passes <= 2 for cost in known.costs.values())


def test_a_recording_is_accounted_by_what_its_operations_cost(
    calibrated: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    path = calibrated[0] / "r.joulemap"
    recording = joulemap.load(path)
    found = Calibration.from_json(recording.info.extra[CALIBRATION])
    assert 0 < Candidates.of(recording).busy.covered(found.costs) <= 1
    footprint = joulemap.account(path, "calibrated")
    footprint.check()
    said = f"{fmt_share(covered_by(found, recording))} of the busy time of CPU is calibrated"
    assert any(said in note for note in footprint.notes)
    assert footprint.measured_j == pytest.approx(joulemap.account(path).measured_j)
    kept = {name: value for name, value in recording.info.extra.items() if name != CALIBRATION}
    recording.info = replace(recording.info, extra=kept)
    with pytest.raises(joulemap.JoulemapError, match="not calibrated"):
        joulemap.account(recording, "calibrated")


def test_a_recording_of_other_surroundings_is_refused(
    calibrated: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    path = shutil.copytree(calibrated[0] / "r.joulemap", tmp_path / "r.joulemap")
    info = joulemap.load(path).info
    for what, other in {
        "driver": {"host": {**info.host, "driver": "nvidia 1.2"}},
        "version of PyTorch": {"versions": {**info.versions, "torch": "1.2.3"}},
    }.items():
        save_info(path, replace(info, **other))
        with pytest.raises(joulemap.JoulemapError, match=f"another {what}: .*1.2"):
            calibrate(joulemap.load(path), 9.0, Book(tmp_path))


def test_what_takes_a_percent_is_replayed_even_where_most_is_known(
    calibrated: tuple[Path, subprocess.CompletedProcess[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = shutil.copytree(calibrated[0] / "r.joulemap", tmp_path / "r.joulemap")
    recording = joulemap.load(path)
    candidates = Candidates.of(recording)
    shares = {one: its_s / candidates.busy.total_s for one, its_s in candidates.busy.seconds.items()}
    left_out = next(one for one, share in reversed(shares.items()) if share >= WORTH)
    cost = Cost(1.0, 1e-3, 0.01, 2)
    asked: list[Replays] = []

    def replayed(plan: Replays, _: object) -> NoReturn:
        asked.append(plan)
        raise InputError("Enough is known.")

    monkeypatch.setattr("joulemap.calibrating.replayed", replayed)
    for without in (left_out, None):
        book = Book(tmp_path / str(without is None))
        costs = {one: cost for one in shares if one != without and (without or shares[one] >= WORTH / 10)}
        book.add(_shelf(recording, candidates.power), Calibration("CPU", 1.0, costs))
        with pytest.raises(InputError) if without else nullcontext():
            calibrate(recording, 9.0, book)
    assert [list(plan.shares) for plan in asked] == [[left_out.key]]
    assert [list(plan.refined) for plan in asked] == [[]]
    with pytest.raises(InputError):
        calibrate(recording, 9.0, book, again=True)
    assert list(asked[-1].shares) == [one.key for one in shares]
    once = [one for one in shares if shares[one] >= WORTH][:2]
    book.add(
        _shelf(recording, candidates.power),
        Calibration("CPU", 1.0, dict.fromkeys(once, replace(cost, passes=1))),
        once,
    )
    with pytest.raises(InputError):
        calibrate(recording, 9.0, book)
    assert list(asked[-1].refined) == [one.key for one in once]


def test_what_the_recording_itself_knows_is_kept_where_nothing_else_does(
    calibrated: tuple[Path, subprocess.CompletedProcess[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After ``--clear``, or with a cache folder that cannot be written; not what was found in other ways."""
    path = shutil.copytree(calibrated[0] / "r.joulemap", tmp_path / "r.joulemap")
    recording = joulemap.load(path)
    before = Calibration.from_json(recording.info.extra[CALIBRATION])
    asked: list[Replays] = []

    def replayed(plan: Replays, _: object) -> tuple[list[object], list[object]]:
        asked.append(plan)
        return [], []

    another = next(one for one in Candidates.of(recording).busy.seconds if one not in before.costs)
    found = Calibration("CPU", 1.0, {another: Cost(1.0, 1e-3, 0.01, 1)})
    monkeypatch.setattr("joulemap.calibrating.replayed", replayed)
    monkeypatch.setattr("joulemap.calibrating._same_domain", lambda *_: None)
    monkeypatch.setattr("joulemap.calibrating.understood", lambda *_: found)
    monkeypatch.setattr("joulemap.calibrating.Busy.enough", 1.0)
    (tmp_path / "file").write_text("")
    after = calibrate(recording, 9.0, Book(tmp_path / "file"))
    assert after.costs == {**before.costs, another: found.costs[another]}
    assert not {one.key for one in before.costs} & set(asked[0].shares)
    assert set(calibrate(joulemap.load(path), 9.0, Book(tmp_path / "file"), again=True).costs) == {another}
    content = {**recording.info.extra[CALIBRATION], "shelf": "another driver"}
    recording.info = replace(recording.info, extra={**recording.info.extra, CALIBRATION: content})
    assert set(calibrate(recording, 9.0, Book(tmp_path / "file")).costs) == {another}
