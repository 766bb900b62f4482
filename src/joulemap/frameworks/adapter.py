"""What a framework's live adapter is: it finds the program's steps, and traces some of them on request.

The recorder owns time and money: it says when to trace, counts what that costs, and never lets an adapter's
failure reach the program. What a trace holds is written as raw files and understood later, when the program
has ended: thinking must not cost the program anything.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import get_ident
from time import time_ns
from typing import Protocol, runtime_checkable

from joulemap.errors import JoulemapError


class TracerBusy(JoulemapError):
    """The framework's profiler is in use by somebody else (TensorBoard, a second recording)."""


class TooEarly(TracerBusy):
    """It cannot be traced yet, and trying would spoil it for later; that is nothing to tell anybody."""


class StepListener(Protocol):
    """Who wants to know where steps begin and end. All are quick, never raise, and may be called from any
    thread; a step inside a step is ignored, so that every layer of a framework may announce its own."""

    def begin(self, label: str) -> None:
        """A step begins: ``train``, ``test``, ``predict``, or the name of the function that is called. None
        has where a signal's handler raises in it."""
        ...

    def noted(self, label: str) -> bool:
        """A step like the ones before begins. False where that must be said by ``begin``, because something
        may come of it."""
        ...

    def end(self, done: bool = False) -> None:
        """It ends; in ``finally``, so that every begin has its end. One that an exception ends is no step:
        with some frameworks that is how the data end. One that is known to be ``done`` is, whatever is being
        handled meanwhile. Where a signal's handler has raised in it, it may be said again."""
        ...

    def compiled(self) -> None:
        """The step that runs now compiles something: it is no example of the others."""
        ...

    def has_compiled(self) -> None:
        """That is done. Where no step was open, it is time of its own."""
        ...

    def is_open(self) -> bool:
        """Whether this thread is in a step, whoever began it."""
        ...

    def forget_others(self) -> None:
        """What another thread has begun is no step, but a part of this thread's."""
        ...

    def open_label(self) -> str:
        """The label of the step that this thread is in, as far as is known; empty outside of steps."""
        ...

    def rename(self, label: str) -> None:
        """The step that runs now turns out to be of another kind than was thought when it began. One that
        encloses it keeps its name."""
        ...

    def cancel(self) -> None:
        """What was begun last turns out to be no step; in place of its ``end``."""
        ...


Begun = tuple[int, int, str]
"""When a step began, in which thread, and its label; every step has its own."""


class Lane:
    """Steps that are like the last one, noted in a few words: when each began and when it ended, in
    ``times``, with its label. They are begun before ``until_ns`` only, by one ``thread``, and looked at after
    that. The one that is ``open`` is ``taken`` over when something comes of it: it ends in full then. The
    next one has the ``label``."""

    __slots__ = ("label", "now_ns", "open", "taken", "thread", "times", "until_ns")

    def __init__(self, label: str) -> None:
        self.label = label
        self.now_ns: Callable[[], int] = time_ns
        self.until_ns = self.thread = 0
        self.times: list[tuple[int, int, str]] = []
        self.open: Begun | None = None
        self.taken: Begun | None = None

    def here(self) -> Begun | None:
        """The step that was noted and that this thread is in."""
        begun = self.open
        return begun if begun is not None and begun[1] == get_ident() else None


@runtime_checkable
class LaneKeeper(Protocol):
    """A ``StepListener`` that looks after a lane."""

    def take_lane(self, lane: Lane) -> None:
        """Steps are noted in it from now on, by the listener's clock."""
        ...

    def lane_ends(self, begun: Begun, failed: bool) -> None:
        """A step of it that was taken over has ended, or failed."""
        ...

    def adopt(self) -> None:
        """The step of this thread that is open in it is one like all others: ``end`` ends it."""
        ...


class Adapter(Protocol):
    """One framework. Made when the program has imported it, in the program's process."""

    @property
    def name(self) -> str:
        """``tensorflow``: also the name of its folder below ``raw/`` in the recording."""
        ...

    @property
    def watches(self) -> tuple[str, ...]:
        """Modules that ``attach`` wants to hear of once they are imported: ``("tensorflow", "keras")``."""
        ...

    @property
    def problems(self) -> list[str]:
        """What it could not do, in sentences for whoever reads the recording; it may grow until the end."""
        ...

    def attach(self, module: str, steps: StepListener) -> None:
        """A watched module has been imported: hook into it, once."""
        ...

    def start(self, folder: Path) -> None:
        """Begin to trace; raw files go to ``folder``. ``TracerBusy`` where somebody else is tracing."""
        ...

    def stop(self) -> None:
        """End the trace and leave its files complete. ``TracerBusy`` where somebody else ended it."""
        ...

    def detach(self) -> None:
        """Take every hook out again and write what is left to write; the program may go on."""
        ...


@runtime_checkable
class Asynchronous(Protocol):
    """An adapter whose framework computes after its calls have returned: ``start`` waits for what was called
    before, which is no part of the session."""

    @property
    def waited_s(self) -> float:
        """How long the last ``start`` waited. Whether the program would have waited for it somewhere else, or
        was held up, is the recorder's to tell."""
        ...


@runtime_checkable
class Settling(Protocol):
    """An adapter whose framework computes on when a step returns: in a session that is waited for."""

    def settle(self) -> None:
        """Wait until all that was called has been computed."""
        ...


@runtime_checkable
class OpenEnded(Protocol):
    """An adapter that hears of calls when they return: a step lasts until the next one, if there is one."""

    @property
    def open_ended(self) -> bool:
        """Whether the step that is open is such a one: slices of time need not wait for its end."""
        ...


@runtime_checkable
class Bound(Protocol):
    """An adapter whose sessions may be bound to the thread that opens them."""

    @property
    def bound(self) -> bool:
        """Whether a session must end with the step that it begins with: the next may be another thread's,
        and where none comes nobody could end it."""
        ...


@runtime_checkable
class Fed(Protocol):
    """An adapter that knows of processes that the program has started."""

    @property
    def fed_by_workers(self) -> bool:
        """Whether some have loaded its data."""
        ...

    @property
    def computes_beside(self) -> bool:
        """Whether some have computed something else for it, once it has been detached."""
        ...


@runtime_checkable
class Onlooker(Protocol):
    """An adapter that can look where the tensors of a step lie in memory, and what they hold."""

    def look(self, folder: Path) -> bool:
        """Begin to look where they lie; files go to ``folder``. False where there is nothing to look at;
        ``TracerBusy`` where somebody is tracing."""
        ...

    def taste(self, folder: Path) -> bool:
        """Begin to look what they hold; files go to ``folder``. False where that cannot be."""
        ...

    def stop(self) -> None:
        """The step is over: leave the files complete."""
        ...

    def drop(self) -> None:
        """It is no step, and there are no files."""
        ...


@runtime_checkable
class Expectant(Protocol):
    """An adapter that knows of a program without steps whether it is about to make some."""

    @property
    def expects_steps(self) -> bool:
        """Whether slices of time should wait for them."""
        ...
