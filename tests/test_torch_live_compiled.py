"""Kernels of ``torch.compile`` below the modules that they come from: made here, and out of caches."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn

from torch._dynamo.utils import clear_compilation_metrics, counters, get_compilation_metrics  # noqa: E402

from joulemap.accounting import attribute  # noqa: E402
from joulemap.calibration.operation import Operation  # noqa: E402
from joulemap.devices import Domain  # noqa: E402
from joulemap.frameworks.torch import provenance  # noqa: E402
from joulemap.frameworks.torch.adapter import TorchAdapter  # noqa: E402
from joulemap.frameworks.torch.call import Call  # noqa: E402
from joulemap.frameworks.torch.launched import PREFIX, launcher  # noqa: E402
from joulemap.frameworks.torch.origins import is_update  # noqa: E402
from joulemap.frameworks.torch.raw import read_raw  # noqa: E402
from joulemap.traces import PowerTrace  # noqa: E402
from tests.tensorflow_live import Heard  # noqa: E402
from tests.torch_live import INDUCTOR, attached, layers, session  # noqa: E402

pytest.importorskip(INDUCTOR)
if not provenance.tells():
    reason = f"inductor of torch {torch.__version__} does not tell what kernels are made from"
    pytest.skip(reason, allow_module_level=True)


class Block(nn.Module):  # type: ignore[misc]
    """Without bias, so that inductor has no C++ kernel to make, which takes seconds each."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(4, 4, bias=False)

    def forward(self, x: Any) -> Any:
        return self.dense(x)


class Net(nn.Module):  # type: ignore[misc]
    def __init__(self, breaks: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(4, 3, bias=False)
        self.breaks = breaks

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
            if self.breaks:
                torch._dynamo.graph_break()
        return self.head(x)


class Same(nn.Module):  # type: ignore[misc]
    """The same code as ``Net``, under other names."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.last = nn.Linear(4, 3, bias=False)

    def forward(self, x: Any) -> Any:
        return self.last(self.second(self.first(x)))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Inductor's caches, empty; and one thread, since several add gradients in any order."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    torch._dynamo.reset()
    counters.clear()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield tmp_path / "cache"
    torch.set_num_threads(threads)
    torch._dynamo.reset()


def found(folder: Path, called: Callable[[Any], Any], size: int = 2) -> dict[str, set[tuple[str, str]]]:
    """What a step shows once everything is compiled."""

    def step(rows: int) -> None:
        called(torch.ones(rows, 4, requires_grad=True)).sum().backward()

    torch._dynamo.reset()
    with attached(folder) as (adapter, _):
        step(size)
        with session(adapter, folder):
            step(size + 1)
    return layers(folder)


BOTH = {("mm", "forward"), ("mm", "backward")}
KERNELS = ("cpp_", "mm", "addmm", "_scaled_dot_product")
DENSE = ("blocks/0/dense", "blocks/1/dense", "head")


def test_kernels_belong_to_the_modules_they_come_from(tmp_path: Path, cache: Path) -> None:
    seen = found(tmp_path / "raw", torch.compile(Net(), dynamic=True))
    assert all(seen[layer] >= BOTH for layer in DENSE)
    assert counters["stats"]["unique_graphs"] == 1


def compiled_in_place() -> Any:
    model = Net()
    model.compile(dynamic=True)
    return model


def compiled_by_block() -> Any:
    model = Net()
    for part in (*model.blocks, model.head):
        part.compile(dynamic=True)
    return model


def called_by_a_function() -> Any:
    model = Net()
    return torch.compile(lambda x: model(x), dynamic=True)


def compiled_in_pieces() -> Any:
    return torch.compile(Net(breaks=True), dynamic=True)


def without_overhead() -> Any:
    return torch.compile(Net(), dynamic=True, mode="reduce-overhead")


@pytest.mark.parametrize(
    "way",
    [compiled_in_place, compiled_by_block, called_by_a_function, compiled_in_pieces, without_overhead],
)
def test_however_it_is_compiled(tmp_path: Path, cache: Path, way: Callable[[], Any]) -> None:
    seen = found(tmp_path / "raw", way())
    assert all(seen[layer] >= BOTH for layer in DENSE)
    assert not any("compiled region" in layer for layer in seen if ("mm", "forward") in seen[layer])


def test_nothing_is_told_of_code_with_branches(tmp_path: Path, cache: Path) -> None:
    model, flag = Net(), torch.tensor(True)

    def branches(x: Any) -> Any:
        return model.head(torch.cond(flag, lambda y: model.blocks[0](y), lambda y: y.mm(y), (x,)))

    with torch.no_grad(), attached(tmp_path) as (adapter, _):
        called = torch.compile(branches)
        called(torch.ones(4, 4))
        with session(adapter, tmp_path):
            called(torch.ones(4, 4))
    seen = layers(tmp_path)
    assert {layer.partition(" ")[0] for layer in seen if ("mm", "forward") in seen[layer]} == {"compiled"}


def test_models_that_a_function_calls_are_told_apart(tmp_path: Path, cache: Path) -> None:
    first, second, block = Net(), Net(), Block()
    seen = found(tmp_path / "raw", torch.compile(lambda x: second(block(x)) + first(x), dynamic=True))
    for layer in ("Net/blocks/0/dense", "Net (2)/blocks/1/dense", "Net/head", "Block/dense"):
        assert seen[layer] >= BOTH


def test_graphs_out_of_a_cache(tmp_path: Path, cache: Path) -> None:
    made = found(tmp_path / "made", torch.compile(Net(), dynamic=True))
    counters.clear()
    again = found(tmp_path / "again", torch.compile(Net(), dynamic=True))
    assert counters["inductor"]["fxgraph_cache_hit"] == 2
    assert {layer: again[layer] for layer in DENSE} == {layer: made[layer] for layer in DENSE}
    same = found(tmp_path / "same", torch.compile(Same(), dynamic=True))  # equal code, other modules
    assert counters["inductor"]["fxgraph_cache_hit"] == 4
    assert not same.keys() & {*DENSE, "first", "second", "last"}


def test_a_compiled_optimizer(tmp_path: Path, cache: Path) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @torch.compile  # type: ignore[untyped-decorator]
    def update() -> None:
        optimizer.step()

    def step() -> None:
        model(torch.ones(2, 4)).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        update()

    with attached(tmp_path) as (adapter, _):
        step()
        with session(adapter, tmp_path):
            step()
    seen = layers(tmp_path)
    [(kernel, phase)] = seen["optimizer/compiled"]
    assert (kernel[:4], phase) == ("cpp_", "optimizer")
    assert {phase for _, phase in seen["gradient clipping"]} == {"optimizer"}
    assert not any("compiled region" in name for name in read_raw(tmp_path).events.name)


class Own(torch.optim.Optimizer):  # type: ignore[misc]
    """Somebody's own optimizer."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            parameter.add_(parameter.grad, alpha=-0.1)


def compiled_graphs(function: Callable[[], Any]) -> list[bool]:
    """Of each graph of a function, whether it is an optimizer's step."""
    found: list[bool] = []

    def backend(model: Any, _: Any) -> Any:
        found.append(is_update(model.graph.nodes))
        return model

    torch._dynamo.reset()
    torch.compile(function, backend=backend)()
    torch._dynamo.reset()
    return found


def test_which_graphs_are_steps_of_optimizers() -> None:
    model, x = Net(), torch.ones(2, 4)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    average = torch.optim.swa_utils.AveragedModel(model)
    model(x).sum().backward()
    for optimizer in (torch.optim.AdamW(model.parameters()), Own(model.parameters())):
        assert compiled_graphs(lambda optimizer=optimizer: optimizer.step()) == [True]
    assert compiled_graphs(lambda: average(x)) == [False]
    assert compiled_graphs(lambda: (optimizer.step(), x + 1)) == [False]  # one graph of both
    assert compiled_graphs(lambda: sgd.step(lambda: model(x).sum().detach())) == [False]  # so is a closure


def test_graphs_without_keys(tmp_path: Path, cache: Path) -> None:
    with torch._inductor.config.patch(fx_graph_cache=False):
        seen = found(tmp_path / "raw", torch.compile(Net(), dynamic=True))
    said = json.loads((tmp_path / "raw" / "compiled.json").read_text())
    assert [graph["key"] for graph in said["graphs"]] == ["None", "None"]
    assert all(seen[layer] >= BOTH for layer in DENSE)


def test_graphs_that_were_made_without_us(tmp_path: Path, cache: Path) -> None:
    found(tmp_path / "made", torch.compile(Net(), dynamic=True))
    kept = list(cache.rglob("*.joulemap.json"))
    for path in kept:
        path.unlink()
    seen = found(tmp_path / "found", torch.compile(Net(), dynamic=True))
    assert len(kept) == 2
    for layer in DENSE:
        assert ("mm", "forward") in seen[layer]
        assert ("mm", "backward") not in seen[layer]
    assert any(("mm", "backward") in seen[layer] for layer in seen if layer.startswith("compiled region "))


def test_what_is_kept_beside_generated_code_may_be_damaged(tmp_path: Path, cache: Path) -> None:
    found(tmp_path / "made", torch.compile(Net(), dynamic=True))
    for path, text in zip(cache.rglob("*.joulemap.json"), ("{", '{"format": 1, "calls": [1]}'), strict=True):
        path.write_text(text)
    assert ("mm", "forward") in found(tmp_path / "found", torch.compile(Net(), dynamic=True))["head"]


def test_a_failure_of_ours_leaves_regions_as_they_are(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provenance, "_said", lambda *_: 1 / 0)
    adapter, model = TorchAdapter(tmp_path / "raw"), torch.compile(Net())
    for module in adapter.watches:
        adapter.attach(module, Heard())
    result = model(torch.ones(2, 4))
    with session(adapter, tmp_path / "raw"):
        assert torch.equal(model(torch.ones(2, 4)), result)
    adapter.detach()
    [problem] = adapter.problems
    assert "ZeroDivisionError" in problem
    [region] = [layer for layer in layers(tmp_path / "raw") if layer.startswith("compiled region ")]
    assert ("mm", "forward") in layers(tmp_path / "raw")[region]


def test_the_compiler_is_left_as_it_was(tmp_path: Path, cache: Path) -> None:
    from torch._inductor import compile_fx, debug, output_code
    from torch._inductor.codegen import cpp, triton

    def looked_at() -> list[Any]:
        graph = output_code.CompiledFxGraph
        told = [vars(module)["set_kernel_post_grad_provenance_tracing"] for module in (debug, cpp, triton)]
        return [*told, compile_fx.compile_fx, graph.__init__, graph.post_compile]

    before = looked_at()
    with attached(tmp_path / "raw"):
        assert not set(before) & set(looked_at())
    assert looked_at() == before


class Training:
    """A small BERT that learns, compiled."""

    def __init__(self) -> None:
        from transformers import BertConfig, BertModel

        torch.manual_seed(0)
        size = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 50}
        no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}  # fewer kernels
        config = BertConfig(num_hidden_layers=2, **size, **no_dropout)
        self.model = BertModel(config, add_pooling_layer=False)
        self.compiled = torch.compile(self.model)
        self.ids = torch.randint(0, 50, (8, 32))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.compiled(self.ids).last_hidden_state.square().sum().backward()
        self.optimizer.step()

    def weights(self) -> list[bytes]:
        return [parameter.detach().numpy().tobytes() for parameter in self.model.parameters()]


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Others' code runs when garbage is collected (JAX has a callback for that), and is compiled as well."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@torch._inductor.config.patch({"cpp.simdlen": 1})  # type: ignore[untyped-decorator]  # quicker to make
def test_bert(tmp_path: Path, cache: Path, no_collection: None) -> None:
    pytest.importorskip("transformers")
    clear_compilation_metrics()
    with attached(tmp_path) as (adapter, _):
        recorded = Training()
        recorded.step()
        with session(adapter, tmp_path):
            recorded.step()
    assert counters["inductor"]["fxgraph_cache_miss"] == 2

    torch._dynamo.reset()
    compilations = dict(counters["stats"]), compiled_frames()
    assert compilations[1]
    counters.clear()
    plain = Training()
    plain.step()
    plain.step()
    assert counters["inductor"]["fxgraph_cache_hit"] == 2  # what was made with us is what is wanted without
    assert (dict(counters["stats"]), compiled_frames()) == compilations
    assert plain.weights() == recorded.weights()

    seen = layers(tmp_path)
    for layer in ("encoder/layer/0", "encoder/layer/1"):
        for dense in ("attention/self/query", "attention/output/dense", "intermediate/dense", "output/dense"):
            assert {("addmm", "forward"), ("mm", "backward")} <= seen[f"{layer}/{dense}"]
        for phase in ("forward", "backward"):
            assert any(
                name.startswith(layer) and operation.startswith("cpp_") and its == phase
                for name, operations in seen.items()
                for operation, its in operations
            )
    [region] = [operations for layer, operations in seen.items() if layer.startswith("compiled region ")]
    assert not [name for name, _ in region if name.startswith(KERNELS)]
    assert_conserved(tmp_path)
    assert_launched_again(tmp_path)


def compiled_frames() -> list[tuple[str, str]]:
    """File and name of what was compiled since this was last asked, without what coverage runs in between. A
    backward pass that is not in the cache is compiled apart, and is no frame."""
    compiled = [(one.co_filename or "", one.co_name or "") for one in get_compilation_metrics()]
    clear_compilation_metrics()
    return [(file, name) for file, name in compiled if file and "/coverage/" not in file]


def assert_launched_again(folder: Path) -> None:
    """Every kernel of inductor's own, by itself."""
    kernels = [one for one in read_raw(folder).signatures if one.op.startswith(PREFIX)]
    assert {one.phase for one in kernels} == {"forward", "backward"}
    for key in {Operation.of(asdict(one)).key for one in kernels}:
        launcher(Call.of(key))()()


def assert_conserved(folder: Path) -> None:
    """However noisy the machine, most of what kernels take is below the model, and no joule is lost."""
    events = read_raw(folder).events
    start_ns, end_ns = int(events.start_ns.min()), int(events.end_ns.max())
    power = PowerTrace.from_samples(Domain("CPU", "CPU"), [start_ns, end_ns], [10.0, 10.0])
    footprint = attribute(events, [power])
    footprint.check()
    kernels = [row for row in footprint.to_records() if row["name"].rpartition("/")[2].startswith(KERNELS)]
    below = [row for row in kernels if row["name"].startswith(("encoder/", "embeddings/"))]
    assert sum(row["energy_j"] for row in below) > 0.5 * sum(row["energy_j"] for row in kernels)
