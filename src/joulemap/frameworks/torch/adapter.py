"""PyTorch, listened to while it runs: steps, modules, and profiler sessions on request."""

from __future__ import annotations

from pathlib import Path

from joulemap.frameworks.adapter import StepListener, TracerBusy
from joulemap.frameworks.patches import Patches
from joulemap.frameworks.torch.calls import Calls
from joulemap.frameworks.torch.hooks import (
    OptimizerSteps,
    Removals,
    hook_backward,
    hook_compiler,
    hook_loaders,
)
from joulemap.frameworks.torch.profiler import Profiler
from joulemap.frameworks.torch.provenance import Provenance
from joulemap.frameworks.torch.steps import StepFinder
from joulemap.frameworks.watch import Watch, call_in_children


class TorchAdapter:
    """Hooks at the level of classes and modules; ``detach`` leaves these as they were."""

    name = "torch"
    watches = ("torch", "torch.utils.data.dataloader", "torch._dynamo", "torch._inductor.compile_fx")

    def __init__(self, folder: Path) -> None:
        self._watch = Watch("PyTorch")
        self._patches, self._removals = Patches(), Removals()
        self._profiler: Profiler | None = None
        self._finder = StepFinder(self._watch, self._settle)
        self._calls = Calls(self._watch, self._finder)
        self._provenance = Provenance(self._watch, folder, self._calls.is_open)
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
        attempt = self._watch.attempt
        if module == "torch":
            self._profiler = attempt(Profiler, self._watch, self._calls, self._patches)
            attempt(self._calls.hook, self._patches)
            attempt(hook_backward, self._watch, self._calls, self._patches)
            optimizers = OptimizerSteps(self._calls, self._finder)
            attempt(optimizers.hook, self._watch, self._removals)
            attempt(optimizers.hook_scalers, self._watch, self._patches)
        elif module == "torch.utils.data.dataloader":
            attempt(hook_loaders, self._watch, self._finder, self._patches)
        elif module == "torch._dynamo":
            attempt(hook_compiler, self._watch, self._patches)
        elif module == "torch._inductor.compile_fx":
            attempt(self._provenance.hook, self._patches)

    def start(self, folder: Path) -> None:
        """Open a profiler session; ``TracerBusy`` where one is open."""
        if self._profiler is None:
            raise TracerBusy("PyTorch is not attached.", "Import it first.")
        self._profiler.start(folder)

    def stop(self) -> None:
        """Close it, its events written; ``TracerBusy`` where the program ended it."""
        if self._profiler is None:
            raise TracerBusy("No session of PyTorch's profiler is open.", "Start one first.")
        self._profiler.stop()
        self._watch.attempt(self._provenance.write)

    def detach(self) -> None:
        """Take every hook out, and end a session that is open."""
        if self._profiler is not None:
            self._watch.attempt(self._profiler.drop)
        self._watch.on = False
        self._patches.restore()
        self._removals.all()

    def _settle(self) -> None:
        if self._profiler is not None:
            self._profiler.settle()

    def _leave_to_parent(self) -> None:
        """In a forked child hooks do nothing: the recording is its parent's."""
        self._watch.on = self._calls.tracing = False
        self._calls.flow = None
        if self._profiler is not None:
            self._profiler.leave_to_parent()
