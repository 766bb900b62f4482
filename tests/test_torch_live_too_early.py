"""Kineto decides at its first session whether it can ever see a GPU: none may be held before there is one."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

from joulemap.frameworks.adapter import TooEarly
from joulemap.frameworks.torch import gpus
from joulemap.recorder.journal import Journal, read_journal
from joulemap.recorder.sessions import Sessions

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
