"""A handler of the program's signals may raise anywhere in our code: the program hears of it, and has its
steps after it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

import pytest

from joulemap.recorder.budget import Plan
from joulemap.recorder.steps import StepClock
from tests.late_signals import Late, comes_to_the_program
from tests.torch_recorded import Program, Silent, recording
from tests.torch_training import Training

torch = pytest.importorskip("torch", reason="needs PyTorch")


def loads_and_trains(training: Training) -> None:
    next(training.batches)
    training.trains()


STEPS = [Training.infers, Training.trains, Training.accumulates, loads_and_trains]
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
            if not comes_to_the_program(partial(step, training), place, program.adapter._calls._codes[0]):
                assert place > 5
                return
            step(training)
            found = program.clock.count
            for _ in range(4):
                step(training)
            assert program.clock.count == found + 4, place


@pytest.mark.parametrize("trains", [False, True])
def test_it_comes_in_a_step_that_another_thread_has_looked_at(trains: bool) -> None:
    """Which is no longer in the lane."""
    for place in count(1):
        with recording(StepClock) as (program, _):

            def looks(program: Program = program) -> None:
                program.in_a_thread(program.clock.slice)

            def step(program: Program = program) -> None:
                if trains:
                    program.one(program.x).sum().backward()
                    looks(program)
                    program.optimizer.step()
                else:
                    program.infers(meanwhile=looks)

            for _ in range(6):
                step()
            if not comes_to_the_program(step, place, program.adapter._calls._codes[0]):
                assert place > 10
                return
            step()
            found = program.clock.count
            for _ in range(4):
                step()
            assert program.clock.count == found + 4, place


def test_it_comes_while_steps_are_written_down() -> None:
    """And none is lost."""
    for place in count(1):
        with recording(StepClock) as (program, written):
            for _ in range(6):
                program.infers()

            def counts(clock: StepClock = program.clock) -> None:
                assert clock.count == 6

            came = comes_to_the_program(counts, place)
            assert written() == [("inference", 0)] * 6, came
            if not came:
                assert place > 20
                return


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_it_comes_in_a_session(step: Step) -> None:
    """A profiler that stays on is a session that never ends."""
    plan = Plan(steps=[(2, 2), (6, 6)])
    for place in count(1, 5):
        training = Training()
        with recording(StepClock, plan) as (program, _):
            step(training)
            step(training)
            if not comes_to_the_program(partial(step, training), place, program.adapter._calls._codes[0]):
                assert place > 500
                return
            sessions = program.clock._sessions
            for _ in range(6):
                step(training)
                assert torch.autograd._profiler_enabled() == sessions.open, place
            assert sessions._number >= 1
            assert not sessions._failures.get("torch"), place


@pytest.mark.parametrize("before", [0, 3])
def test_a_timeout_that_comes_while_a_call_fails_leaves_the_program_its_steps(before: int) -> None:
    """It is raised as soon as Python runs anything; ``before`` that many calls are like each other."""

    def late(*_: Any) -> None:
        raise Late

    class Fails(torch.nn.Module):  # type: ignore[misc]
        fails = False

        def forward(self, x: Any) -> Any:
            if self.fails:
                signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
                raise ArithmeticError
            return x

    model, handler = Fails(), signal.signal(signal.SIGUSR1, late)
    try:
        with recording(StepClock) as (program, _), torch.no_grad():
            for _ in range(before):
                model(program.x)
            model.fails = True
            with pytest.raises((Late, ArithmeticError)):
                model(program.x)
            model.fails = False
            found = program.clock.count
            for _ in range(10):
                model(program.x)
            assert program.clock.count == found + 10
    finally:
        signal.signal(signal.SIGUSR1, handler)
