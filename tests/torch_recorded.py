"""A PyTorch program whose steps a real clock listens to, with and without a lane for quick ones."""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from joulemap.frameworks.torch.adapter import TorchAdapter
from joulemap.recorder.budget import Plan
from joulemap.recorder.inside import epoch_clock_ns
from joulemap.recorder.journal import Journal, read_journal
from joulemap.recorder.sessions import Sessions
from joulemap.recorder.steps import StepClock
from tests.torch_live import INDUCTOR

torch = pytest.importorskip("torch", reason="needs PyTorch")

UNTRACED = Plan(overhead=0.0)


class Silent(StepClock):
    """One that looks after no lane."""

    take_lane = None  # type: ignore[assignment]
    lane_ends = None  # type: ignore[assignment]


class Model(torch.nn.Module):  # type: ignore[misc]
    """Does something in the middle of its call, if told to."""

    def __init__(self, *, bias: bool = True) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(3, 3, bias=bias)
        self.meanwhile: Callable[[], object] = bool

    def forward(self, x: Any) -> Any:
        self.meanwhile()
        return self.inner(x[0] if isinstance(x, list) else x)


class Program:
    """Two models of different sizes, and what a program may do with them and with steps."""

    def __init__(self, clock: StepClock, adapter: TorchAdapter) -> None:
        self.clock, self.adapter = clock, adapter
        self.x, self.more = torch.randn(2, 3), torch.randn(50, 3)
        self.one, self.other = Model(), Model(bias=False)
        self.optimizer = torch.optim.SGD(self.one.parameters(), lr=0.1)
        self.seen = list[bool]()

    def infers(self, model: Any = None, meanwhile: Callable[[], object] = bool, x: Any = None) -> None:
        model = model or self.one
        model.meanwhile = meanwhile
        try:
            with torch.no_grad():
                model(self.x if x is None else x)
        finally:
            model.meanwhile = bool

    def fails(self) -> None:
        def divides() -> object:
            return 1 / 0

        with pytest.raises(ZeroDivisionError):
            self.infers(meanwhile=divides)

    def trains(self) -> None:
        self.one(self.x).sum().backward()
        self.optimizer.step()

    def attacks(self) -> None:
        """In evaluation mode, with no optimizer of its own."""
        self.one.eval()
        self.one(self.x).sum().backward()
        self.one.train()

    def a_step_inside(self) -> None:
        self.seen.append(self.clock.is_open())
        self.clock.begin("inside")
        self.clock.end()

    def a_step_around(self) -> None:
        self.clock.begin("around")
        self.infers()
        self.infers()
        self.clock.end()

    def in_a_thread(self, action: Callable[[], object]) -> None:
        thread = threading.Thread(target=action)
        thread.start()
        thread.join()

    def a_step_of_another_thread(self) -> None:
        self.clock.begin("another's")
        self.clock.end()

    def calls_itself(self) -> None:
        self.infers(meanwhile=lambda: self.other(self.x))

    def while_handling(self) -> None:
        try:
            raise KeyError
        except KeyError:
            self.infers()
            self.infers()

    def actions(self) -> dict[str, Callable[[], object]]:
        inside = self.infers
        return {
            "infers": self.infers,
            "infers with the other": lambda: self.infers(self.other),
            "infers with much more": lambda: self.infers(x=self.more),
            "infers with what is in a list": lambda: self.infers(x=[self.more]),
            "fails": self.fails,
            "trains": self.trains,
            "has gradients on": lambda: self.one(self.x),
            "attacks": self.attacks,
            "has a step inside": lambda: inside(meanwhile=self.a_step_inside),
            "has a step around": self.a_step_around,
            "compiles": lambda: inside(meanwhile=self.clock.compiled),
            "is counted": lambda: inside(meanwhile=lambda: self.clock.count),
            "is looked at": lambda: inside(meanwhile=self.clock.slice),
            "is listened to": lambda: inside(
                meanwhile=lambda: setattr(self.adapter._calls, "tracing", False)
            ),
            "calls another": self.calls_itself,
            "handles an error": self.while_handling,
            "is in a thread": lambda: self.in_a_thread(self.infers),
            "has a thread begin a step": lambda: inside(
                meanwhile=lambda: self.in_a_thread(self.a_step_of_another_thread)
            ),
            "has a thread infer": lambda: inside(
                meanwhile=lambda: self.in_a_thread(lambda: self.infers(self.other))
            ),
        }


@contextmanager
def recording(
    kind: type[StepClock], plan: Plan = UNTRACED
) -> Iterator[tuple[Program, Callable[[], list[tuple[str, int]]]]]:
    """A program whose steps a real clock listens to; and the steps that it has written down."""
    with tempfile.TemporaryDirectory() as made:
        folder, now_ns = Path(made), epoch_clock_ns(0)
        journal = Journal(folder)
        sessions = Sessions(folder, journal, now_ns)
        clock = kind(plan, sessions, journal, now_ns)
        adapter = TorchAdapter(folder / "torch")
        sessions.add(adapter)
        for module in adapter.watches:
            if module in sys.modules and module != INDUCTOR:
                adapter.attach(module, clock)

        def written() -> list[tuple[str, int]]:
            clock.switch_off()
            journal.close()
            steps = [content for what, content in read_journal(folder) if what == "step"]
            assert all(start_ns <= end_ns for start_ns, end_ns, *_ in steps)
            assert [step[:2] for step in steps] == sorted(step[:2] for step in steps)
            return [(label, seen) for _, _, label, seen in steps]

        try:
            yield Program(clock, adapter), written
        finally:
            adapter.detach()
            journal.close()
        assert adapter.problems == []
