"""What is compiled, and graphs that were before a recording began.

These may depend on the code of ``Module.__call__``, which is ours in traced steps, and would be made again
there: where classes inside have a ``__call__`` of their own that calls it, as layers of Hugging Face's do. So
torch's own code stays while such a model is called; what runs in graphs has no names of modules anyway.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from joulemap.frameworks.patches import Patches

_OPTIMIZED = "OptimizedModule"
_ENTERS = "_callback_from_stance"
"""What the compiler calls when a compiled function is called."""


class Graphs:
    """Which compiled modules have graphs from before; ``made`` counts compilations since."""

    def __init__(self) -> None:
        self.made = 0
        self._from_before: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()
        self._meeting: tuple[Any, int] | None = None

    def begins(self, module: Any) -> None:
        """A module is called by no other; when it ``ends``, it is known."""
        if is_compiled(module) and module not in self._from_before and _depends(module):
            self._meeting = module, self.made

    def ends(self) -> None:
        """It has graphs from before where none was made in its first call."""
        if self._meeting is not None:
            (module, before), self._meeting = self._meeting, None
            self._from_before[module] = before == self.made

    def from_before(self, module: Any) -> bool:
        """Of a compiled module. One that was never met is called by others: where nothing was compiled since
        we came, it was before."""
        known = self._from_before.get(module)
        if known is None:
            known = self._from_before[module] = not self.made and _depends(module)
        return known


def is_compiled(module: Any) -> bool:
    """Whether calls of it run in graphs, as a whole."""
    compiled = getattr(module, "_compiled_call_impl", None) is not None
    return compiled or type(module).__name__ == _OPTIMIZED


@contextmanager
def calls_compiled() -> Iterator[Callable[[], bool]]:
    """Whether something that is compiled is called meanwhile, by this thread; where this torch does not tell,
    whether anything was ever compiled. It must not be called in a mode of the dispatcher: the compiler gives
    up on it for good then."""
    frames, heard, me = sys.modules.get("torch._dynamo.eval_frame"), [], threading.get_ident()
    enters: Any = getattr(frames, _ENTERS, None)
    patches = Patches()
    if enters is not None:

        def entered(compiler: Any) -> Any:
            found = enters(compiler)
            if found is not None and threading.get_ident() == me:
                heard.append(found)
            return found

        patches.put(frames, _ENTERS, entered)
    try:
        yield lambda: bool(heard) or (enters is None and _anything_compiled())
    finally:
        patches.restore()


def _anything_compiled() -> bool:
    utils = sys.modules.get("torch._dynamo.utils")
    return utils is not None and bool(utils.counters["frames"])


def _depends(module: Any) -> bool:
    """Whether its graphs depend on the function that we replace."""
    from torch.nn import Module

    inside = module._orig_mod if type(module).__name__ == _OPTIMIZED else module
    return any(type(one).__call__ is not Module.__call__ for one in inside.modules())
