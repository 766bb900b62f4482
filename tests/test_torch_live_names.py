"""Layers and phases of what PyTorch ran, as a session of the live adapter tells them."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from joulemap.frameworks.torch.raw import read_raw
from tests.environment import uncovered
from tests.gloo import unaborted
from tests.torch_live import attached, layers, session, traced

torch = pytest.importorskip("torch", reason="needs PyTorch")


class Block(torch.nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.dense = torch.nn.Linear(4, 4)
        self.norm = torch.nn.LayerNorm(4)

    def forward(self, x: Any) -> Any:
        return self.norm(x + torch.relu(self.dense(x)))


class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block(), Block()])
        self.head = torch.nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def train(model: Any, optimizer: Any) -> None:
    optimizer.zero_grad()
    y = model(torch.randn(2, 4))
    torch.nn.functional.cross_entropy(y, torch.tensor([0, 1])).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def test_every_layer_owns_its_forward_and_its_backward(tmp_path: Path) -> None:
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    found = traced(tmp_path, lambda: train(model, optimizer))
    for number in (0, 1):
        assert ("addmm", "forward") in found[f"blocks/{number}/dense"]
        assert ("AddmmBackward0", "backward") in found[f"blocks/{number}/dense"]
        assert ("NativeLayerNormBackward0", "backward") in found[f"blocks/{number}/norm"]
        assert ("relu", "forward") in found[f"blocks/{number}"]
        assert ("ReluBackward0", "backward") in found[f"blocks/{number}"]
    assert ("nll_loss_forward", "forward") in found["loss"]
    assert ("NllLossBackward0", "backward") in found["loss"]
    assert {phase for _, phase in found["gradient clipping"]} == {"optimizer"}
    assert not {operation for operation, _ in found["gradient clipping"]} & {"AccumulateGrad", "detach"}
    assert {phase for _, phase in found["optimizer/AdamW"]} == {"optimizer"}
    assert ("AccumulateGrad", "backward") in found["head"]
    assert {operation for operation, _ in found["(unnamed)"]} <= {
        "randn", "normal_", "empty", "lift_fresh", "to", "_to_copy", "detach_", "detach", "ones_like",
        "empty_like", "empty_strided", "fill_", "copy_", "is_nonzero", "item", "_local_scalar_dense",
    }  # fmt: skip


@pytest.mark.parametrize("foreach", [True, False])
def test_gradients_that_are_clipped_by_value(tmp_path: Path, foreach: bool) -> None:
    """The program's own clamps are not: before and after, of a copy, and in a loss."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        x = torch.randn(2, 4).clamp_(-1, 1)
        y = model(x)
        (y * 2).clamp_(max=9).mean().backward()
        torch.nn.utils.clip_grad_value_(model.parameters(), 0.1, foreach=foreach)
        y.detach().clamp(0, 1).mean()
        optimizer.step()
        for parameter in model.parameters():
            parameter.data.clamp_(-0.5, 0.5)

    found = traced(tmp_path, step, times=2)
    clips = {"_foreach_clamp_min_", "_foreach_clamp_max_"} if foreach else {"clamp_"}
    assert {(one, "optimizer") for one in clips} <= found["gradient clipping"]
    assert not {"clamp", "mean"} & {operation for operation, _ in found["gradient clipping"]}
    assert ("clamp_", "forward") in found["loss"]
    calls = Counter(read_raw(tmp_path).events.name)
    parameters = len(list(model.parameters()))
    assert calls["(unnamed)/clamp_"] == 2 * (1 + parameters)
    assert calls["gradient clipping/clamp_"] == (0 if foreach else 2 * parameters)


def test_the_last_gradient_that_is_added_before_clipping_is_a_layer_s(tmp_path: Path) -> None:
    """That of the first layer: the engine is not done when it has begun its last row."""
    model = torch.nn.Sequential(torch.nn.Embedding(10, 4), torch.nn.Linear(4, 3))

    def step() -> None:
        model(torch.tensor([1, 2])).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    optimizer = torch.optim.SGD(model.parameters())
    step()  # from here on there are gradients to add to
    found = traced(tmp_path, step)
    assert {("AccumulateGrad", "backward"), ("add_", "backward")} <= found["0"]
    assert "add_" not in {operation for operation, _ in found["gradient clipping"]}


@pytest.mark.parametrize("change", ["copy", "fill", "scale", "view"])
def test_what_is_written_in_place_is_differentiated_where_it_was_written(tmp_path: Path, change: str) -> None:
    class Writes(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.dense = torch.nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            y = self.dense(x)
            if change == "copy":
                whole = torch.zeros(2, 8)
                whole[:, :4] = y
                return whole
            if change == "fill":
                y[:, :2] = 0
            elif change == "scale":
                y[:, 1].mul_(2)
            else:
                part = y[:, :2]
                y.mul_(2)
                return y + part.sum()
            return y

    model = torch.nn.Sequential(Writes(), torch.nn.ReLU())
    found = traced(tmp_path, lambda: model(torch.randn(2, 4)).sum().backward())
    node = "AsStridedBackward0" if change == "view" else "CopySlices"
    assert (node, "backward") in found["0"]
    assert "backward" not in {phase for _, phase in found.get("(unnamed)", ())}


class Learned(torch.nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self, loss: Any) -> None:
        super().__init__()
        self.optimizer = torch.nn.Sequential(torch.nn.Linear(4, 3))
        self.loss = loss

    def forward(self, x: Any, *target: Any) -> Any:
        return self.loss(self.optimizer(x), *target)


def test_a_module_may_be_called_like_a_place_outside_of_modules(tmp_path: Path) -> None:
    model = Learned(torch.nn.Linear(3, 3))
    optimizer = torch.optim.SGD(model.parameters())
    found = traced(tmp_path / "one", lambda: train(model, optimizer))
    for layer in ("optimizer (module)/0", "loss (module)"):
        assert {("addmm", "forward"), ("AddmmBackward0", "backward")} <= found[layer]
    assert "addmm" not in {operation for operation, _ in found["loss"]}
    assert {phase for _, phase in found["optimizer/SGD"]} == {"optimizer"}
    found = traced(tmp_path / "two", lambda: [one(torch.randn(2, 4)) for one in (model, Block())])
    assert {"Learned/optimizer/0", "Learned/loss", "Block/dense"} <= found.keys()


def test_a_loss_of_torch_s_that_a_model_holds_is_a_loss(tmp_path: Path) -> None:
    model = Learned(torch.nn.MSELoss())
    found = traced(tmp_path, lambda: model(torch.randn(2, 4), torch.randn(2, 3)).backward())
    assert {("mse_loss", "forward"), ("MseLossBackward0", "backward")} <= found["loss"]
    assert "loss (module)" not in found


def test_a_loss_that_is_written_by_hand(tmp_path: Path) -> None:
    model, x = Net(), torch.randn(2, 4)
    found = traced(tmp_path, lambda: (model(x) - 1).square().mean().backward())
    assert {("sub", "forward"), ("pow", "forward"), ("mean", "forward")} <= found["loss"]
    assert ("PowBackward0", "backward") in found["loss"]


def test_a_closure_is_no_part_of_the_optimizer(tmp_path: Path) -> None:
    model, x = Net(), torch.randn(2, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), torch.tensor([0, 1]))
        loss.backward()
        return loss

    found = traced(tmp_path, lambda: optimizer.step(closure))
    assert {("nll_loss_forward", "forward"), ("NllLossBackward0", "backward")} <= found["loss"]
    assert {("addmm", "forward"), ("AddmmBackward0", "backward")} <= found["head"]
    assert not any("Backward" in operation for operation, _ in found["optimizer/SGD"])
    assert ("_foreach_add_", "optimizer") in found["optimizer/SGD"] or ("add_", "optimizer") in found[
        "optimizer/SGD"
    ]


def test_losses_that_are_modules(tmp_path: Path) -> None:
    model, x, loss = Net(), torch.randn(2, 4), torch.nn.MSELoss()
    found = traced(tmp_path, lambda: loss(model(x), torch.zeros(2, 3)).backward())
    assert ("MseLossBackward0", "backward") in found["loss/MSELoss"]
    assert ("AddmmBackward0", "backward") in found["head"]  # one model: its layers have no prefix


def test_modules_that_come_later_or_for_one_call(tmp_path: Path) -> None:
    class Growing(Net):
        def forward(self, x: Any) -> Any:
            if not hasattr(self, "late"):
                self.late = torch.nn.Linear(4, 4)
            return torch.nn.Softmax(-1)(super().forward(self.late(x)))

    found = traced(tmp_path, lambda: Growing()(torch.randn(2, 4)))
    assert ("addmm", "forward") in found["late"]
    assert ("softmax", "forward") in found["Softmax"]


def test_a_weight_that_is_read_outside_of_its_model_is_no_model_and_no_step(tmp_path: Path) -> None:
    """It is computed whenever somebody reads it, first while the model is built."""
    parametrized = torch.nn.utils.parametrizations.weight_norm
    with attached(tmp_path) as (adapter, heard):
        model = torch.nn.Sequential(parametrized(torch.nn.Linear(4, 4)), torch.nn.Linear(4, 3))
        assert model[0].weight.shape == (4, 4)
        assert heard.steps == []
        with session(adapter, tmp_path):
            with torch.no_grad():
                assert model[0].weight.shape == (4, 4)
            model(torch.randn(2, 4)).sum().backward()
        assert heard.steps == ["train"]
    found = layers(tmp_path)
    assert ("addmm", "forward") in found["0"]
    assert any("_weight_norm" in operation for operation, _ in found["0/parametrizations/weight/0"])
    assert not any("ParametrizationList" in layer or layer.startswith("Sequential") for layer in found)


def test_a_shared_module_keeps_its_first_place(tmp_path: Path) -> None:
    shared = torch.nn.Linear(4, 4)
    model = torch.nn.Sequential(shared, torch.nn.Sequential(shared, torch.nn.Tanh()))
    found = traced(tmp_path, lambda: model(torch.randn(2, 4)))
    assert ("addmm", "forward") in found["0"]
    assert "1/0" not in found


def test_several_models_are_told_apart(tmp_path: Path) -> None:
    first, second, other = Net(), Net(), Block()
    x = torch.randn(2, 4)
    found = traced(tmp_path, lambda: [model(x) for model in (first, second, other)])
    assert ("addmm", "forward") in found["Net/head"]
    assert ("addmm", "forward") in found["Net (2)/head"]
    assert ("addmm", "forward") in found["Block/dense"]


def test_a_part_that_is_called_before_the_whole(tmp_path: Path) -> None:
    model, x = Net(), torch.randn(2, 4)
    with attached(tmp_path) as (adapter, _):
        model.blocks[1](x)
        model(x)
        with session(adapter, tmp_path):
            model.blocks[1](x)
            model.forward(x)  # nobody calls the model, its parts are known all the same
    found = layers(tmp_path)
    assert ("addmm", "forward") in found["blocks/1/dense"]
    assert ("addmm", "forward") in found["head"]


def test_functional_calls(tmp_path: Path) -> None:
    model, x = Net(), torch.randn(2, 4)
    parameters = {name: value * 2 for name, value in model.named_parameters()}

    def loss(parameters: Any) -> Any:
        return torch.func.functional_call(model, parameters, (x,)).sum()

    found = traced(tmp_path, lambda: torch.func.grad(loss)(parameters))
    assert ("addmm", "forward") in found["blocks/0/dense"]
    assert ("AddmmBackward0", "backward") in found["head"]


@pytest.mark.filterwarnings("ignore:.*torch.cpu.amp.autocast:FutureWarning")  # torch's own, of itself
@pytest.mark.parametrize("reentrant", [False, True])
def test_what_is_recomputed_for_the_backward_pass(tmp_path: Path, reentrant: bool) -> None:
    from torch.utils.checkpoint import checkpoint

    class Frugal(Net):
        def forward(self, x: Any) -> Any:
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=reentrant)
            return self.head(x)

    model = Frugal()
    found = traced(tmp_path, lambda: model(torch.randn(2, 4, requires_grad=True)).sum().backward())
    for number in (0, 1):
        dense = found[f"blocks/{number}/dense"]
        assert {("addmm", "forward"), ("addmm", "recompute"), ("AddmmBackward0", "backward")} <= dense


def test_gradients_of_gradients_belong_to_the_layer(tmp_path: Path) -> None:
    """A gradient penalty, and one more order of it."""
    model = Net()

    def step() -> None:
        x = torch.randn(2, 4, requires_grad=True)
        [first] = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        [second] = torch.autograd.grad(first.square().sum(), x, create_graph=True)
        (first.norm() + second.norm()).backward()

    found = traced(tmp_path, step)
    assert {("AddmmBackward0", "backward"), ("MmBackward0", "backward")} <= found["head"]
    for number in (0, 1):
        assert {("MmBackward0", "backward"), ("mm", "backward")} <= found[f"blocks/{number}/dense"]
        assert ("NativeLayerNormBackwardBackward0", "backward") in found[f"blocks/{number}/norm"]
    assert {("linalg_vector_norm", "forward"), ("LinalgVectorNormBackward0", "backward")} <= found["loss"]
    assert not any("Backward" in operation for operation, _ in found["(unnamed)"])
    assert not any(phase == "backward" for _, phase in found["(unnamed)"])


def test_gradient_hooks_belong_to_the_layer(tmp_path: Path) -> None:
    model = Net()
    model.head.register_full_backward_hook(lambda _, before, *__: (before[0].exp(),))
    found = traced(tmp_path, lambda: model(torch.randn(2, 4)).sum().backward())
    assert ("exp", "backward") in found["head"]


def test_hooks_of_a_gradient_belong_to_the_layer_whose_result_it_is_of(tmp_path: Path) -> None:
    first, second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    second.weight.register_hook(torch.exp)

    def forward(x: Any) -> Any:
        x = first(x)
        x.register_hook(torch.tanh)
        return second(x)

    model = torch.nn.Module()
    model.first, model.second, model.forward = first, second, forward
    found = traced(tmp_path, lambda: model(torch.randn(2, 4)).sum().backward())
    assert ("tanh", "backward") in found["first"]
    assert ("AddmmBackward0", "backward") in found["first"]
    assert ("exp", "backward") in found["second"]
    assert ("tanh", "backward") not in found["second"]


def test_a_step_without_modules_has_the_same_names_whatever_follows(tmp_path: Path) -> None:
    """There is nothing to tell a loss from where nothing is known of the model."""
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step(call: Any) -> None:
        call(torch.randn(2, 4)).exp().sum().backward()
        optimizer.step()

    def both() -> None:
        step(model.forward)
        step(model)

    found = traced(tmp_path, both)
    assert {("addmm", "forward"), ("exp", "forward"), ("mm", "backward")} <= found["(unnamed)"]
    assert ("exp", "forward") in found["loss"]
    assert ("ExpBackward0", "backward") in found["loss"]
    assert not any(operation in ("addmm", "mm") for operation, _ in found["loss"])


def test_a_loss_may_come_after_the_step_of_another_optimizer(tmp_path: Path) -> None:
    """Actor and critic: both are called, then one learns, then the other."""
    models = torch.nn.Linear(4, 2), torch.nn.Linear(4, 2)
    optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in models]

    def step() -> None:
        results = [model(torch.randn(2, 4)) for model in models]
        for result, optimizer in zip(results, optimizers, strict=True):
            result.exp().sum().backward()
            optimizer.step()

    assert ("exp", "forward") not in traced(tmp_path, step).get("(unnamed)", ())


def test_wrappers_are_no_part_of_the_path(tmp_path: Path) -> None:
    model = torch.nn.DataParallel(torch.compile(Net(), backend="eager"))
    model(torch.randn(2, 4))
    found = traced(tmp_path, lambda: model(torch.randn(2, 4)).sum().backward())
    [compiled] = [layer for layer in found if layer.startswith("compiled region")]
    assert ("relu", "forward") in found[compiled]
    assert not any("module" in layer or "_orig_mod" in layer for layer in found)


def test_classes_that_are_made_from_wrappers_are_wrappers(tmp_path: Path) -> None:
    class Parallel(torch.nn.DataParallel):  # type: ignore[misc, name-defined]
        pass

    found = traced(tmp_path, lambda: Parallel(Net())(torch.randn(2, 4)))
    assert ("addmm", "forward") in found["head"]
    assert not any("module" in layer for layer in found)


def test_copies_of_a_model_on_several_gpus_are_that_model(tmp_path: Path) -> None:
    model, x = Net(), torch.randn(2, 4)
    copies = [model._replicate_for_data_parallel() for _ in range(2)]  # as DataParallel does, for one call
    found = traced(tmp_path, lambda: [one(x).add(0) for one in (model, *copies)])
    assert ("addmm", "forward") in found["head"]
    assert not any("Net" in layer for layer in found)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_the_backward_pass_of_a_scripted_module_is_its_own(tmp_path: Path) -> None:
    inner = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.LayerNorm(4))
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.jit.script(inner), torch.nn.Linear(4, 4))
    for _ in range(3):  # until it is optimised
        model(torch.randn(2, 4)).sum().backward()
    found = traced(tmp_path, lambda: model(torch.randn(2, 4)).sum().backward())
    assert ("AddmmBackward0", "backward") in found["0"]
    assert ("AddmmBackward0", "backward") in found["2"]
    assert any("DifferentiableGraphBackward" in operation for operation, _ in found["1"])
    assert ("mm", "backward") in found["1"]


def test_copies_of_a_model_are_numbered_as_they_are_called(tmp_path: Path) -> None:
    model, x = Net(), torch.randn(2, 4)
    copies = [copy.deepcopy(model) for _ in range(3)]
    found = traced(tmp_path, lambda: [one(x) for one in (copies[2], model, copies[0])])
    assert {layer.partition("/")[0] for layer in found if layer.endswith("/head")} == {
        "Net",
        "Net (2)",
        "Net (3)",
    }


def test_batches_are_the_input_pipeline(tmp_path: Path) -> None:
    loader = torch.utils.data.DataLoader([torch.randn(4) for _ in range(4)], batch_size=2)
    found = traced(tmp_path, lambda: list(loader))
    assert ("stack", "other") in found["input pipeline/DataLoader"]


def test_scaled_gradients(tmp_path: Path) -> None:
    model = Net()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu")

    def step() -> None:
        scaler.scale(model(torch.randn(2, 4)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()

    found = traced(tmp_path, step)
    operations = {operation for operation, _ in found["gradient scaling"]}
    assert "_amp_foreach_non_finite_check_and_unscale_" in operations


def test_collectives_are_communication(tmp_path: Path) -> None:
    program = """
import sys, torch
from pathlib import Path
from tests.test_torch_live_names import Net
from tests.torch_live import traced
torch.distributed.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/store", rank=0, world_size=1)
model = torch.nn.parallel.DistributedDataParallel(Net())
found = traced(Path(sys.argv[1]), lambda: model(torch.randn(2, 4)).sum().backward(), times=2)
assert ("addmm", "forward") in found["blocks/0/dense"], found.keys()
assert ("AddmmBackward0", "backward") in found["head"], found["head"]
assert {phase for name, phase in found["communication"] if "grad" in name} == {"backward"}, found
print(sorted(found["communication"]))
torch.distributed.destroy_process_group()
"""

    def run(turn: int) -> subprocess.CompletedProcess[str]:
        (tmp_path / str(turn)).mkdir()
        command = [sys.executable, "-c", program, str(tmp_path / str(turn))]
        return subprocess.run(command, env=uncovered(), capture_output=True, text=True)

    done = unaborted(run, lambda done: done.stderr)
    assert done.returncode == 0, done.stderr
    assert "allreduce" in done.stdout
    assert "copy_bucket_to_grad" in done.stdout


def test_the_modules_of_bert_own_their_backward_nodes(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    config = transformers.BertConfig(
        num_hidden_layers=2, hidden_size=32, num_attention_heads=2, intermediate_size=64, vocab_size=100
    )
    model = transformers.BertForPreTraining(config)
    ids = torch.randint(0, 100, (2, 16))

    def step() -> None:
        model(input_ids=ids, labels=ids, next_sentence_label=torch.tensor([0, 1])).loss.backward()

    found = traced(tmp_path, step)
    node = {
        torch.nn.Linear: "AddmmBackward0",
        torch.nn.LayerNorm: "NativeLayerNormBackward0",
        torch.nn.Embedding: "EmbeddingBackward0",
    }
    checked = 0
    for name, module in model.named_modules():
        if type(module) in node:
            own = {operation for operation, phase in found[name.replace(".", "/")] if phase == "backward"}
            assert node[type(module)] in own, name
            assert not own & (set(node.values()) - {node[type(module)]}), name
            checked += 1
    assert checked == 25


def test_ranges_of_the_program_s_are_parts_of_the_path(tmp_path: Path) -> None:
    def step() -> None:
        with torch.profiler.record_function("mine"):
            torch.ones(2) + 1

    found = traced(tmp_path, step)
    assert ("add", "forward") in found["mine"]
