"""Processes that the program starts itself: they are metered with it, and nobody traces them."""

from __future__ import annotations

import functools
from typing import Any

from joulemap.frameworks.patches import Patches
from joulemap.frameworks.torch.aside import aside, instead, unseen
from joulemap.frameworks.watch import Watch

NOT_TRACED = (
    "The program starts processes of its own: they are metered all together with it, and not traced. To "
    "trace each rank of a job, let torchrun start it: torchrun --no-python joulemap run SCRIPT, then merge."
)
_RANKS = "torch.multiprocessing.spawn"
_FEEDING = ("torch.utils.data", "torchdata")
_HELPERS = ("multiprocessing", "concurrent", "joblib", "torch", "joulemap")
"""Whose processes do things for the one that is traced: pools, managers, compilers."""
_POOLS = ("concurrent.futures", "multiprocessing.pool", "torch.multiprocessing.pool", "joblib")
"""And these compute what the program wants, while it goes on."""


class Children:
    """What is known of the processes of a program, from where it makes them."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.fed_by_workers = False
        """Whether some load its data."""
        self.computes_beside = False
        """Whether others compute for it, of which nobody says what."""
        self._some = False

    def hook(self, patches: Patches) -> None:
        """Look at every process when it is made, not when it is started: a forked one has all of the stack
        from which it was started below it."""
        from multiprocessing.process import BaseProcess

        original, attempt = BaseProcess.__init__, aside(self._watch)

        @functools.wraps(original)
        def makes(process: Any, *args: Any, **kwargs: Any) -> None:
            try:
                original(process, *args, **kwargs)
            except BaseException as error:
                error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
                raise
            attempt(self._made, process)

        unseen(makes)
        instead(makes, original)
        patches.put(BaseProcess, "__init__", makes)

    def end(self, any_steps: bool) -> None:
        """The recording ends. Processes of which nobody says what for are worth a word where the program has
        made no steps outside of them."""
        if self._some and not any_steps:
            self._watch.note(NOT_TRACED)
        self.computes_beside |= self._some and any_steps

    def _made(self, process: Any) -> None:
        module = _module_of(process)
        if module.startswith(_FEEDING):
            self.fed_by_workers = True
        elif module == _RANKS:
            self._watch.note(NOT_TRACED)
        elif module.startswith(_POOLS):
            self.computes_beside = True
        elif module.partition(".")[0] not in _HELPERS:
            self._some = True


def _module_of(process: Any) -> str:
    """Where the function comes from that it runs, or its class where that has a ``run`` of its own."""
    target = getattr(process, "_target", None)
    while isinstance(target, functools.partial):
        target = target.func
    return str(getattr(type(process) if target is None else target, "__module__", ""))
