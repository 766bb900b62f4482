"""``joulemap run --calibrate``: whatever becomes of the calibration, the program's end is its own."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from joulemap.calibration.book import Calibration
from joulemap.calibration.cost import Cost
from joulemap.calibration.operation import Operation
from joulemap.commands import run as command_run
from joulemap.commands.calibrate import buying
from joulemap.errors import InputError
from joulemap.recorder.run import Ran
from joulemap.replaying import Bought


def ran(folder: Path, text: str, *options: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text(text)
    words = [sys.executable, "-m", "joulemap", "run", "-o", "r.joulemap", "--calibrate", *options]
    done = subprocess.run(
        [*words, "program.py"], cwd=folder, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


def test_a_program_with_nothing_to_calibrate_is_summarised_as_ever(tmp_path: Path) -> None:
    done = ran(tmp_path, "print('hello')")
    assert done.stdout == "hello\n"
    assert "Nothing is calibrated. The program used no PyTorch" in done.stderr
    assert "attributed" in done.stderr
    assert "--rule" not in done.stderr


def test_a_program_that_fails_is_not_calibrated(tmp_path: Path) -> None:
    done = ran(tmp_path, "import sys; sys.exit(3)", code=3)
    assert "The program failed, so nothing is calibrated" in done.stderr
    assert "joulemap calibrate r.joulemap" in done.stderr


def test_a_bug_in_the_calibration_is_only_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("joulemap.api.load", lambda _: 1 / 0)
    assert command_run._calibrated(Ran(tmp_path, 0, 1.0), 5.0, quiet=True) == "exact"
    assert "Nothing is calibrated: ZeroDivisionError" in capsys.readouterr().err


def test_where_no_operation_has_a_cost_energy_is_shared_by_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one = Operation("mine::relu", "[[8]]", "", '["float"]', "")
    found = Calibration("CPU", 1.0, {}, {one: "torch has no operation mine::relu here"})
    monkeypatch.setattr("joulemap.api.load", lambda _: None)
    monkeypatch.setattr("joulemap.calibrating.calibrate", lambda *_: found)
    assert command_run._calibrated(Ran(tmp_path / "r", 0, 1.0), 5.0, quiet=True) == "exact"
    said = capsys.readouterr().err
    assert "Nothing is calibrated. None of 1 operations has a cost" in said
    assert "torch has no operation mine::relu here" in said
    assert f"joulemap calibrate {tmp_path / 'r'}" in said
    known = replace(found, costs={one: Cost(1.0, 1.0, 0.01, 2)})
    monkeypatch.setattr("joulemap.calibrating.calibrate", lambda *_: known)
    assert command_run._calibrated(Ran(tmp_path / "r", 0, 1.0), 5.0, quiet=True) == "calibrated"


@pytest.mark.parametrize("with_calls", [True, False])
def test_a_bug_in_the_summary_of_several_runs_is_only_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], with_calls: bool
) -> None:
    monkeypatch.setattr("joulemap.api.load", lambda _: 1 / 0)
    command_run._summarise_runs([tmp_path / "a", tmp_path / "b"], with_calls)
    said = capsys.readouterr().err
    assert ("The summary failed: ZeroDivisionError" in said) == with_calls
    assert "The recordings are" in said


def test_ranks_are_calibrated_by_themselves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.py").write_text("")
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    done = CliRunner().invoke(command_run.command, ["--calibrate", "x.py"])
    assert isinstance(done.exception, InputError)
    assert "one process" in done.exception.message


def test_a_bar_says_what_the_budget_buys_where_it_is_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with buying() as quiet:
        assert quiet is None
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    with buying() as advance:
        assert advance is not None
        advance(Bought(covered=0.5, reaches=0.9, spent=0.25))
    said = capsys.readouterr()
    assert "50.0 % of busy time, 90.0 % in the end" in said.err
    assert not said.out


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--calls", "torch", "--project"], "--project"),
        (["--calls", "torch", "--isolate"], "--isolate"),
        (["--overhead", "0"], "--overhead 0"),
    ],
)
def test_what_traces_nothing_is_refused_before_the_program_is_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: list[str], why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.py").write_text("")
    done = CliRunner().invoke(command_run.command, ["--calibrate", *options, "x.py"])
    assert isinstance(done.exception, InputError)
    assert done.exception.message.startswith(f"With {why} no step is traced")
    assert [one.name for one in tmp_path.iterdir()] == ["x.py"]
