"""What all hooks share: whether they do anything, whom they tell, and what went wrong in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from joulemap.frameworks.adapter import StepListener

Result = TypeVar("Result")

_MOST_PROBLEMS = 20


class Nobody:
    """A ``StepListener`` before there is one."""

    def begin(self, label: str) -> None: ...
    def end(self) -> None: ...
    def compiled(self) -> None: ...
    def is_open(self) -> bool:
        return False

    def rename(self, label: str) -> None: ...
    def cancel(self) -> None: ...


class Watch:
    """Switched off, every hook does nothing: after ``detach``, and in a forked child."""

    def __init__(self) -> None:
        self.on = True
        self.steps: StepListener = Nobody()
        self.problems: list[str] = []

    def attempt(self, hook: Callable[..., Result], /, *args: Any) -> Result | None:
        """Call a hook of ours; the program does not notice if it fails, and it is noted once."""
        if not self.on:
            return None
        try:
            return hook(*args)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is not the program's
            self.note(f"A hook into PyTorch failed ({hook.__name__}): {type(error).__name__}: {error}")
            return None

    def note(self, problem: str) -> None:
        """Keep a sentence for whoever reads the recording."""
        if problem not in self.problems and len(self.problems) < _MOST_PROBLEMS:
            self.problems.append(problem)
