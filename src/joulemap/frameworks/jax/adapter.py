"""JAX, listened to while it runs: steps, modules of flax nnx, and profiler sessions on request."""

from __future__ import annotations

from pathlib import Path

from joulemap.frameworks.adapter import StepListener, TooEarly
from joulemap.frameworks.hooked import HookedAdapter
from joulemap.frameworks.jax.calls import Calls
from joulemap.frameworks.jax.nnx import ModuleScopes
from joulemap.frameworks.jax.profiler import Profiler, wait_for
from joulemap.frameworks.jax.steps import Continuous, StepFinder, never
from joulemap.frameworks.watch import Watch

OLDEST = (0, 8, 1)
"""The oldest JAX that it was tested with."""
_UPDATE = f"The program is metered; {'.'.join(map(str, OLDEST))} and later are traced."


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

    @property
    def open_ended(self) -> bool:
        """Whether a step is open that ends with the next call."""
        return self._finder.open_ended

    @property
    def expects_steps(self) -> bool:
        """Whether a function of the program's is being compiled, to be called soon."""
        return self._calls.compiling

    def attach(self, module: str, steps: StepListener) -> None:
        """Hook into ``module``, which the program has imported, once."""
        self._finder.passed = steps.passed if isinstance(steps, Continuous) else never
        super().attach(module, steps)

    def start(self, folder: Path) -> None:
        """Open a profiler session; never of a JAX that is too old, which has been said once."""
        if not self._watch.on:
            raise TooEarly("This JAX is too old.", _UPDATE)
        super().start(folder)

    def _hook(self, module: str) -> None:
        if self._is_too_old():
            self._watch.on = False
        elif module == "jax":
            self._profiler = self._watch.attempt(
                Profiler, self._watch, self._patches, self._finder.last_s, self._calls.programs
            )
            self._calls.hook(self._patches)
        else:
            self._watch.attempt(ModuleScopes(self._watch, self._patches).hook)

    def _is_too_old(self) -> bool:
        import jax

        if jax.__version_info__ >= OLDEST:
            return False
        self._watch.note(f"JAX {jax.__version__} is too old for its steps and operations. {_UPDATE}")
        return True

    def _unhook(self) -> None:
        self._calls.unhook()

    def _waits(self) -> bool:
        return self._profiler is not None and self._profiler.in_step
