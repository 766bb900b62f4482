"""Models that several threads call at the same time, in none's turn."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from joulemap.frameworks.torch.extract import _numbers as numbers
from joulemap.recorder.steps import StepClock
from tests.torch_recorded import Silent, recording

torch = pytest.importorskip("torch", reason="needs PyTorch")

PATIENCE_S = 60.0


@pytest.mark.parametrize("kind", [StepClock, Silent])
@pytest.mark.parametrize("wrapped", [False, True], ids=["grafted", "wrapped"])
def test_a_thread_is_heard_again_whose_call_another_one_hid(
    tmp_path: Path, kind: type[StepClock], wrapped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its call begins while another thread's call hides it, and goes on when that is over, in a session: then
    what it calls is heard, and what it is inside of was not."""
    if wrapped:
        real = torch.nn.Module.__call__
        monkeypatch.setattr(torch.nn.Module, "__call__", lambda self, *args, **kw: real(self, *args, **kw))
    hidden, over = threading.Event(), threading.Event()

    def waits() -> None:
        hidden.set()
        assert over.wait(PATIENCE_S)

    with recording(kind) as (program, _):

        def beside() -> None:
            program.infers(program.other, meanwhile=waits)
            before = program.clock.count
            for _ in range(4):
                program.infers(program.other)
            counted.append(program.clock.count - before)

        def begins() -> None:
            thread.start()
            assert hidden.wait(PATIENCE_S)

        counted: list[int] = []
        thread: Any = threading.Thread(target=beside)
        program.infers(meanwhile=begins)
        program.adapter.start(tmp_path)
        over.set()
        thread.join(PATIENCE_S)
        program.adapter.stop()
        for _ in range(3):
            program.infers()
        assert counted == [4]


def test_numbers_without_a_sign_cost_no_session() -> None:
    """Of other threads' unfinished work, and threads' own."""

    class Event:
        def __init__(self, said: int) -> None:
            self.said = said

        def duration_ns(self) -> int:
            return self.said

    events = [Event(5), Event(2**64 - 3), Event(-1)]
    assert numbers(Event, "duration_ns", events).tolist() == [5, -3, -1]
