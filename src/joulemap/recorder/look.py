"""Two steps of a program in which every operation is looked at: what of its operands is in the cache.

Where operations are to be executed again, they are to find the cache as they do in the program. A
``StepListener`` before another one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from joulemap.frameworks.adapter import StepListener


class LookingOn:
    """Hears of steps before the other does; looks at two from the ``first``, which is counted from 0. The
    program's steps go on, whatever fails here."""

    def __init__(self, folder: Path, steps: StepListener, warn: Callable[[str], None], first: int) -> None:
        self._folder, self._steps, self._warn, self._first = folder, steps, warn, first
        self._begun = 0
        self._look: Any = None
        self._mode: Any = None
        self._thread: int | None = None
        self._over = False

    def begin(self, label: str) -> None:
        inside = self._steps.is_open()
        self._steps.begin(label)
        if not self._over and not inside and self._is_ours():
            self._safely(self._enter)

    def end(self) -> None:
        self._steps.end()
        self._leave()

    def cancel(self) -> None:
        self._steps.cancel()
        self._leave()

    def compiled(self) -> None:
        self._steps.compiled()

    def noted(self, label: str) -> bool:
        """A step that may be looked at must begin as such."""
        return self._over and self._steps.noted(label)

    def is_open(self) -> bool:
        return self._steps.is_open()

    def rename(self, label: str) -> None:
        self._steps.rename(label)

    def stop(self) -> None:
        """The program ends, or this is a forked child of it."""
        self._over = True
        if self._look is not None:
            self._look.is_over = True

    def _is_ours(self) -> bool:
        """Only one thread's steps are looked at."""
        self._thread = self._thread or threading.get_ident()
        return self._thread == threading.get_ident()

    def _enter(self) -> None:
        from joulemap.frameworks.torch.caches import STEPS, new_look

        self._begun += 1
        if self._begun <= self._first:
            return
        possible = new_look()  # a program may compile, or look on itself, from any step on
        self._look = possible if self._look is None else self._look
        if possible is None:
            self._over = True
            return
        self._look.counts = self._begun == self._first + STEPS
        self._mode = self._look.mode()
        self._mode.__enter__()

    def _leave(self) -> None:
        if self._mode is not None and self._is_ours() and not self._steps.is_open():
            self._safely(self._exit)

    def _exit(self) -> None:
        from joulemap.frameworks.torch.caches import current_mode

        mode, self._mode = self._mode, None
        if current_mode() is not mode:
            self._look.is_over = True
            raise RuntimeError("the program has entered a mode of its own in a step")
        mode.__exit__(None, None, None)
        if self._look.counts:
            self._over = True
            self._look.write(self._folder)

    def _safely(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001 - the program goes on, and nothing is known of its caches
            self._over = True
            self._warn(f"What is in caches could not be looked at: {type(error).__name__}: {error}")
