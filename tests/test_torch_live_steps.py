"""Steps of PyTorch programs that nobody marked."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from joulemap.recorder.steps import StepClock
from tests.environment import uncovered
from tests.torch_live import attached
from tests.torch_recorded import recording

torch = pytest.importorskip("torch", reason="needs PyTorch")


def net() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))


def batches(count: int) -> Any:
    data = [(torch.randn(4), torch.tensor(0)) for _ in range(2 * count)]
    return torch.utils.data.DataLoader(data, batch_size=2)


def test_an_optimizer_step_ends_a_step_of_training(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with attached(tmp_path) as (_, heard):
        for _ in range(2):  # epochs
            for x, y in batches(3):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
                assert heard.depth == 0
        assert heard.steps == ["train"] * 6


def test_loading_the_batch_is_part_of_the_step(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = batches(4)
    open_after_loading = []
    with attached(tmp_path) as (_, heard):
        for x, _ in loader:
            open_after_loading.append(heard.depth)
            model(x).sum().backward()
            optimizer.step()
        assert heard.depth == 0  # the end of the data opens nothing
        assert heard.steps == ["train"] * 4
        for _ in loader:
            break
        assert heard.steps == ["train"] * 4  # a batch that nobody used is no step
        for _ in loader:
            pass
        assert heard.depth == 0
        assert heard.steps == ["train"] * 4  # nor is reading the data
    assert open_after_loading == [0, 1, 1, 1]


def test_accumulated_gradients_make_one_step(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    with attached(tmp_path) as (_, heard):
        for number, (x, _) in enumerate(batches(12)):
            model(x).sum().backward()
            if number % 4 == 3:
                optimizer.step()
        assert heard.steps == ["train"] * 3


def test_a_step_of_many_passes_is_learnt(tmp_path: Path) -> None:
    model, x = net(), torch.randn(2, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with attached(tmp_path) as (_, heard):
        for _ in range(3):
            for _ in range(100):
                model(x).sum().backward()
            optimizer.step()
        assert heard.steps[-2:] == ["train", "train"]
        assert set(heard.steps[:-2]) == {"inference"}


def test_the_two_optimizers_of_a_gan_end_steps_of_two_kinds(tmp_path: Path) -> None:
    generator, critic, x = net(), torch.nn.Linear(2, 1), torch.randn(2, 4)
    first = torch.optim.Adam(critic.parameters())
    second = torch.optim.Adam(generator.parameters())
    with attached(tmp_path) as (_, heard):
        for _ in range(3):
            (critic(torch.randn(2, 2)) - critic(generator(x).detach())).sum().backward()
            first.step()
            critic(generator(x)).sum().backward()
            second.step()
        assert heard.steps == ["train", "train 2"] * 3


def test_optimizers_that_step_together_end_one_step(tmp_path: Path) -> None:
    model, x = net(), torch.randn(2, 4)
    optimizers = [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in (model[0], model[2])]
    with attached(tmp_path) as (_, heard):
        for _ in range(4):
            model(x).sum().backward()
            for optimizer in optimizers:
                optimizer.step()
        assert heard.steps == ["train"] * 4
        assert heard.depth == 0
        model(x).sum().backward()
        optimizers[0].step()  # alone from now on
        model(x).sum().backward()
        optimizers[0].step()
        assert heard.steps == ["train"] * 6


@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad")  # torch's own, of its LBFGS
def test_an_optimizer_with_a_closure_has_the_passes_inside(tmp_path: Path) -> None:
    model, x = net(), torch.randn(2, 4)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        return loss

    with attached(tmp_path) as (_, heard):
        for _ in range(3):
            optimizer.step(closure)
            assert heard.depth == 0
        assert heard.steps == ["train"] * 3


def test_data_that_was_evaluated_on_feeds_a_closure_next(tmp_path: Path) -> None:
    """Its steps are expected to be training from the second one on, so that they may be traced."""
    model, loader = net(), batches(3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    expected = []
    with attached(tmp_path) as (_, heard):
        with torch.no_grad():
            for x, _ in loader:
                model(x)
        for _ in range(2):
            for x, _ in loader:
                expected.append(heard.steps[-1] if heard.depth else "")
                optimizer.step(lambda x=x: model(x).square().sum().backward())
                assert heard.depth == 0
        assert heard.steps == ["inference"] * 3 + ["train"] * 6
    assert expected == ["inference"] + ["train"] * 5


def test_data_that_feeds_a_closure_is_loaded_in_its_step(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
    opened = []
    with attached(tmp_path) as (_, heard):
        for x, _ in batches(4):
            opened.append(heard.depth)

            def closure(x: Any = x) -> Any:
                optimizer.zero_grad()
                loss = model(x).square().sum()
                loss.backward()
                return loss

            optimizer.step(closure)
        assert heard.steps == ["train"] * 4
    assert opened == [0, 1, 1, 1]


def test_calls_without_gradients_are_inference(tmp_path: Path) -> None:
    model, x = net(), torch.randn(2, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with attached(tmp_path) as (_, heard):
        with torch.no_grad():
            model(x)
        with torch.inference_mode():
            model(x)
        model.eval()
        model(x)
        assert heard.steps == ["inference"] * 3
        model.train()
        with torch.no_grad():
            teacher = model(x)
        (model(x) - teacher).sum().backward()
        with torch.no_grad():
            model(x)  # inside a step of training
        optimizer.step()
        assert heard.steps == ["inference"] * 4 + ["train"]


def test_evaluation_between_steps_of_training(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train, validate = batches(3), batches(2)
    with attached(tmp_path) as (_, heard):
        for _ in range(2):
            for x, _ in train:
                model(x).sum().backward()
                optimizer.step()
            with torch.no_grad():
                for x, _ in validate:
                    model(x)
        assert heard.steps == (["train"] * 3 + ["inference"] * 2) * 2


def test_gradients_that_are_scaled(tmp_path: Path) -> None:
    model, x = net(), torch.randn(2, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    with attached(tmp_path) as (_, heard):
        for _ in range(3):
            scaler.scale(model(x).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        assert heard.steps == ["train"] * 3


def test_a_step_that_the_scaler_skips_is_one(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    original = torch.amp.GradScaler.step
    with attached(tmp_path) as (_, heard):
        for number in range(4):
            factor = float("inf") if number == 1 else 1.0
            scaler.scale(model(torch.randn(2, 4)).sum() * factor).backward()
            before = model[2].bias.clone()
            scaler.step(optimizer)
            scaler.update()
            assert torch.equal(before, model[2].bias) == (number == 1)
            optimizer.zero_grad()
            assert heard.depth == 0
        assert heard.steps == ["train"] * 4
    assert torch.amp.GradScaler.step is original


def test_a_new_optimizer_for_the_same_parameters_goes_on_where_the_old_one_was(tmp_path: Path) -> None:
    model, other = net(), net()
    kept = []
    with attached(tmp_path) as (_, heard):
        for rate in (0.1, 0.01):
            optimizer = torch.optim.SGD(model.parameters(), lr=rate)
            kept.append(optimizer)  # by a schedule, say
            for _ in range(2):
                model(torch.randn(2, 4)).sum().backward()
                optimizer.step()
        optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
        other(torch.randn(2, 4)).sum().backward()
        optimizer.step()
        assert heard.steps == ["train"] * 4 + ["train 2"]


def test_parameters_without_a_module(tmp_path: Path) -> None:
    weight = torch.randn(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with attached(tmp_path) as (_, heard):
        for _ in range(5):
            weight.square().sum().backward()
            optimizer.step()
        assert set(heard.steps) == {"train"}
        assert len(heard.steps) == 4  # the first two show that there is nothing else to go by; one is open


def test_exceptions_leave_no_step_open(tmp_path: Path) -> None:
    class Moody(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            raise ValueError("no")

    model, x = net(), torch.randn(2, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with attached(tmp_path) as (_, heard):
        for _ in range(2):
            with torch.no_grad(), pytest.raises(ValueError, match="no"):
                torch.nn.Sequential(model, Moody())(x)
            assert heard.depth == 0
        model(x).sum().backward()
        with pytest.raises(RuntimeError, match="shapes"):
            model(torch.randn(2, 5))
        optimizer.step()
        assert heard.steps == ["inference", "inference", "train"]
        assert heard.depth == 0


def test_steps_that_the_program_marks_stay_whole(tmp_path: Path) -> None:
    model, x = net(), torch.randn(2, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with attached(tmp_path) as (_, heard):
        for _ in range(2):
            heard.begin("mine")
            model(x).sum().backward()
            heard.end()
            assert heard.depth == 0
            optimizer.step()
        assert heard.steps == ["mine", "mine"]


def test_compiling_is_told(tmp_path: Path) -> None:
    model, x = net(), torch.randn(2, 4)
    compiled = torch.compile(model, backend="eager")
    with attached(tmp_path) as (_, heard), torch.no_grad():
        for _ in range(3):
            compiled(x)
        torch._dynamo.reset()
        compiled(x)
        assert heard.compiled_steps == [1, 4]


def test_threads_of_their_own(tmp_path: Path) -> None:
    model, x = net(), torch.randn(2, 4)
    with attached(tmp_path) as (_, heard):

        def serve() -> None:
            with torch.no_grad():
                for _ in range(5):
                    model(x)

        threads = [threading.Thread(target=serve) for _ in range(2)]
        for thread in threads:
            thread.start()
            thread.join()
        assert heard.steps == ["inference"] * 10


@pytest.mark.parametrize("pool", [True, False], ids=["the same threads", "new threads"])
def test_threads_that_compute_for_an_optimizer_elsewhere(pool: bool) -> None:
    """Its steps are from end to end, once that is known."""
    with recording(StepClock) as (program, written), ThreadPoolExecutor(2) as workers:
        for _ in range(10):
            found: list[Any] = []

            def computes(found: list[Any] = found) -> None:
                found.append(program.one(program.x))

            if pool:
                for done in [workers.submit(computes) for _ in range(2)]:
                    done.result()
            else:
                program.in_a_thread(computes)
                program.in_a_thread(computes)
            sum(one.sum() for one in found).backward()
            program.optimizer.step()
        program.clock.cancel()  # the eleventh
        steps = written()
    assert set(steps) == {("train", 0)}
    assert 6 <= len(steps) <= 9


def test_threads_that_train_each_for_itself() -> None:
    with recording(StepClock) as (program, written):
        for _ in range(3):
            program.in_a_thread(lambda: [program.trains() for _ in range(4)])
        assert written() == [("train", 0)] * 12


def test_a_program_without_optimizers_only_infers(tmp_path: Path) -> None:
    program = """
import sys, torch
from pathlib import Path
from tests.torch_live import attached
with attached(Path(sys.argv[1])) as (_, heard):
    model = torch.nn.Linear(2, 2)
    for _ in range(3):
        model(torch.randn(1, 2))  # gradients are on, and nobody asks for them
    print(heard.steps, heard.depth)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        env=uncovered(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "['inference', 'inference', 'inference'] 0"
