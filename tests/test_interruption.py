"""Ctrl-C that we send ourselves: heard like any other, and quiet where nobody catches it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from joulemap.recorder.interruption import interrupt

SEND = "from joulemap.recorder.interruption import interrupt\n"
DEEP = """
def library():
    interrupt()

def train():
    library()
"""
CATCHES = """
try:
    train()
except KeyboardInterrupt:
    print("saved")
"""
FAILS = """
try:
    train()
except KeyboardInterrupt:
    raise OSError("disk full") from None
"""
OWN_HOOK = """
import sys
sys.excepthook = lambda kind, error, trace: print("heard", kind.__name__)
train()
"""
IN_A_THREAD = """
import threading
worker = threading.Thread(target=train)
try:
    worker.start()
    worker.join()
    threading.Event().wait()
finally:
    print("told")
"""
IGNORED = """
import signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
train()
"""


@pytest.mark.parametrize(
    ("program", "code", "out", "err"),
    [
        ("train()", -signal.SIGINT, "", ""),
        (CATCHES, 0, "saved", ""),
        (FAILS, 1, "", "OSError: disk full"),
        (OWN_HOOK, -signal.SIGINT, "heard KeyboardInterrupt", ""),
        (IN_A_THREAD, -signal.SIGINT, "told", ""),
        (IGNORED, -signal.SIGINT, "", ""),
    ],
    ids=["alone", "catches", "fails", "own hook", "in a thread", "ignored"],
)
def test_a_program_ends_as_by_ctrl_c_and_only_its_own_failure_is_shown(
    tmp_path: Path, program: str, code: int, out: str, err: str
) -> None:
    (tmp_path / "train.py").write_text(SEND + DEEP + program)
    command = [sys.executable, "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stdout.strip()) == (code, out), done.stderr
    assert done.stderr.strip().endswith(err)
    assert ("Traceback" in done.stderr) == bool(err)
    assert "KeyboardInterrupt" not in done.stderr


def test_another_failure_is_printed_as_ever(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    with pytest.raises(KeyboardInterrupt) as caught:
        interrupt()
    for error in (caught.value, ValueError("wrong")):
        sys.excepthook(type(error), error, error.__traceback__)
    assert capsys.readouterr().err == "ValueError: wrong\n"
