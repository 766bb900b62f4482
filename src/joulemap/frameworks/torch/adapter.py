"""PyTorch, listened to while it runs: steps, modules, and profiler sessions on request."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from joulemap.frameworks.adapter import TracerBusy
from joulemap.frameworks.hooked import HookedAdapter
from joulemap.frameworks.torch import gpus
from joulemap.frameworks.torch.beginning import Beginning
from joulemap.frameworks.torch.calls import Calls
from joulemap.frameworks.torch.children import Children
from joulemap.frameworks.torch.hooks import (
    OptimizerSteps,
    Removals,
    hook_backward,
    hook_compiler,
    hook_loaders,
)
from joulemap.frameworks.torch.kernels import alone
from joulemap.frameworks.torch.profiler import Profiler
from joulemap.frameworks.torch.provenance import Provenance
from joulemap.frameworks.torch.steps import StepFinder
from joulemap.frameworks.torch.values import Taster
from joulemap.frameworks.watch import Watch


class TorchAdapter(HookedAdapter):
    """Modules, optimizers, backward passes, data loaders, and the compiler."""

    name = "torch"
    watches = ("torch", "torch.utils.data.dataloader", "torch._dynamo", "torch._inductor.compile_fx")
    _profiler: Profiler | None

    def __init__(self, folder: Path) -> None:
        watch = Watch("PyTorch")
        self._beginning, self._removals = Beginning(), Removals()
        self._children = Children(watch)
        self._finder = StepFinder(watch, self.settle)
        self._calls = Calls(watch, self._finder)
        self._provenance = Provenance(watch, folder, self._calls.is_open)
        self._tasting: tuple[Taster, Path] | None = None
        super().__init__(watch)

    @property
    def expects_steps(self) -> bool:
        """Whether the program has made no step yet, and looks as if it would."""
        return not self._finder.any_found and bool(self._watch.attempt(self._beginning.lasts))

    @property
    def open_ended(self) -> bool:
        """Whether the step that is open lasts until the next one, if there is one."""
        return self._finder.open_ended

    @property
    def bound(self) -> bool:
        """Whether a session must end with the step that it begins with."""
        return self._profiler is not None and self._profiler.bound

    @property
    def waited_s(self) -> float:
        """How long the last ``start`` waited for what GPUs had still to do."""
        return 0.0 if self._profiler is None else self._profiler.waited_s

    @property
    def fed_by_workers(self) -> bool:
        """Whether data loaders have had worker processes."""
        return self._children.fed_by_workers

    @property
    def computes_beside(self) -> bool:
        """Whether other processes of the program have computed for it."""
        return self._children.computes_beside

    def look(self, folder: Path) -> bool:
        """Open a session that tells where tensors lie, to be stopped as others are; False where there is
        nothing to look at. ``TracerBusy`` where one is open."""
        return self._profiler is not None and self._profiler.look(folder)

    def taste(self, folder: Path) -> bool:
        """Look what tensors hold, until it is stopped, or something is compiled: those of the operations that
        a look has seen. False where it has seen none."""
        if self._profiler is None or not self._profiler.touching:
            return False
        self._profiler.refuse_if_busy()
        device = "cuda" if gpus.in_use() else "cpu"
        taster = Taster(device, _is_watched, partial(self._watch.failed, Taster))
        with alone() as is_so:
            if not is_so:
                raise TracerBusy("Other threads of the program compute.", "The next step is looked at.")
            self._tasting = taster, folder
            taster.begin(self._profiler.touching)
        return True

    def stop(self) -> None:
        """End a session, or a look, its files complete."""
        if self._tasting is None:
            super().stop()
            return
        (taster, folder), self._tasting = self._tasting, None
        taster.end()
        taster.write(folder)

    def detach(self) -> None:
        """Take every hook out, and end what is open."""
        self._watch.attempt(self._taste_no_more)
        self._watch.attempt(self._children.end, self._finder.any_found or self._finder.in_others)
        super().detach()

    def drop(self) -> None:
        """End either without its files."""
        if self._tasting is None and self._profiler is not None:
            self._profiler.drop()
        self._taste_no_more()
        self._tasting = None

    def _hook(self, module: str) -> None:
        attempt = self._watch.attempt
        if module == "torch":
            self._profiler = attempt(Profiler, self._watch, self._calls, self._patches)
            attempt(self._calls.hook, self._patches)
            attempt(hook_backward, self._watch, self._calls, self._finder, self._patches)
            optimizers = OptimizerSteps(self._calls, self._finder)
            attempt(optimizers.hook, self._watch, self._removals)
            attempt(optimizers.hook_scalers, self._watch, self._patches)
            attempt(self._children.hook, self._patches)
        elif module == "torch.utils.data.dataloader":
            attempt(hook_loaders, self._watch, self._finder, self._patches)
        elif module == "torch._dynamo":
            attempt(hook_compiler, self._watch, self._patches, self._compiled, self._has_compiled)
        elif module == "torch._inductor.compile_fx":
            attempt(self._provenance.hook, self._patches)

    def _unhook(self) -> None:
        self._removals.all()
        self._calls.let_go()

    def _write(self) -> None:
        self._provenance.write()

    def _compiled(self) -> None:
        self._calls.graphs.made += 1
        self._taste_no_more()
        if self._profiler is not None:
            self._profiler.compiles()
        self._watch.steps.compiled()

    def _has_compiled(self) -> None:
        self._watch.steps.has_compiled()

    def _taste_no_more(self) -> None:
        if self._tasting is not None:
            self._tasting[0].end()

    def settle(self) -> None:
        """A step ends: in a session it has ended when its GPU has."""
        if self._profiler is not None:
            self._profiler.settle()

    def _leave_to_parent(self) -> None:
        self._taste_no_more()
        self._calls.tracing, self._calls.flow = False, None
        self._calls.let_go()
        super()._leave_to_parent()


def _is_watched() -> bool:
    """Whether whatever runs now would be seen by somebody else: a profiler, or a CUDA graph."""
    import torch

    return bool(torch.autograd._profiler_enabled()) or gpus.captures() or gpus.keeps_graphs()
