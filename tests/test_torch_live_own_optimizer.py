"""Steps of PyTorch programs that make use of gradients without an optimizer of torch's."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from joulemap.frameworks.torch import by_hand, calls
from joulemap.recorder.steps import StepClock
from tests.torch_live import attached
from tests.torch_recorded import recording

torch = pytest.importorskip("torch", reason="needs PyTorch")


@pytest.fixture(autouse=True)
def no_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program has none, whatever other tests have made in this process."""
    monkeypatch.setattr(calls, "any_optimizer", lambda: False)


class Trainer:
    """A program that steps by itself."""

    def __init__(self) -> None:
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
        self.x, self.y = torch.randn(2, 4), torch.tensor([0, 1])

    def trains(self, x: Any = None) -> None:
        loss = torch.nn.functional.cross_entropy(self.model(self.x if x is None else x), self.y)
        loss.backward()
        self.steps()

    def steps(self) -> None:
        with torch.no_grad():
            for one in self.model.parameters():
                one -= 0.1 * one.grad
                one.grad = None

    def evaluates(self, times: int = 2) -> None:
        self.model.eval()
        with torch.no_grad():
            for _ in range(times):
                self.model(self.x)
        self.model.train()

    def attacks(self, times: int = 3) -> None:
        self.model.eval()
        noise = torch.zeros_like(self.x)
        for _ in range(times):
            loss = self.model(self.x + noise.requires_grad_()).sum()
            noise = noise.detach() + torch.autograd.grad(loss, noise)[0].sign()
        self.model.train()


def test_a_step_lasts_until_the_next_call_after_a_backward_pass(tmp_path: Path) -> None:
    """The first one shows that there is something to go by; the last one is open."""
    program = Trainer()
    with attached(tmp_path) as (adapter, heard):
        program.trains()
        assert (heard.steps, heard.depth) == (["inference"], 0)
        for _ in range(4):
            program.trains()
            assert heard.depth == 1
            assert adapter.open_ended
        assert heard.steps == ["inference"] + ["train"] * 4


def test_what_is_evaluated_in_between_is_inference(tmp_path: Path) -> None:
    program = Trainer()
    with attached(tmp_path) as (adapter, heard):
        for _ in range(3):
            for _ in range(2):
                program.trains()
            program.evaluates()
            assert heard.depth == 0
            assert not adapter.open_ended
        assert heard.steps[1:] == ["train"] + ["inference"] * 2 + (["train"] * 2 + ["inference"] * 2) * 2


def test_what_is_evaluated_with_gradients_on_is_inference(tmp_path: Path) -> None:
    program, loss = Trainer(), torch.nn.CrossEntropyLoss()
    with attached(tmp_path) as (_, heard):
        for _ in range(3):
            for _ in range(2):
                loss(program.model(program.x), program.y).backward()
                program.steps()
            program.model.eval()
            for _ in range(100):
                loss(program.model(program.x), program.y)
            program.model.train()
        assert [one for one in heard.steps if one == "train"] == ["train"] * 5
        assert (
            len(heard.steps) == 5 + 2 + 3 * 200
        )  # the first of training, its loss, and all that is evaluated


def test_several_calls_and_passes_of_which_more_comes_are_one_step(tmp_path: Path) -> None:
    """The two of a GAN's critic, with a penalty for its gradient."""
    critic, loss = torch.nn.Linear(4, 1), torch.nn.MSELoss()
    with attached(tmp_path) as (_, heard):
        for _ in range(4):
            x = torch.randn(2, 4, requires_grad=True)
            (slope,) = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
            (loss(critic(torch.randn(2, 4)), critic(x)) + slope.square().sum()).backward()
        assert heard.steps[-3:] == ["train"] * 3
        assert all(one.startswith("inference") for one in heard.steps[:-3])


def test_a_step_begins_with_the_first_of_several_modules(tmp_path: Path) -> None:
    program, before, after = Trainer(), torch.nn.Linear(4, 4), torch.nn.Linear(2, 1)
    with attached(tmp_path) as (_, heard):
        for _ in range(4):
            after(program.model(before(program.x))).sum().backward()
            program.steps()
        assert heard.steps == ["inference", "inference 2", "inference 3", "train", "train", "train"]


def test_loading_the_batch_is_a_part_of_the_step(tmp_path: Path) -> None:
    program, open_after_loading = Trainer(), list[int]()
    loader = torch.utils.data.DataLoader([torch.randn(4) for _ in range(8)], batch_size=2)
    with attached(tmp_path) as (_, heard):
        for _ in range(2):
            for x in loader:
                open_after_loading.append(heard.depth)
                program.trains(x)
            assert heard.depth == 0  # the end of the data ends the last one, and opens none
        assert heard.steps == ["inference"] + ["train"] * 7
    assert open_after_loading == [0] + [1] * 7


def test_an_attack_is_a_kind_of_its_own(tmp_path: Path) -> None:
    program = Trainer()
    with attached(tmp_path) as (_, heard):
        program.attacks(5)
        assert heard.steps == ["inference"] + ["gradients"] * 4


def test_an_attack_is_no_part_of_the_step_that_trains_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    program = Trainer()
    optimizer = torch.optim.SGD(program.model.parameters(), lr=0.1)
    with attached(tmp_path) as (_, heard):
        for _ in range(3):
            program.attacks()
            program.model(program.x).sum().backward()
            optimizer.step()
            assert heard.depth == 0
        attack = ["gradients"] * 3
        assert heard.steps == ["inference", *attack[1:], "train", *attack, "train", *attack, "train"]


def test_a_model_in_evaluation_mode_may_have_an_optimizer_for_what_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    model, image = torch.nn.Linear(4, 2).eval(), torch.randn(2, 4, requires_grad=True)
    optimizer = torch.optim.Adam([image])
    with attached(tmp_path) as (_, heard):
        for _ in range(5):
            model(image).sum().backward()
            optimizer.step()
        assert heard.steps == ["inference"] + ["train"] * 4
        assert heard.depth == 0


def passes_inside() -> Iterator[Callable[[], object]]:
    """Programs whose calls with gradients on are inference."""

    class Force(torch.nn.Module):  # type: ignore[misc, name-defined]
        """What an energy has as its gradient."""

        def forward(self, x: Any) -> Any:
            return torch.autograd.grad(x.square().sum(), x)[0]

    model, force, x = torch.nn.Linear(4, 2), Force(), torch.randn(2, 4, requires_grad=True)
    weights = {name: one.detach() for name, one in model.named_parameters()}

    def loss(weights: Any) -> Any:
        return torch.func.functional_call(model, weights, (x,)).sum()

    yield lambda: force(x)
    yield lambda: torch.func.grad(loss)(weights)
    yield lambda: model(x)
    yield lambda: (x * 2).sum().backward()


@pytest.mark.parametrize("call", [*passes_inside()], ids=["in a call", "functional", "none", "no module"])
def test_other_calls_with_gradients_on_are_inference(tmp_path: Path, call: Callable[[], object]) -> None:
    with attached(tmp_path) as (_, heard):
        for _ in range(5):
            call()
        assert heard.depth == 0
        assert set(heard.steps) <= {"inference"}


def test_gradients_that_are_seldom_asked_for_leave_calls_what_they_are(tmp_path: Path) -> None:
    """A server with gradients on, which says now and then why it has said something."""
    model, x = torch.nn.Linear(4, 2).eval(), torch.randn(2, 4, requires_grad=True)
    with attached(tmp_path) as (_, heard):
        for number in range(400):
            said = model(x).sum()
            if number % 100 == 99:
                said.backward()
        assert heard.steps == ["inference"] * 400


def test_a_step_that_too_many_calls_follow_was_inference(tmp_path: Path) -> None:
    program = Trainer()
    with attached(tmp_path) as (_, heard):
        for _ in range(3):
            program.trains()
        for _ in range(by_hand.FEW + 10):
            program.model(program.x)
        assert heard.steps[:3] == ["inference", "train", "train"]
        assert set(heard.steps[3:]) == {"inference"}
        assert heard.depth == 0


def test_a_pause_is_no_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_hand, "_PAUSE_S", 0.1)
    monkeypatch.setattr(by_hand, "_PAUSE_STEPS", 2)
    program = Trainer()
    with attached(tmp_path) as (_, heard):
        for _ in range(5):
            program.trains()
        time.sleep(1)
        program.evaluates(1)
        assert heard.steps == ["inference"] + ["train"] * 3 + ["inference"]


def test_steps_that_the_program_marks_stay_whole(tmp_path: Path) -> None:
    program = Trainer()
    with attached(tmp_path) as (_, heard):
        for _ in range(3):
            heard.begin("mine")
            program.trains()
            program.trains()
            heard.end()
            assert heard.depth == 0
        assert heard.steps == ["mine"] * 3


@pytest.mark.parametrize("waits_s", [0, 10**6])
def test_a_thread_that_trains_no_more_does_not_hide_others_for_long(
    monkeypatch: pytest.MonkeyPatch, waits_s: float
) -> None:
    trainer = Trainer()
    monkeypatch.setattr("joulemap.recorder.steps.LEFT_S", waits_s)
    monkeypatch.setattr("joulemap.recorder.steps.LEFT_STEPS", 0)
    with recording(StepClock) as (program, written):
        for _ in range(4):
            trainer.trains()
        program.in_a_thread(lambda: [program.infers() for _ in range(3)])
        trainer.trains()
        steps = [label for label, _ in written()]
    if waits_s:
        assert steps == ["inference"] + ["train"] * 3
    else:
        assert steps == ["inference"] + ["train"] * 2 + ["inference 2"] * 3
