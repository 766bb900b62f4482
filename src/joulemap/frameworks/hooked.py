"""What the live adapters of all frameworks do alike: hook in once, open and close sessions, leave."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar, Protocol

from joulemap.frameworks.adapter import StepListener, TracerBusy
from joulemap.frameworks.patches import Patches
from joulemap.frameworks.watch import Watch, call_in_children


class Sessions(Protocol):
    """A framework's profiler, of which at most one session of ours is open."""

    def start(self, folder: Path) -> None:
        """Open one, its files below ``folder``; ``TracerBusy`` where one is open."""
        ...

    def stop(self) -> None:
        """Close it, its files complete; ``TracerBusy`` where the program ended it."""
        ...

    def drop(self) -> None:
        """End it without its files, where one is open."""
        ...

    def leave_to_parent(self) -> None:
        """In a forked child the session is the parent's."""
        ...


class HookedAdapter(ABC):
    """Hooks at the level of classes and modules; ``detach`` leaves these as they were."""

    name: ClassVar[str]
    watches: ClassVar[tuple[str, ...]]

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._patches = Patches()
        self._profiler: Sessions | None = None
        self._attached: set[str] = set()
        call_in_children(self._leave_to_parent)

    @property
    def problems(self) -> list[str]:
        """What could not be done, in sentences."""
        return self._watch.problems

    def attach(self, module: str, steps: StepListener) -> None:
        """Hook into ``module``, which the program has imported, once."""
        self._watch.steps = steps
        if module not in self._attached:
            self._attached.add(module)
            self._hook(module)

    def start(self, folder: Path) -> None:
        """Open a profiler session; ``TracerBusy`` where one is open."""
        if self._profiler is None:
            raise TracerBusy(f"{self._watch.framework} is not attached.", "Import it first.")
        self._profiler.start(folder)

    def stop(self) -> None:
        """Close it, and write what is new; ``TracerBusy`` where the program ended it."""
        if self._profiler is None:
            raise TracerBusy(f"No session of {self._watch.framework}'s profiler is open.", "Start one first.")
        self._profiler.stop()
        self._watch.attempt(self._write)

    def detach(self) -> None:
        """Take every hook out, and end a session that is open."""
        if self._profiler is not None:
            self._watch.attempt(self._profiler.drop)
        self._watch.attempt(self._unhook)
        self._watch.on = False
        self._patches.restore()

    @abstractmethod
    def _hook(self, module: str) -> None:
        """Hook into a module, for the first time."""

    def _unhook(self) -> None:
        """Take out hooks that are no patches."""
        return

    def _write(self) -> None:
        """A session has ended: write down what the framework has told beside it."""
        return

    def _leave_to_parent(self) -> None:
        """In a forked child hooks do nothing: the recording is its parent's."""
        self._watch.on = False
        if self._profiler is not None:
            self._profiler.leave_to_parent()
