"""Calls of modules between sessions: nobody listens inside of them, and inference is only noted."""

from __future__ import annotations

import gc
import threading
import weakref
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from joulemap.frameworks.torch.adapter import TorchAdapter
from tests.torch_live import Noting, attached, layers

torch = pytest.importorskip("torch", reason="needs PyTorch")


def listens_now(adapter: TorchAdapter) -> bool:
    """Whether the function that torch calls for every module has the code that listens."""
    return torch.nn.Module.__call__.__code__ is adapter._calls._codes[0]


def net() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))


class Holds(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A module with another one in it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Identity()


def test_inference_like_the_last_one_is_only_noted(tmp_path: Path) -> None:
    model, x = net().eval(), torch.randn(2, 4)
    other = net().eval()
    loader = torch.utils.data.DataLoader([(torch.randn(4), torch.tensor(0))])
    optimizer = torch.optim.SGD(net().parameters())
    listens, heard = [], Noting()
    with attached(tmp_path) as (adapter, _):
        adapter._watch.steps = heard

        def infers(module: torch.nn.Module = model) -> None:
            with torch.no_grad():
                module(x)
            listens.append(listens_now(adapter) and not adapter._calls.is_open())

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


def test_inside_of_a_call_modules_are_called_as_without_us(tmp_path: Path) -> None:
    """Whether it returns or fails; in a session each of them counts."""
    inside: list[bool] = []

    class Looks(Holds):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            inside.append(listens_now(adapter))
            return self.inner(x) + torch.ones(3)

    model = Looks().eval()
    with attached(tmp_path) as (adapter, _):
        for size in (3, 3, 2, 3):
            with pytest.raises(RuntimeError) if size == 2 else nullcontext(), torch.no_grad():
                model(torch.ones(size))
            assert listens_now(adapter)
        adapter._calls.tracing = True
        model(torch.ones(3))
        adapter._calls.tracing = False
    assert inside == [False] * 4 + [True]


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

    class Slow(Holds):
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
        assert listens_now(adapter)
        over.set()
        second.join()
        assert listens_now(adapter)
        assert [held() for held in adapter._calls.names._seen.values()] == [quick]
        slow(given)
        assert [held() for held in adapter._calls.names._seen.values()] == [quick, slow]


def test_a_call_that_began_while_a_call_inside_another_threads_hid_it_is_no_step_inside(
    tmp_path: Path,
) -> None:
    """One thread is inside of a call in a session, which then ends; its next call inside hides another
    thread's."""
    steps = {name: threading.Event() for name in ("inside", "goes on", "hides", "ends")}

    class First(Holds):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            steps["inside"].set()
            assert steps["goes on"].wait(60)
            x = self.inner(x)
            steps["hides"].set()
            assert steps["ends"].wait(60)
            return x

    class Hidden(Holds):
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
