"""Inference of several models: each has a kind of step of its own; and whatever a module is, it has steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from joulemap.frameworks.torch.adapter import TorchAdapter
from joulemap.frameworks.torch.kinds import MOST, TOO_MANY
from tests.tensorflow_live import Heard as Listener
from tests.torch_live import attached

torch = pytest.importorskip("torch", reason="needs PyTorch")


def net() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))


def test_inference_of_another_model_is_another_kind(tmp_path: Path) -> None:
    """What one does says nothing of another. Those of one class and size are alike."""
    text, pictures, layers = net(), torch.nn.Linear(4, 4), [torch.nn.Linear(4, 4) for _ in range(3)]
    with attached(tmp_path) as (_, heard), torch.no_grad():
        for _ in range(2):
            text(torch.randn(2, 4))
            for _ in range(3):
                pictures(torch.randn(2, 4))
        for layer in layers:
            layer(torch.randn(2, 4))
        net()(torch.randn(2, 4))  # made for one call
        torch.nn.LazyLinear(4)(torch.randn(2, 4))
        assert heard.steps == (
            ["inference", *["inference 2"] * 3] * 2 + ["inference 2"] * 3 + ["inference", "inference 3"]
        )


class Groups(torch.nn.Linear):
    """Has parameters of its own way."""

    def parameters(self, recurse: bool = True) -> Any:
        return [{"params": list(super().parameters(recurse))}]


class Equal(torch.nn.Linear):
    """One that is like another, so that it has no hash."""

    def __eq__(self, other: object) -> bool:
        return True


class Heard(torch.overrides.TorchFunctionMode):
    """What is called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("module", [Groups(3, 3), Equal(3, 3), torch.nn.Linear(3, 3)])
def test_whatever_a_module_has_made_of_itself_has_steps_and_hears_nothing(
    module: Any, tmp_path: Path
) -> None:
    with attached(tmp_path) as (_, heard), torch.no_grad(), Heard() as mode:
        for _ in range(3):
            module(torch.ones(2, 3))
        assert heard.steps == ["inference"] * 3
    assert set(mode.names) <= {"ones", "linear"}


def test_not_more_kinds_of_inference_are_told_apart_than_could_be_traced(tmp_path: Path) -> None:
    """And that is said where it is so."""
    for count, said in ((MOST, []), (2 * MOST, [TOO_MANY])):
        adapter, heard = TorchAdapter(tmp_path), Listener()
        adapter.attach("torch", heard)
        with torch.no_grad():
            for size in range(1, count + 1):
                torch.nn.Linear(size, 1)(torch.randn(2, size))
        adapter.detach()
        assert len(set(heard.steps)) == MOST
        assert heard.steps[-1] == f"inference {MOST}"
        assert adapter.problems == said
