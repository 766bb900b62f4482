"""Kinds of training steps: several optimizers, several models, and evaluation in the middle of a step."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from joulemap.frameworks.torch.adapter import TorchAdapter
from joulemap.frameworks.torch.kinds import MOST
from tests.tensorflow_live import Heard
from tests.torch_live import attached

torch = pytest.importorskip("torch", reason="needs PyTorch")


def net() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))


class Begun(Heard):
    """Keeps what steps are taken for when they begin: by that they are traced."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[str] = []

    def begin(self, label: str) -> None:
        if self.depth == 0:
            self.begun.append(label)
        super().begin(label)


def begun_by(folder: Path, action: Callable[[], object]) -> list[str]:
    adapter, heard = TorchAdapter(folder), Begun()
    for module in ("torch", "torch.optim.optimizer"):
        adapter.attach(module, heard)
    action()
    adapter.detach()
    assert adapter.problems == []
    assert heard.depth == 0
    return heard.begun


@pytest.mark.parametrize("count", [2, 3])
def test_steps_of_several_optimizers_begin_as_what_they_are(tmp_path: Path, count: int) -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(count)))
    optimizers = [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in model]

    def train() -> None:
        for _ in range(8):
            model(torch.randn(2, 4)).sum().backward()
            for optimizer in optimizers:
                optimizer.step()

    assert begun_by(tmp_path, train)[count:] == ["train"] * (8 - count)


def test_each_half_of_a_gan_may_have_several_optimizers(tmp_path: Path) -> None:
    halves = [net(), net()]
    optimizers = [[torch.optim.SGD(half[at].parameters(), lr=0.1) for at in (0, 2)] for half in halves]

    def train() -> None:
        for _ in range(8):
            for half, its_own in zip(halves, optimizers, strict=True):
                half(torch.randn(2, 4)).sum().backward()
                for optimizer in its_own:
                    optimizer.step()

    begun = begun_by(tmp_path, train)[-8:]
    assert begun[0] != begun[1]
    assert begun == begun[:2] * 4


def test_models_that_are_trained_one_after_the_other_are_kinds_of_their_own(tmp_path: Path) -> None:
    def train(size: int, make: Any = torch.optim.SGD) -> None:
        model = torch.nn.Linear(4, size)
        optimizer = make(model.parameters(), lr=0.1)
        for _ in range(3):
            model(torch.randn(2, 4)).sum().backward()
            optimizer.step()
        del model, optimizer
        gc.collect()

    def search() -> None:
        for size in (1, 2, 1):
            train(size)
        train(2, torch.optim.Adam)
        for size in range(20, 40):
            train(size)

    begun = begun_by(tmp_path, search)
    assert begun[2:12:3] == ["train", "train 2", "train", "train 3"]
    assert len(set(begun)) == MOST


def test_not_more_kinds_of_training_are_told_apart_than_could_be_traced(tmp_path: Path) -> None:
    models = [torch.nn.Linear(4, size) for size in range(1, 2 * MOST)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]

    def train() -> None:
        for model, optimizer in zip(models, optimizers, strict=True):
            for _ in range(2):
                model(torch.randn(2, 4)).sum().backward()
                optimizer.step()

    with attached(tmp_path) as (_, heard):
        train()
    assert len(set(heard.steps)) == MOST


def test_evaluation_inside_a_step_of_training_is_none_of_it(tmp_path: Path) -> None:
    """In the middle of an accumulation or after batches that were left over; but it is where the backward
    pass is still to come, which has to be in a step."""
    model, other, x = net(), net().eval(), torch.randn(2, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def evaluate() -> None:
        model.eval()
        with torch.no_grad():
            for _ in range(3):
                model(x)
        model.train()

    with attached(tmp_path) as (_, heard):
        for round_ in range(6):
            for number in range(4):
                model(x).sum().backward()
                if round_ > 2 and number == 1:
                    evaluate()
            optimizer.step()
        inside = ["train", "inference", "inference", "inference", "train"]
        assert heard.steps == ["train"] * 3 + inside * 3
        del heard.steps[:]
        for _ in range(3):  # the second is like the first, and the third like the second
            loss = model(x).sum()
            evaluate()
            assert heard.depth == 1
            loss.backward()
            optimizer.step()
        assert heard.steps == ["train"] * 3
        del heard.steps[:]
        with torch.no_grad():
            teacher = other(x), model(x)  # the one never learns, and the other is not evaluated
        (model(x) - teacher[0]).sum().backward()
        with torch.no_grad():
            other(x), model(x)
        optimizer.step()
        assert heard.steps == ["inference", "inference", "train"]
