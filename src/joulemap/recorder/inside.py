"""The program's side of a recording: finds frameworks and steps, traces a few of them, writes it down.

Standard library only, and nothing that goes wrong here reaches the program.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from joulemap.frameworks.adapter import Adapter, Fed, Onlooker
from joulemap.frameworks.live import FRAMEWORKS, Framework
from joulemap.recorder.imports import ImportWatch
from joulemap.recorder.journal import Journal
from joulemap.recorder.sessions import Sessions
from joulemap.recorder.settings import CallSettings, Settings
from joulemap.recorder.signals import held
from joulemap.recorder.slicer import Slicer
from joulemap.recorder.steps import StepClock
from joulemap.recorder.tally import Tally

if TYPE_CHECKING:
    from joulemap.frameworks.adapter import StepListener
    from joulemap.recorder.calls import CallRecorder
    from joulemap.recorder.experiment import Experiment
    from joulemap.recorder.look import LookingOn

SECOND = (
    "This process is being recorded already: this recording is metered, and has no steps and no operations."
)

TORCH = "torch"
_current: Inside | None = None


def epoch_clock_ns(offset_ns: int) -> Callable[[], int]:
    """Epoch nanoseconds by the clock of the start: a system clock that is set does not move it. Without a
    line of Python, since it is asked twice in every step."""
    return map(offset_ns.__add__, iter(time.monotonic_ns, None)).__next__


class Inside:
    """One recording, seen from inside. A forked child leaves it to its parent."""

    def __init__(self, settings: Settings) -> None:
        self._raw = Path(settings.raw)
        self._raw.mkdir(parents=True, exist_ok=True)
        self._offset_ns = time.time_ns() - time.monotonic_ns()
        self.now_ns = epoch_clock_ns(self._offset_ns)
        self._journal = Journal(self._raw)
        self._sessions = Sessions(self._raw, self._journal, self.now_ns)
        self._clock = StepClock(settings.plan, self._sessions, self._journal, self.now_ns)
        self._experiment = self._ordered(settings.experiment)
        self._adapters: dict[str, Adapter] = {}
        self._looking = None if settings.caches is None else self._looking_on(settings.caches)
        self._imported: set[str] = set()
        self._attached: set[str] = set()
        self._slicer: Slicer | None = None
        self._imports = ImportWatch({name for one in FRAMEWORKS for name in one.watches}, self._hear_of)
        self._calls = self._metered_calls(settings.calls)
        self._pid = os.getpid()
        self._over = False
        os.register_at_fork(after_in_child=self._leave_to_parent)

    @property
    def ours(self) -> bool:
        """Whether this is the process that is recorded, not a forked child of it."""
        return os.getpid() == self._pid

    def start(self) -> None:
        """Begin to listen; a second recording of a process only meters it."""
        global _current
        self._journal.put("start", {"t_ns": self.now_ns(), "pid": self._pid})
        if _current is None:
            _current = self
            self._imports.start()
            if self._calls is not None:
                self._safely("The library", self._calls.start)
            elif "joulemap.calls.patched" in sys.modules:
                self.meter_calls(sys.modules["joulemap.calls.patched"].libraries())
        else:
            self._journal.put("warning", SECOND)
        self._journal.flush()

    def stop(self) -> None:
        """Stop listening, take all hooks out, and write down that it ended in order."""
        global _current
        if not self.ours or self._over:
            return
        self._over = True
        _current = None if _current is self else _current
        with held():
            self._stop()

    def _stop(self) -> None:
        end_ns = self.now_ns()
        self._imports.stop()
        if self._calls is not None:
            self._calls.stop()
        if self._experiment is not None:
            self._safely("The experiment", self._experiment.stop)
        if self._looking is not None:
            self._looking.stop()
        if self._slicer is not None:
            self._slicer.stop()
        self._clock.switch_off()
        for adapter in self._adapters.values():
            self._safely(adapter.name, adapter.detach)
            for problem in adapter.problems:
                self._journal.put("warning", problem)
            if isinstance(adapter, Fed) and adapter.fed_by_workers:
                self._journal.put("workers", adapter.name)
            if isinstance(adapter, Fed) and adapter.computes_beside:
                self._journal.put("helpers", adapter.name)
        share = self._clock.budget.share(end_ns / 1e9)
        self._journal.put("end", {"t_ns": end_ns, "tracing_share": share})
        self._journal.close()

    def _metered_calls(self, settings: CallSettings | None) -> CallRecorder | None:
        if settings is None:
            return None
        from joulemap.recorder.calls import CallRecorder

        return CallRecorder(
            self._raw, settings, self._offset_ns, lambda text: self._journal.put("warning", text)
        )

    def _ordered(self, folder: str | None) -> Experiment | None:
        if folder is None:
            return None
        from joulemap.recorder.experiment import Experiment

        return Experiment(Path(folder), self._clock, self.now_ns)

    def _looking_on(self, first: int) -> LookingOn:
        from joulemap.recorder.look import LookingOn

        heard: StepListener = self._experiment or self._clock

        def onlooker() -> Onlooker | None:
            adapter = self._adapters.get(TORCH)
            return adapter if isinstance(adapter, Onlooker) else None

        def warn(text: str) -> None:
            self._journal.put("warning", text)

        return LookingOn(self._raw / TORCH, heard, onlooker, warn, first)

    def _listener(self, framework: str) -> StepListener:
        """Who is the first to hear of a framework's steps."""
        if framework == TORCH and self._looking is not None:
            return self._looking
        return self._experiment or self._clock

    def meter_calls(self, libraries: tuple[str, ...]) -> None:
        """Files that have sites in their source were imported: meter the calls of their libraries."""
        if self._calls is None and libraries:
            self._calls = self._metered_calls(CallSettings(libraries))
            if self._calls is not None:
                self._safely("The library", self._calls.start)

    def _hear_of(self, module: str) -> None:
        """A module was imported to its end; a framework is hooked into when it is there itself."""
        self._imported.add(module)
        for framework in FRAMEWORKS:
            if module in framework.watches and framework.name in self._imported:
                self._safely(framework.name, partial(self._attach, framework))

    def _attach(self, framework: Framework) -> None:
        """Let an adapter hook into every module of its framework that is there by now."""
        if framework.name not in self._adapters:
            self._adapters[framework.name] = framework.adapter(self._raw / framework.name)
            self._sessions.add(self._adapters[framework.name])
            self._start_slicer()
        for module in framework.watches:
            if module in self._imported and module not in self._attached:
                self._attached.add(module)
                self._adapters[framework.name].attach(module, self._listener(framework.name))
                version = getattr(sys.modules[module], "__version__", None)
                if version is not None:
                    self._journal.put("version", [module, str(version)])

    def _start_slicer(self) -> None:
        if self._slicer is None and self._clock.budget.may_ever_slice:
            self._slicer = Slicer(self._clock)
            self._slicer.start()

    def _safely(self, name: str, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001 - the program goes on without us
            self._journal.put("warning", f"{name} could not be listened to: {type(error).__name__}: {error}")

    def _leave_to_parent(self) -> None:
        global _current
        self._clock.abandon()
        if self._experiment is not None:
            self._experiment.leave()
        if self._looking is not None:
            self._looking.stop()
        self._journal.leave()
        self._imports.stop()
        if _current is self:
            _current = None

    @contextmanager
    def step(self, label: str) -> Iterator[None]:
        """A step that the program marks itself."""
        steps = self._listener(TORCH) if TORCH in self._adapters else self._clock
        steps.begin(label)
        try:
            yield
        finally:
            steps.end()

    @contextmanager
    def region(self, name: str, tally: Tally) -> Iterator[None]:
        """A part of the program that gets a name, with what it counts meanwhile."""
        start_ns = self.now_ns()
        try:
            yield
        finally:
            counted = [tally.count, tally.unit] if tally.unit else []
            self._journal.put("region", [start_ns, self.now_ns(), name, *counted])


def current() -> Inside | None:
    """The recording that is being made in this process, if any."""
    return _current


def enter(handle: int) -> None:
    """Wait until ``joulemap run`` is ready, then listen until the program's exit handlers run."""
    with os.fdopen(handle, "rb") as pipe:
        inside = Inside(Settings.from_json(pipe.read()))
    inside.start()
    atexit.register(inside.stop)  # the first to be registered is the last to run
