"""A handler of the program's signals may raise in our code while JAX or TensorFlow runs: the program hears of
it, and has its steps after it."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from joulemap.frameworks.adapter import Adapter
from joulemap.recorder.budget import Plan
from joulemap.recorder.inside import epoch_clock_ns
from joulemap.recorder.journal import Journal
from joulemap.recorder.sessions import Sessions
from joulemap.recorder.steps import StepClock
from tests.late_signals import comes_to_the_program

NOT_SAFE = ("FunctionTrace.__exit__", "Watch.surely")
"""Where these begin nothing can be done: what they are to end goes on, and hides all steps after it."""


def of_jax() -> Callable[[], object]:
    jax = pytest.importorskip("jax", reason="needs JAX")
    update = jax.jit(lambda w, x: w - 0.1 * jax.numpy.tanh(x @ w))
    w = x = jax.numpy.ones((8, 8))
    return lambda: update(w, x).block_until_ready()


def of_tensorflow() -> Callable[[], object]:
    tf = pytest.importorskip("tensorflow", reason="needs TensorFlow")
    w = tf.Variable(tf.ones((3, 3)))
    return tf.function(lambda: w.assign_add(tf.matmul(w, w)))  # type: ignore[no-any-return]


def of_keras() -> Callable[[], object]:
    keras = pytest.importorskip("keras", reason="needs Keras")
    tf = pytest.importorskip("tensorflow", reason="needs TensorFlow")
    model = keras.Sequential([keras.layers.Dense(4)])
    model.compile("sgd", "mse")
    return lambda: model.train_on_batch(tf.ones((4, 3)), tf.ones((4, 4)))


def adapter_of(program: Callable[..., object], folder: Path) -> Adapter:
    if program is of_jax:
        from joulemap.frameworks.jax.adapter import JaxAdapter

        return JaxAdapter(folder)
    from joulemap.frameworks.tensorflow.adapter import TensorFlowAdapter

    return TensorFlowAdapter(folder)


@contextmanager
def recorded(program: Callable[..., object], plan: Plan) -> Iterator[StepClock]:
    with tempfile.TemporaryDirectory() as made:
        folder, now_ns = Path(made), epoch_clock_ns(0)
        journal = Journal(folder)
        sessions = Sessions(folder, journal, now_ns)
        clock = StepClock(plan, sessions, journal, now_ns)
        adapter = adapter_of(program, folder / "raw")
        sessions.add(adapter)
        for module in adapter.watches:
            if module in sys.modules:
                adapter.attach(module, clock)
        try:
            yield clock
        finally:
            adapter.detach()
            journal.close()
        assert not any(sessions._failures.values())
        assert adapter.problems == []


@pytest.mark.parametrize("plan", [Plan(overhead=0.0), Plan(steps=[(2, 3)])], ids=["plain", "traced"])
@pytest.mark.parametrize("program", [of_jax, of_tensorflow, of_keras])
def test_it_comes_in_a_step(program: Callable[[], Callable[[], object]], plan: Plan) -> None:
    step, places = program(), list[Any]()
    step()
    for place in count(1):
        with recorded(program, plan) as clock:
            for _ in range(2):
                step()
            came = comes_to_the_program(step, place)
            if not came:
                break
            places += came
            step()
            found = clock.count
            for _ in range(4):
                step()
            assert clock.count == found + 4 or any(one in came[0] for one in NOT_SAFE), came
    assert len(places) > 10
