"""JAX, listened to while it runs: steps, modules of flax nnx, and profiler sessions on request."""

from __future__ import annotations

from pathlib import Path

from joulemap.frameworks.adapter import StepListener, TracerBusy
from joulemap.frameworks.jax.calls import Calls
from joulemap.frameworks.jax.nnx import ModuleScopes
from joulemap.frameworks.jax.profiler import Profiler, wait_for
from joulemap.frameworks.jax.steps import StepFinder
from joulemap.frameworks.patches import Patches
from joulemap.frameworks.watch import Watch, call_in_children


class JaxAdapter:
    """Hooks at the level of classes and modules; ``detach`` leaves these as they were."""

    name = "jax"
    watches = ("jax", "flax.nnx")

    def __init__(self, folder: Path) -> None:
        self._watch = Watch("JAX")
        self._patches = Patches()
        self._profiler: Profiler | None = None
        self._finder = StepFinder(self._watch, self._waits, wait_for)
        self._calls = Calls(self._watch, self._finder)
        self._attached: set[str] = set()
        call_in_children(self._leave_to_parent)

    @property
    def problems(self) -> list[str]:
        """What could not be done, in sentences."""
        return self._watch.problems

    def attach(self, module: str, steps: StepListener) -> None:
        """Hook into ``module``, which the program has imported, once."""
        self._watch.steps = steps
        if module in self._attached:
            return
        self._attached.add(module)
        if module == "jax":
            self._profiler = self._watch.attempt(Profiler, self._watch, self._patches)
            self._calls.hook(self._patches)
        else:
            self._watch.attempt(ModuleScopes(self._watch, self._patches).hook)

    def start(self, folder: Path) -> None:
        """Open a profiler session; ``TracerBusy`` where one is open."""
        if self._profiler is None:
            raise TracerBusy("JAX is not attached.", "Import it first.")
        self._profiler.start(folder)

    def stop(self) -> None:
        """Close it, its profile written; ``TracerBusy`` where the program ended it."""
        if self._profiler is None:
            raise TracerBusy("No session of JAX's profiler is open.", "Start one first.")
        self._profiler.stop()

    def detach(self) -> None:
        """Take every hook out, and end a session that is open."""
        if self._profiler is not None:
            self._watch.attempt(self._profiler.drop)
        self._watch.attempt(self._calls.unhook)
        self._watch.on = False
        self._patches.restore()

    def _waits(self) -> bool:
        return self._profiler is not None and self._profiler.in_step

    def _leave_to_parent(self) -> None:
        """In a forked child hooks do nothing: the recording is its parent's."""
        self._watch.on = False
        if self._profiler is not None:
            self._profiler.leave_to_parent()
