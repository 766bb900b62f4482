"""Sessions that are not held yet: Kineto decides at its first one whether it can ever see a GPU, and what
a program does before its first step is no example of its steps."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

from joulemap.frameworks.adapter import TooEarly
from joulemap.frameworks.torch import gpus
from joulemap.recorder.journal import Journal, read_journal
from joulemap.recorder.sessions import Sessions

from .environment import uncovered
from .test_recorder import Tracer


def test_a_torch_for_gpus_on_a_machine_with_one_may_come_to_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(gpus, "_DEVICES", ("/dev/null",))
    monkeypatch.setattr(gpus, "in_use", lambda: False)
    assert gpus.to_come()
    monkeypatch.setattr(gpus, "in_use", lambda: True)
    assert not gpus.to_come()
    monkeypatch.setattr(gpus, "in_use", lambda: False)
    monkeypatch.setattr(gpus, "_DEVICES", ("/dev/no-such-device",))
    assert not gpus.to_come()


def test_what_is_too_early_is_tried_later_and_not_talked_about(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    sessions = Sessions(tmp_path, journal, lambda: 0)
    sessions.add(Tracer(TooEarly("not yet")))
    assert not sessions.start()
    assert not sessions.possible
    journal.close()
    assert not [what for what, _ in read_journal(tmp_path) if what == "warning"]


BEGINNING = """
import sys, time, torch
from pathlib import Path
from joulemap.frameworks.torch import beginning
from joulemap.frameworks.torch.adapter import TorchAdapter
from tests.tensorflow_live import Heard

def expected(what):
    print(adapter.expects_steps, what)

def listened_to():
    adapter, heard = TorchAdapter(Path(sys.argv[1])), Heard()
    for module in ("torch", "torch.utils.data.dataloader"):
        adapter.attach(module, heard)
    return adapter

adapter = listened_to()
expected("of tensors alone")
import imported_slowly
class Net(torch.nn.Sequential):
    pass
expected("of a model")
Net(torch.nn.Linear(2, 2)).eval()(torch.ones(1, 2))
expected("after a step")
adapter = listened_to()
expected("of a model, in another recording")
beginning.LONGEST_S = 0
expected("in time")
"""


def test_slices_of_time_wait_for_a_program_that_is_about_to_make_steps(tmp_path: Path) -> None:
    (tmp_path / "imported_slowly.py").write_text("__import__('__main__').expected('in an import')")
    program = f"import sys; sys.path.append({str(tmp_path)!r})\n{BEGINNING}"
    command = [sys.executable, "-c", program, tmp_path]
    done = subprocess.run(command, env=uncovered(), capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "False of tensors alone",
        "True in an import",
        "True of a model",
        "False after a step",
        "True of a model, in another recording",
        "False in time",
    ], done.stderr
