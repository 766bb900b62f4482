"""Two steps of a program, in which is looked where tensors lie, and what they hold.

Where operations are to be executed again, they are to find a GPU's cache as they do in the program, and such
values. A ``StepListener`` before another one.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from joulemap.errors import JoulemapError
from joulemap.frameworks.adapter import Onlooker, StepListener, TracerBusy
from joulemap.recorder.signals import held

FIRST = 5
"""The step of a label that is looked at, counted from 0: those before may compile, or choose algorithms."""
MOST = 4
"""Labels whose steps are looked at."""
WAYS = 2
"""In which each is."""
TRIES = 20
"""How often another step is tried, where somebody is tracing."""


class LookingOn:
    """Hears of steps before the other does; looks at the one of each label that is number ``first``, or soon
    after it, and once more after that. The program's steps go on, whatever fails here."""

    def __init__(
        self,
        folder: Path,
        steps: StepListener,
        looker: Callable[[], Onlooker | None],
        warn: Callable[[str], None],
        first: int = FIRST,
    ) -> None:
        self._folder, self._steps, self._looker = folder, steps, looker
        self._warn, self._first = warn, first
        self._begun: Counter[str] = Counter()
        self._looks: dict[str, int] = {}
        self._done: set[str] = set()
        self._looking: Onlooker | None = None
        self._label = ""
        self._thread: int | None = None
        self._over = False

    def begin(self, label: str) -> None:
        inside = self._steps.is_open()
        if not inside and self._looking is not None and self._is_ours():
            self._safely(self._drop)  # its step never ended
        self._steps.begin(label)
        here = not inside and self._steps.is_open()
        if here and not self._is_done(label) and self._is_ours():
            self._safely(lambda: self._begin(label))

    def end(self, done: bool = False) -> None:
        self._steps.end(done)
        if self._looking is not None and self._is_ours() and not self._steps.is_open():
            self._safely(self._end)

    def cancel(self) -> None:
        self._steps.cancel()
        if self._looking is not None and self._is_ours() and not self._steps.is_open():
            self._begun[self._label] -= 1
            self._safely(self._drop)

    def compiled(self) -> None:
        self._steps.compiled()

    def has_compiled(self) -> None:
        self._steps.has_compiled()

    def noted(self, label: str) -> bool:
        """A step that may be looked at must begin as such."""
        return self._is_done(label) and self._steps.noted(label)

    def is_open(self) -> bool:
        return self._steps.is_open()

    def forget_others(self) -> None:
        self._steps.forget_others()

    def open_label(self) -> str:
        return self._steps.open_label()

    def rename(self, label: str) -> None:
        self._steps.rename(label)

    def stop(self) -> None:
        """The program ends, or this is a forked child of it; a session that is open is the adapter's."""
        self._over, self._looking = True, None

    def _is_done(self, label: str) -> bool:
        return self._over or label in self._done

    def _is_ours(self) -> bool:
        """Only one thread's steps are looked at."""
        self._thread = self._thread or threading.get_ident()
        return self._thread == threading.get_ident()

    def _begin(self, label: str) -> None:
        self._begun[label] += 1
        looker = self._looker()
        if self._begun[label] <= self._first or looker is None:
            return
        with suppress(TracerBusy):
            begins = (looker.look, looker.taste)[self._looks.setdefault(label, 0)]
            if begins(self._folder / f"look-{list(self._looks).index(label)}"):
                self._looking, self._label = looker, label
            else:
                self._looked(label)
        if self._begun[label] > self._first + TRIES:
            self._done.add(label)

    def _end(self) -> None:
        looker, self._looking = self._looking, None
        self._looked(self._label)
        if looker is not None:
            looker.stop()

    def _looked(self, label: str) -> None:
        """It was, or there was nothing to look at; the next step is looked at in the other way."""
        self._looks[label] += 1
        if self._looks[label] == WAYS:
            self._done.add(label)
            self._over = len(self._done) >= MOST

    def _drop(self) -> None:
        looker, self._looking = self._looking, None
        if looker is not None:
            looker.drop()

    def _safely(self, action: Callable[[], None]) -> None:
        with held():
            try:
                action()
            except JoulemapError as error:
                self._give_up(error.message)
            except Exception as error:  # noqa: BLE001 - the program goes on, and nothing is known of its tensors
                self._give_up(f"{type(error).__name__}: {error}")

    def _give_up(self, why: str) -> None:
        self._over = True
        self._warn(f"Where tensors lie and what they hold could not be looked at: {why}")
