"""JAX, listened to while it runs: steps, modules of flax nnx, and profiler sessions on request."""

from __future__ import annotations

from pathlib import Path

from joulemap.frameworks.hooked import HookedAdapter
from joulemap.frameworks.jax.calls import Calls
from joulemap.frameworks.jax.nnx import ModuleScopes
from joulemap.frameworks.jax.profiler import Profiler, wait_for
from joulemap.frameworks.jax.steps import StepFinder
from joulemap.frameworks.watch import Watch


class JaxAdapter(HookedAdapter):
    """Compiled functions, and the modules of flax nnx."""

    name = "jax"
    watches = ("jax", "flax.nnx")
    _profiler: Profiler | None

    def __init__(self, folder: Path) -> None:
        super().__init__(Watch("JAX"))
        self._finder = StepFinder(self._watch, self._waits, wait_for)
        self._calls = Calls(self._watch, self._finder)

    @property
    def waited_s(self) -> float:
        """How long the last ``start`` waited for what the program had called before."""
        return 0.0 if self._profiler is None else self._profiler.waited_s

    def _hook(self, module: str) -> None:
        if module == "jax":
            self._profiler = self._watch.attempt(Profiler, self._watch, self._patches)
            self._calls.hook(self._patches)
        else:
            self._watch.attempt(ModuleScopes(self._watch, self._patches).hook)

    def _unhook(self) -> None:
        self._calls.unhook()

    def _waits(self) -> bool:
        return self._profiler is not None and self._profiler.in_step
