"""A recording of this process: ``with joulemap.record("run.joulemap"): …``, and names for parts of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ContextDecorator, nullcontext
from contextvars import ContextVar
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from joulemap.recorder.budget import DEFAULT_OVERHEAD, Plan
from joulemap.recorder.inside import SECOND, Inside, current
from joulemap.recorder.settings import Settings
from joulemap.recorder.tally import Tally

if TYPE_CHECKING:
    from joulemap.recorder.metering import Metering
    from joulemap.recording import Recording, RecordingWriter


class record:  # noqa: N801 - reads as the verb it is
    """Record what happens inside the block: its energy, its steps, and a trace of some of them.

    ``path`` is a new recording; ``overhead`` what tracing may cost, as a share of the time, 0 for metering
    alone; ``trace_all`` traces every step. The block's value is this object: ``with record("r.joulemap") as
    recording``, and after the block ``recording.load()`` reads it, and ``joulemap.account(recording.path)``
    accounts it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        overhead: float = DEFAULT_OVERHEAD,
        trace_all: bool = False,
        overwrite: bool = False,
    ) -> None:
        self.path = Path(path)
        self._plan = Plan(overhead, trace_all)
        self._overwrite = overwrite
        self._writer: RecordingWriter | None = None
        self._metering: Metering | None = None
        self._inside: Inside | None = None

    def __enter__(self) -> record:
        from joulemap.recorder.host import host, versions
        from joulemap.recorder.metering import Metering
        from joulemap.recording import RecordingInfo, RecordingWriter
        from joulemap.recording.folder import RAW

        if current() is not None:
            hint = "To name a part of it, use joulemap.measure."
            print(f"joulemap: {self.path}: {SECOND} {hint}", file=sys.stderr)
        info = RecordingInfo(command=list(sys.argv), source="record", host=host(), versions=versions())
        self._writer = RecordingWriter.create(self.path, info, overwrite=self._overwrite)
        self._metering = Metering.start(self._writer)
        self._inside = Inside(Settings(str((self.path / RAW).absolute()), self._plan))
        self._inside.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        from joulemap.recorder.finish import finish

        inside, metering, writer = self._inside, self._metering, self._writer
        if inside is None or metering is None or writer is None or not inside.ours:
            return
        inside.stop()
        metering.stop(writer)
        overhead = None if self._plan.trace_all else self._plan.overhead
        finish(writer, inside.now_ns(), overhead=overhead)

    def load(self) -> Recording:
        """What was recorded, once the block has been left."""
        from joulemap.recording import Recording

        return Recording.open(self.path)

    def __fspath__(self) -> str:
        return str(self.path)


class _Named(ContextDecorator):
    """A part of the program with a name: a block or a function, which threads and tasks may be in together.
    Where nothing is recorded it does nothing."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._open: list[AbstractContextManager[None]] = []

    def __enter__(self) -> object:
        self._begin(Inside.step)
        return self

    def _begin(self, enter: Callable[[Inside, str], AbstractContextManager[None]]) -> None:
        recording = current()
        block = nullcontext() if recording is None else enter(recording, self.name)
        block.__enter__()
        self._open.append(block)
        _open_here.set((*_open_here.get(), (self, block)))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        here = _open_here.get()
        own = [block for part, block in here if part is self and block in self._open]
        block = (own or self._open)[-1]  # one may end in another thread or task than it began in
        _open_here.set(tuple(one for one in here if one[1] is not block))
        self._open.remove(block)
        block.__exit__(kind, error, trace)


_open_here: ContextVar[tuple[tuple[_Named, AbstractContextManager[None]], ...]]
_open_here = ContextVar("joulemap_open", default=())
"""The parts that are open in this thread or task."""


class _Measured(_Named):
    """A region, in which the program may count what it does."""

    def __init__(self, name: str, unit: str) -> None:
        super().__init__(name)
        self.unit = Tally(unit).unit

    def __enter__(self) -> Tally:
        tally = Tally(self.unit)
        self._begin(lambda recording, name: recording.region(name, tally))
        return tally


def measure(name: str, unit: str = "") -> _Measured:
    """Name a part of the program, as a block or on a function; ``show --by region`` has its energy. And what
    one ``unit`` of its work takes, where the block counts these: ``with measure("decode", "token") as tokens:
    … tokens.add(8)``."""
    return _Measured(name, unit)


def step(label: str = "step") -> _Named:
    """Mark one step, as a block or on a function, where joulemap does not find the steps by itself."""
    return _Named(label)
