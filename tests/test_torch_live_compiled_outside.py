"""Models that are compiled before a recording begins, or go on after it has ended, are not compiled again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

from torch import nn  # noqa: E402
from torch._dynamo.utils import counters  # noqa: E402

from joulemap.frameworks.torch import provenance  # noqa: E402
from joulemap.frameworks.torch.adapter import TorchAdapter  # noqa: E402
from tests.tensorflow_live import Heard  # noqa: E402
from tests.torch_live import INDUCTOR, attached, layers, session  # noqa: E402


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


def test_other_shapes_and_models_that_are_compiled_meanwhile_change_nothing(tmp_path: Path) -> None:
    """The last batch of an epoch, and another model."""
    model, other = as_a_whole(), torch.compile(nn.Sequential(nn.Linear(4, 4)), backend="eager")
    step(model)
    with attached(tmp_path) as (adapter, _):
        step(model)
        step(other)
        model(torch.ones(7, 4)).sum().backward()
        graphs = counters["stats"]["unique_graphs"]
        with session(adapter, tmp_path):
            step(model)
        step(model)
    assert counters["stats"]["unique_graphs"] == graphs == 3


class Plain(nn.Module):  # type: ignore[misc]
    """Layers without a ``__call__`` of their own, between which the compiler leaves its graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
            torch._dynamo.graph_break()
        return x


@pytest.mark.skipif(
    not hasattr(torch.compiler, "set_stance"), reason=f"torch {torch.__version__} has no set_stance"
)
def test_where_graphs_depend_on_nothing_of_ours_modules_keep_their_names(tmp_path: Path) -> None:
    model = torch.compile(Plain(), backend="eager")
    step(model)
    with attached(tmp_path) as (adapter, _):
        step(model)
        with session(adapter, tmp_path), torch.compiler.set_stance("force_eager"):
            step(model)
    assert {"layers/0", "layers/1"} <= set(layers(tmp_path))


def test_a_function_that_was_replaced_before_us_is_taken_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By one that has arguments with defaults, which the compiler meets inside."""
    original = nn.Module.__call__

    def patched(self: Any, *args: Any, _extra: Any = None, **kwargs: Any) -> Any:
        return original(self, *args, **kwargs)

    monkeypatch.setattr(nn.Module, "__call__", patched)
    model = torch.compile(Net(), backend="eager", fullgraph=True)
    with attached(tmp_path) as (adapter, _):
        step(model)
        with session(adapter, tmp_path):
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


def test_a_compiler_that_does_not_tell_what_kernels_are_made_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor import compile_fx
    from torch._inductor.codegen import triton

    original, adapter = compile_fx.compile_fx, TorchAdapter(tmp_path)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    with monkeypatch.context() as patched:
        patched.delattr(triton, provenance._TELLS, raising=False)
        adapter.attach(INDUCTOR, Heard())
    assert adapter.problems == []
    torch.compile(lambda x: x @ x)(torch.ones(2, 2))
    adapter.detach()
    [problem] = adapter.problems
    assert "does not tell" in problem
    assert compile_fx.compile_fx is original
