"""Steps of PyTorch programs that nobody marked."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest

from tests.environment import uncovered
from tests.tensorflow_live import Heard
from tests.torch_live import attached, layers

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
        assert len(heard.steps) == 4
        assert heard.depth == 0
        model(x).sum().backward()
        optimizers[0].step()  # alone from now on
        model(x).sum().backward()
        optimizers[0].step()
        assert len(heard.steps) == 6


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


class Noting(Heard):
    """Is told of steps like the last one in a word."""

    def __init__(self) -> None:
        super().__init__()
        self.noted_at: list[int] = []

    def noted(self, label: str) -> bool:
        if self.is_open():
            return False
        self.noted_at.append(len(self.steps))
        self.begin(label)
        return True


def test_inference_like_the_last_one_is_only_noted(tmp_path: Path) -> None:
    model, x = net().eval(), torch.randn(2, 4)
    other, loader = net().eval(), batches(1)
    optimizer = torch.optim.SGD(net().parameters())
    listens, heard = [], Noting()
    with attached(tmp_path) as (adapter, _):
        adapter._watch.steps = heard

        def infers(module: torch.nn.Module = model) -> None:
            with torch.no_grad():
                module(x)
            listens.append(adapter._calls.listens[0] and not adapter._calls.is_open())

        for module in (model, model, model, other, other, model):
            infers(module)
        assert heard.noted_at == [1, 2, 4]
        model(x)  # with gradients, though nobody asks for them
        infers()
        thread = threading.Thread(target=infers)
        thread.start()
        thread.join()
        infers()
        assert heard.noted_at == [1, 2, 4]
        infers()
        optimizer.step()
        infers()
        next(iter(loader))
        infers()
        assert heard.noted_at == [1, 2, 4, 10]
        with pytest.raises(RuntimeError):
            model(torch.randn(2, 3))
        infers()
    assert heard.depth == 0
    assert all(listens)


def test_a_module_that_was_called_is_not_held(tmp_path: Path) -> None:
    """Its memory may be a GPU's."""
    model = net().eval()
    held = weakref.ref(model)
    with attached(tmp_path), torch.no_grad():
        for _ in range(2):
            model(torch.randn(2, 4))
        del model
        gc.collect()
        assert held() is None


def test_a_session_hears_all_of_a_call_that_was_only_noted(tmp_path: Path) -> None:
    """It begins in the middle of one."""

    class Opens(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x)
            if opens[0]:
                adapter.start(tmp_path)
            return self.second(x)

    opens, model, x, heard = [False], Opens().eval(), torch.randn(2, 4), Noting()
    with attached(tmp_path) as (adapter, _), torch.no_grad():
        adapter._watch.steps = heard
        for opens[0] in (False, False, True):
            model(x)
        adapter.stop()
    assert heard.noted_at == [1, 2]
    assert set(layers(tmp_path)) == {"second"}


def test_calls_inside_a_call_are_none_of_their_own_whichever_thread_came_first(tmp_path: Path) -> None:
    """One thread is inside a call, another begins one, the first returns, and the second goes on."""
    begun, over = threading.Event(), threading.Event()

    class Slow(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            begun.set()
            assert over.wait(60)
            return self.inner(self.inner(x))

    class Quick(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            second.start()
            assert begun.wait(60)
            return x

    slow, quick, given = Slow().eval(), Quick().eval(), torch.ones(1, 2)
    second = threading.Thread(target=slow, args=(given,))
    with attached(tmp_path) as (adapter, _):
        quick(given)
        assert adapter._calls.listens == [True]
        over.set()
        second.join()
        assert adapter._calls.listens == [True]
        assert [held() for held in adapter._calls.names._seen.values()] == [quick]
        slow(given)
        assert [held() for held in adapter._calls.names._seen.values()] == [quick, slow]


def test_a_call_that_began_while_a_call_inside_another_threads_hid_it_is_no_step_inside(
    tmp_path: Path,
) -> None:
    """One thread is inside of a call in a session, which then ends; its next call inside hides another
    thread's."""
    steps = {name: threading.Event() for name in ("inside", "goes on", "hides", "ends")}

    class First(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Identity()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            steps["inside"].set()
            assert steps["goes on"].wait(60)
            x = self.inner(x)
            steps["hides"].set()
            assert steps["ends"].wait(60)
            return x

    class Hidden(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Identity()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            steps["ends"].set()
            thread.join()
            return self.inner(x)

    first, hidden, quick, given = First().eval(), Hidden().eval(), torch.nn.Identity(), torch.ones(1)
    thread = threading.Thread(target=first, args=(given,))
    with attached(tmp_path) as (adapter, heard), torch.no_grad():
        adapter._calls.tracing = True
        thread.start()
        assert steps["inside"].wait(60)
        quick(given)
        adapter._calls.tracing = False
        steps["goes on"].set()
        assert steps["hides"].wait(60)
        seen = len(heard.steps)
        hidden(given)
        assert len(heard.steps) == seen
        assert hidden.inner not in [held() for held in adapter._calls.names._seen.values()]


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
