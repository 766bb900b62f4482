"""What an adapter's hooks share: whether they do anything, whom they tell, and what went wrong in them."""

from __future__ import annotations

import inspect
import os
import traceback
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

from joulemap.frameworks.adapter import StepListener

Result = TypeVar("Result")

_MOST_PROBLEMS = 20


class Nobody:
    """A ``StepListener`` before there is one."""

    def begin(self, label: str) -> None: ...
    def noted(self, label: str) -> bool:
        return False

    def end(self, done: bool = False) -> None: ...
    def compiled(self) -> None: ...
    def has_compiled(self) -> None: ...
    def is_open(self) -> bool:
        return False

    def forget_others(self) -> None: ...
    def open_label(self) -> str:
        return ""

    def rename(self, label: str) -> None: ...
    def cancel(self) -> None: ...


class Watch:
    """Switched off, every hook does nothing: after ``detach``, and in a forked child."""

    def __init__(self, framework: str) -> None:
        self.framework = framework
        self.on = True
        self.steps: StepListener = Nobody()
        self.problems: list[str] = []

    def attempt(self, hook: Callable[..., Result], /, *args: Any, **kwargs: Any) -> Result | None:
        """Call a hook of ours; the program does not notice if it fails, and it is noted once."""
        if not self.on:
            return None
        try:
            return hook(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - a framework's insides may be other than we know them
            self.failed(hook, error)
            return None

    def surely(self, hook: Callable[..., object], /, *args: Any) -> None:
        """The same of a hook that ends something, and once more where a signal's handler has raised
        meanwhile: to end what has ended does nothing."""
        try:
            self.attempt(hook, *args)
        except BaseException:
            self.attempt(hook, *args)
            raise

    def failed(self, hook: Callable[..., object], error: Exception) -> None:
        """Note that a hook of ours failed. What a handler of the program's signals has raised meanwhile, a
        timeout as a rule, is the program's."""
        if from_a_signal(error):
            raise error
        name = getattr(hook, "func", hook).__name__
        self.note(f"A hook into {self.framework} failed ({name}): {type(error).__name__}: {error}")

    def note(self, problem: str) -> None:
        """Keep a sentence for whoever reads the recording."""
        if problem not in self.problems and len(self.problems) < _MOST_PROBLEMS:
            self.problems.append(problem)


def from_a_signal(error: BaseException) -> bool:
    """Whether it was raised in a handler of a signal, of whatever kind that is."""
    return any(_handles(frame) for frame, _ in traceback.walk_tb(error.__traceback__))


def _handles(frame: FrameType) -> bool:
    """Whether a function was given the frame that it was called from, as handlers are, of what they have
    interrupted."""
    code, found = frame.f_code, frame.f_locals
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS)
    given = [found.get(name) for name in code.co_varnames[:count]]
    given += [one for several in given if isinstance(several, tuple) for one in several]
    return frame.f_back is not None and any(one is frame.f_back for one in given)


def call_in_children(method: Callable[[], None]) -> None:
    """Call a method after every fork from now on, as long as its object lives; that cannot be taken back."""
    held = weakref.WeakMethod(method)

    def call() -> None:
        alive = held()
        if alive is not None:
            alive()

    os.register_at_fork(after_in_child=call)
