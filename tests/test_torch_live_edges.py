"""What feeds what in a PyTorch program, as its energy distribution diagrams show it."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from joulemap import Domain, PowerTrace
from joulemap.accounting import attribute
from joulemap.accounting.diagram import Diagram, energy_distribution
from joulemap.frameworks.torch.raw import read_raw
from tests.torch_live import attached, layers, session, traced

torch = pytest.importorskip("torch", reason="needs PyTorch")
nn = torch.nn


def diagram(folder: Path, action: Any, phase: str = "forward") -> Diagram:
    """The diagram of a session of an action."""
    traced(folder, action)
    return read_diagram(folder, phase)


def read_diagram(folder: Path, phase: str | None = "forward") -> Diagram:
    read = read_raw(folder)
    power = PowerTrace(Domain("CPU", "CPU"), list(read.events.span_ns or ()), [100.0])
    return energy_distribution(attribute(read.events, power), read.program, phase=phase)


class Residual(nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)

    def forward(self, x: Any) -> Any:
        return self.norm(x + torch.relu(self.dense(x)))


class Deep(nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Residual(), Residual()

    def forward(self, x: Any) -> Any:
        return self.second(self.first(x))


@pytest.fixture(name="bert", scope="module")
def make_bert() -> Any:
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    config = transformers.BertConfig(
        num_hidden_layers=3, hidden_size=32, num_attention_heads=2, intermediate_size=64, vocab_size=100
    )
    return transformers.BertForPreTraining(config)


def ids() -> Any:
    return torch.randint(0, 100, (2, 16))


def between_layers(edges: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
    """Those of a BERT: older versions of Transformers compute masks with operations of its own."""
    return {edge for edge in edges if {"embeddings", "encoder", "pooler"}.issuperset(edge)}


def test_bert_reads_from_embeddings_to_heads_and_back(bert: Any, tmp_path: Path) -> None:
    optimizer = torch.optim.AdamW(bert.parameters())

    def step() -> None:
        bert(input_ids=ids(), labels=ids(), next_sentence_label=torch.tensor([0, 1])).loss.backward()
        optimizer.step()

    forward = diagram(tmp_path, step)
    assert {("bert", "cls"), ("cls", "loss")} <= set(forward.edges)
    assert between_layers(forward.at("bert").edges) == {("embeddings", "encoder"), ("encoder", "pooler")}
    assert set(forward.at("bert/encoder/layer").edges) == {("0", "1"), ("1", "2")}
    layer = "bert/encoder/layer/0"
    assert set(forward.at(layer).edges) == {
        ("attention", "intermediate"),
        ("attention", "output"),  # the residual connection
        ("intermediate", "output"),
    }
    assert forward.at(f"{layer}/attention").edges == (("self", "output"),)
    inner = forward.at(f"{layer}/attention/self").edges
    assert {source for source, _ in inner} >= {"query", "key", "value"}
    assert not {target for _, target in inner} & {"query", "key", "value"}
    backward = read_diagram(tmp_path, "backward")
    assert set(backward.at("bert/encoder/layer").edges) == {("1", "0"), ("2", "1")}
    assert set(backward.at("bert").edges) == {("encoder", "embeddings"), ("pooler", "encoder")}
    whole = read_diagram(tmp_path, None)
    assert {("bert", "optimizer"), ("cls", "optimizer")} <= set(whole.edges)


def test_bert_without_gradients(bert: Any, tmp_path: Path) -> None:
    with torch.inference_mode():
        forward = diagram(tmp_path, lambda: bert(input_ids=ids()))
    assert forward.edges == (("bert", "cls"),)
    assert between_layers(forward.at("bert").edges) == {("embeddings", "encoder"), ("encoder", "pooler")}
    assert set(forward.at("bert/encoder/layer").edges) == {("0", "1"), ("1", "2")}
    inner = forward.at("bert/encoder/layer/2/attention/self").edges
    assert {source for source, _ in inner} >= {"query", "key", "value"}


@pytest.mark.parametrize("learns", [True, False])
def test_a_residual_connection_goes_through_its_module_s_own_operation(tmp_path: Path, learns: bool) -> None:
    model = Deep()

    def step() -> None:
        with torch.set_grad_enabled(learns):
            loss = model(torch.randn(2, 4)).sum()
        if learns:
            loss.backward()

    forward = diagram(tmp_path, step)
    assert ("first", "second") in forward.edges
    inner = set(forward.at("first").edges)
    assert {("relu", "add"), ("add", "norm")} <= inner
    assert ("dense", "norm") not in inner
    assert {target for source, target in inner if source == "dense"} == {"relu"}


def test_a_tensor_that_was_written_to_is_another_one(tmp_path: Path) -> None:
    class Writes(Residual):
        def forward(self, x: Any) -> Any:
            return self.norm(self.dense(x).mul_(2))

    with torch.no_grad():
        forward = diagram(tmp_path, lambda: Writes()(torch.randn(2, 4)))
    assert set(forward.edges) >= {("dense", "(model)"), ("(model)", "norm")}
    assert ("dense", "norm") not in forward.edges


@dataclass
class Out:
    held: Any
    mask: Any = None


def test_tensors_are_found_in_what_holds_them_and_behind_views(tmp_path: Path) -> None:
    class Packs(nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return {"out": [Out(x * 2), None]}

    class Unpacks(nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return x["out"][0].held + 1

    class Whole(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.packs, self.unpacks, self.last = Packs(), Unpacks(), nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            return self.last(self.unpacks(self.packs(x)).view(2, 1, 4)[:, 0])

    with torch.no_grad():
        forward = diagram(tmp_path, lambda: Whole()(torch.randn(2, 4)))
    assert {("packs", "unpacks"), ("unpacks", "last")} <= set(forward.edges)


def test_no_tensor_lives_longer_and_no_address_is_mistaken(tmp_path: Path) -> None:
    """Hundreds of storages come and go at few addresses, and all the time one module feeds no other."""
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    alive: list[weakref.ref[Any]] = []
    with attached(tmp_path) as (adapter, _), session(adapter, tmp_path), torch.no_grad():
        for _ in range(200):
            alive.append(weakref.ref(first(torch.ones(2, 4)).untyped_storage()))
            assert alive[-1]() is None
            second(torch.ones(2, 4))
    assert read_raw(tmp_path).program.edges == ()


def test_what_has_no_storage_and_what_minds_being_asked(tmp_path: Path) -> None:
    class Private(torch.Tensor):  # type: ignore[misc, name-defined]
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            assert "storage" not in str(func)
            assert "version" not in str(func)
            return super().__torch_function__(func, types, args, kwargs or {})

    class Dense(nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return x.to_dense() if x.is_sparse else x * 1

    model, own = Dense(), torch.randn(2, 4).as_subclass(Private)
    found = traced(tmp_path, lambda: (model(torch.eye(4).to_sparse()), model(own), torch.vmap(model)(own)))
    assert ("mul", "forward") in found["Dense"]


def test_a_compiled_model_has_the_same_graphs(tmp_path: Path) -> None:
    graphs: list[Any] = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    with attached(tmp_path) as (adapter, _), session(adapter, tmp_path):
        model = torch.compile(Deep(), backend=backend, fullgraph=True)
        for _ in range(2):
            model(torch.randn(2, 4)).sum().backward()
    assert len(graphs) == 1
    assert ("second", "first") not in read_raw(tmp_path).program.edges


def test_gradients_are_added_up_in_the_layer_that_has_the_parameter(tmp_path: Path, bert: Any) -> None:
    """Each hook leaves its parameter's name inside the event that has added to it; a shared one is named by
    any of the layers that have it."""
    owners: dict[int, set[str]] = {}
    for name, parameter in bert.named_parameters(remove_duplicate=False):
        owners.setdefault(id(parameter), set()).add(name.rpartition(".")[0].replace(".", "/"))
    hooks = []
    for parameter in bert.parameters():

        def mark(parameter: Any) -> None:
            with torch.profiler.record_function(f"P {id(parameter)}"):
                torch.ones(1)

        hooks.append(parameter.register_post_accumulate_grad_hook(mark))
    try:
        found = traced(tmp_path, lambda: bert(input_ids=ids()).prediction_logits.sum().backward())
    finally:
        for hook in hooks:
            hook.remove()
    marked = [layer.split("/P ") for layer in layers(tmp_path) if "/P " in layer]
    assert len(marked) > 20
    assert max(map(len, owners.values())) == 2
    assert [layer for layer, parameter in marked if layer not in owners[int(parameter)]] == []
    assert "(gradient accumulation)" not in found


def test_a_mode_of_the_program_s_hears_nothing_of_a_session(tmp_path: Path) -> None:
    class Heard(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            names.append(func.__name__)
            return func(*args, **(kwargs or {}))

    model, names = Deep(), list[str]()

    def step() -> None:
        x = torch.ones(2, 4)
        with Heard():
            model(x).sum().backward()

    step()
    without = list(names)
    names.clear()
    traced(tmp_path, step)
    assert names == without
