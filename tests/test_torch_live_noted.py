"""Steps that are only noted are those that would have been found otherwise, whatever a program does."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import tempfile
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.recordings import REPOSITORY
from tests.tensorflow_live import Heard
from tests.torch_live import Noting, attached
from tests.torch_training import ACTIONS, Failing, Training

torch = pytest.importorskip("torch", reason="needs PyTorch")


def heard_in(actions: list[str], listener: Heard) -> list[str]:
    program = Training()
    program.lies = lambda: len(listener.steps) * listener.depth
    with tempfile.TemporaryDirectory() as folder, attached(Path(folder)) as (adapter, _):
        adapter._watch.steps = listener
        program.trains()
        for action in actions:
            program.actions()[action]()
    return [*listener.steps, f"depth {listener.depth}", f"loaded in {program.lies_in}"]


def test_training_like_the_last_step_is_only_noted() -> None:
    listener = Noting()
    assert heard_in(["trains"] * 4 + ["infers"] * 2 + ["trains"] * 3, listener)[:-2] == [
        *["train"] * 5,
        *["inference"] * 2,
        *["train"] * 3,
    ]
    assert listener.noted_at == [2, 3, 4, 6, 9]


def test_training_that_is_fed_like_the_last_step_is_only_noted() -> None:
    listener = Noting()
    assert heard_in(["loads and trains"] * 6, listener)[:-2] == ["train"] * 7
    assert listener.noted_at == [2, 3, 4, 5, 6]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(1, 4)), max_size=6))
def test_steps_that_are_noted_are_those_that_would_have_been_found(runs: list[tuple[str, int]]) -> None:
    actions = [action for action, times in runs for _ in range(times)]
    assert heard_in(actions, Noting()) == heard_in(actions, Heard())


def test_an_optimizer_whose_step_failed_is_not_waited_for_nor_held() -> None:
    program, listener = Training(), Heard()
    with tempfile.TemporaryDirectory() as folder, attached(Path(folder)) as (adapter, _):
        adapter._watch.steps = listener
        program.trains()
        program.fails()
        held = weakref.ref(program.first)
        program.first = Failing(program.one.parameters(), lr=0.1)
        gc.collect()
        assert held() is None
        for _ in range(3):
            program.trains()
    assert (listener.depth, listener.steps) == (0, ["train"] * 4)


def test_an_optimizer_may_be_given_whatever_it_takes() -> None:
    """Of which some cannot be compared with anything."""

    class Given(torch.optim.SGD):  # type: ignore[misc]
        def step(self, rates: Any = None) -> Any:
            return super().step()

    program = Training()
    optimizer, rates = Given(program.one.parameters(), lr=0.1), np.ones(2)

    def trains(*given: Any) -> None:
        program.one(program.x).sum().backward()
        optimizer.step(*given)

    listener = Noting()
    with tempfile.TemporaryDirectory() as folder, attached(Path(folder)) as (adapter, _):
        adapter._watch.steps = listener
        for given in [(), (), (), (rates,), (rates,), (None,), (None,)]:
            trains(*given)
    assert listener.steps == ["train"] * 7


def test_an_alarm_that_comes_while_a_hook_runs_reaches_the_program() -> None:
    class Rings(Noting):
        """One in whose words an alarm comes."""

        def noted(self, label: str) -> bool:
            signal.raise_signal(signal.SIGUSR1)
            return super().noted(label)

    def too_late(*_: Any) -> None:
        raise TimeoutError

    program, before = Training(), signal.signal(signal.SIGUSR1, too_late)
    try:
        with tempfile.TemporaryDirectory() as folder, attached(Path(folder)) as (adapter, _):
            adapter._watch.steps = Rings()
            program.infers()
            with pytest.raises(TimeoutError):
                program.infers()
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_hook_that_fails_is_noted_and_the_program_goes_on() -> None:
    class Fails(Heard):
        def noted(self, label: str) -> bool:
            raise OSError("no more room")

    program = Training()
    with tempfile.TemporaryDirectory() as folder, attached(Path(folder)) as (adapter, _):
        adapter._watch.steps = Fails()
        for _ in range(3):
            program.infers()
        assert adapter.problems == ["A hook into PyTorch failed (_notes_inference): OSError: no more room"]
        adapter._watch.problems.clear()


PROFILED = """
import json, sys
from contextlib import nullcontext
from pathlib import Path
import torch
from tests.torch_live import Noting, attached

folder, is_attached = Path(sys.argv[1]), sys.argv[2] == "attached"
model, x = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()), torch.randn(2, 4)
with attached(folder) if is_attached else nullcontext():
    for _ in range(3):
        model(x)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], with_stack=True) as found:
        model(x)
    found.export_chrome_trace(str(folder / "trace.json"))
said = json.loads((folder / "trace.json").read_text(errors="replace"), strict=False)  # older ones are damaged
names = (one.get("name", "") for one in said["traceEvents"])
print(sorted(name for name in names if name.startswith("nn.Module: ")))
"""


def test_a_profiler_of_the_programs_own_knows_modules(tmp_path: Path) -> None:
    """In a process of its own: torch looks once at the code that calls modules."""
    printed = [
        subprocess.run(
            [sys.executable, "-c", PROFILED, str(tmp_path), how],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for how in ("plain", "attached")
    ]
    assert printed[0] == printed[1]
    assert "nn.Module: Linear_0" in printed[1]
