"""A handler of the program's signals may raise anywhere in our code: the program hears of it, and has its
steps after it."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import joulemap
from joulemap.frameworks.torch.calls import Calls
from joulemap.recorder.budget import Plan
from joulemap.recorder.steps import StepClock
from tests.test_torch_live_quick import Silent, recording
from tests.torch_training import Training

torch = pytest.importorskip("torch", reason="needs PyTorch")

OURS = str(Path(joulemap.__file__).parent)


class Late(Exception):
    """Raised by the handler of a signal."""


@contextmanager
def late_at(place: int, calls: Calls) -> Iterator[list[str]]:
    """A signal comes at this one of the places where Python handles it and our code runs: where a function
    begins, and where one of C's has returned. The list says which that was; it is empty where there are fewer
    of them."""
    passed, places = count(1), list[str]()

    def late(*_: Any) -> None:
        raise Late

    def comes(frame: FrameType, event: str, _: Any) -> None:
        ours = frame.f_code.co_filename.startswith(OURS) or frame.f_code is calls._codes[0]
        if ours and event in ("call", "c_return") and next(passed) == place:
            sys.setprofile(None)
            places.append(f"{frame.f_code.co_qualname}, line {frame.f_lineno}, at a {event}")
            signal.raise_signal(signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, late)
    sys.setprofile(comes)
    try:
        yield places
    finally:
        sys.setprofile(None)
        signal.signal(signal.SIGUSR1, before)


def comes_to_the_program(step: Callable[[], object], place: int, calls: Calls) -> bool:
    """Whether there was such a place."""
    came = False
    with late_at(place, calls) as places:
        try:
            step()
        except Late:
            came = True
    assert came == bool(places), places
    return came


def loads_and_trains(training: Training) -> None:
    next(training.batches)
    training.trains()


STEPS = [Training.infers, Training.trains, loads_and_trains]
Step = Callable[[Training], None]


@pytest.mark.parametrize("kind", [StepClock, Silent])
@pytest.mark.parametrize("before", [0, 1, 6])
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_it_comes_in_a_step(step: Step, before: int, kind: type[StepClock]) -> None:
    for place in count(1):
        training = Training()
        with recording(kind) as (program, _):
            for _ in range(before):
                step(training)
            if not comes_to_the_program(partial(step, training), place, program.adapter._calls):
                assert place > 5
                return
            step(training)
            found = program.clock.count
            for _ in range(4):
                step(training)
            assert program.clock.count == found + 4, place


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_it_comes_in_a_session(step: Step) -> None:
    """A profiler that stays on is a session that never ends."""
    plan = Plan(steps=[(2, 2), (6, 6)])
    for place in count(1, 5):
        training = Training()
        with recording(StepClock, plan) as (program, _):
            step(training)
            step(training)
            if not comes_to_the_program(partial(step, training), place, program.adapter._calls):
                assert place > 500
                return
            sessions = program.clock._sessions
            for _ in range(6):
                step(training)
                assert torch.autograd._profiler_enabled() == sessions.open, place
            assert sessions._number >= 1
            assert not sessions._failures.get("torch"), place
