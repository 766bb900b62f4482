"""Models that are compiled before a recording begins, or go on after it has ended, are not compiled again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

from torch import nn  # noqa: E402
from torch._dynamo.utils import counters  # noqa: E402

from tests.torch_live import attached, session  # noqa: E402


class Layer(nn.Module):  # type: ignore[misc]
    """As those of Hugging Face, which pass ``Module.__call__`` on the way: graphs depend on its code."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(4, 4)

    def __call__(self, x: Any) -> Any:
        return super().__call__(x)

    def forward(self, x: Any) -> Any:
        return self.dense(x).relu()


class Net(nn.Module):  # type: ignore[misc]
    """Two of them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(), Layer()])

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x


def as_a_whole() -> Any:
    return torch.compile(Net(), backend="eager")


def in_place() -> Any:
    model = Net()
    model.compile(backend="eager")
    return model


def inside_of_another() -> Any:
    return nn.Sequential(nn.Linear(4, 4), torch.compile(Net(), backend="eager"), nn.Linear(4, 4))


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def step(model: Any) -> None:
    model(torch.ones(2, 4)).sum().backward()


pytestmark = pytest.mark.filterwarnings("ignore")  # which the compiler makes itself
COMPILED = [as_a_whole, in_place, inside_of_another]


@pytest.mark.parametrize("compiled", COMPILED)
def test_what_was_compiled_before_is_as_it_was(tmp_path: Path, compiled: Callable[[], Any]) -> None:
    model = compiled()
    step(model)
    with attached(tmp_path) as (adapter, _):
        step(model)
        for number in range(2):
            with session(adapter, tmp_path, number):
                step(model)
            step(model)
    step(model)
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize("compiled", COMPILED)
def test_what_is_compiled_meanwhile_stays_so(tmp_path: Path, compiled: Callable[[], Any]) -> None:
    model = compiled()
    with attached(tmp_path) as (adapter, _):
        step(model)
        with session(adapter, tmp_path):
            step(model)
    step(model)
    with attached(tmp_path) as (adapter, _):
        step(model)
        with session(adapter, tmp_path, 1):
            step(model)
    assert counters["stats"]["unique_graphs"] == 1
