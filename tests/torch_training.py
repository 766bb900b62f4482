"""A program that trains in all the ways that programs do, one action at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")


class Wrapping(torch.optim.SGD):  # type: ignore[misc, name-defined]
    """An optimizer that has another one do its work."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner.param_groups[0]["params"], lr=0.1)
        self.inner = inner

    def step(self, closure: Any = None) -> None:
        self.inner.step()


class Failing(torch.optim.SGD):  # type: ignore[misc, name-defined]
    """One that fails when it is told to."""

    fails = False

    def step(self, closure: Any = None) -> Any:
        if self.fails:
            raise ArithmeticError
        return super().step(closure)


class Training:
    """Two models and three optimizers, and what a program may do with them; ``lies`` tells in which step data
    are loaded."""

    def __init__(self) -> None:
        self.x = torch.randn(2, 3)
        self.one, self.other = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
        self.first = Failing(self.one.parameters(), lr=0.1)
        self.second = torch.optim.SGD(self.other.parameters(), lr=0.1)
        self.wrapping = Wrapping(torch.optim.SGD(self.other.parameters(), lr=0.1))
        self.lies_in = list[int]()
        self.lies: Callable[[], int] = int
        self.loader = torch.utils.data.DataLoader(self)
        self.batches = iter(self.loader)
        self.others = iter(torch.utils.data.DataLoader(list(range(1000))))

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, number: int) -> int:
        self.lies_in.append(self.lies())
        return number

    def trains(self, optimizer: Any = None, model: Any = None) -> None:
        (model or self.one)(self.x).sum().backward()
        (optimizer or self.first).step()

    def accumulates(self) -> None:
        self.one(self.x).sum().backward()
        self.trains()

    def fails(self) -> None:
        self.first.fails = True
        with pytest.raises(ArithmeticError):
            self.trains()
        self.first.fails = False

    def fails_in_the_call(self) -> None:
        with pytest.raises(RuntimeError):
            self.one(torch.randn(2, 4))

    def infers(self) -> None:
        with torch.no_grad():
            self.one(self.x)

    def evaluates(self) -> None:
        self.one.eval()
        self.one(self.x)
        self.one.train()

    def attacks(self) -> None:
        """In evaluation mode, with no optimizer of its own."""
        self.one.eval()
        self.one(self.x).sum().backward()
        self.one.train()

    def with_a_closure(self) -> None:
        def closure() -> Any:
            loss = self.one(self.x).sum()
            loss.backward()
            return loss

        self.first.step(closure)

    def loads_in_a_thread(self) -> None:
        in_a_thread(lambda: (next(self.batches), self.trains()))

    def comes_to_the_end(self) -> None:
        for _ in torch.utils.data.DataLoader([1, 2]):
            self.trains()

    def begins_anew(self) -> None:
        next(self.batches)
        self.batches = iter(self.loader)

    def breaks_off(self) -> None:
        for number, _ in enumerate(self.loader):
            if number == 2:
                break
            self.trains()

    def actions(self) -> dict[str, Callable[[], object]]:
        return {
            "trains": self.trains,
            "trains the other": lambda: self.trains(self.second, self.other),
            "trains the other with no closure": lambda: (
                self.other(self.x).sum().backward(),
                self.second.step(None),
            ),
            "has the other optimizer step": lambda: self.trains(self.second),
            "is wrapped": lambda: self.trains(self.wrapping, self.other),
            "accumulates": self.accumulates,
            "steps twice": lambda: (self.trains(), self.first.step()),
            "only calls": lambda: self.one(self.x),
            "only steps": self.first.step,
            "fails": self.fails,
            "fails in the call": self.fails_in_the_call,
            "infers": self.infers,
            "evaluates": self.evaluates,
            "attacks": self.attacks,
            "attacks in a thread": lambda: in_a_thread(self.attacks),
            "attacks and steps": lambda: (self.attacks(), self.first.step()),
            "attacks and trains": lambda: (self.attacks(), self.trains()),
            "attacks and loads": lambda: (self.attacks(), next(self.batches)),
            "has a closure": self.with_a_closure,
            "loads": lambda: next(self.batches),
            "loads and trains": lambda: (next(self.batches), self.trains()),
            "loads and trains the other": lambda: (
                next(self.batches),
                self.trains(self.second, self.other),
            ),
            "loads and steps": lambda: (next(self.batches), self.second.step()),
            "loads others and trains": lambda: (next(self.others), self.trains()),
            "loads and infers": lambda: (next(self.batches), self.infers()),
            "loads in a thread": self.loads_in_a_thread,
            "comes to the end": self.comes_to_the_end,
            "begins anew": self.begins_anew,
            "breaks off": self.breaks_off,
            "is in a thread": lambda: in_a_thread(self.trains),
        }


def in_a_thread(action: Callable[[], object]) -> None:
    thread = threading.Thread(target=action)
    thread.start()
    thread.join()


ACTIONS = sorted(Training().actions())
