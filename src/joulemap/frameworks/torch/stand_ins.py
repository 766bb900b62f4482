"""Something of ours in the place of what generated code calls: kernels of inductor's own, and operations of
libraries.

Generated code looks up both in its own module, by name, so that nothing is compiled anew.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType
from typing import Any

from joulemap.frameworks.patches import Patches
from joulemap.frameworks.torch.aside import passing
from joulemap.frameworks.torch.launched import Around, Launch

_LIBRARIES = "extern_kernels"
"""What generated code calls operations of libraries by."""
_OWN = ("triton_", "cpp_fused")
"""How the names of kernels that inductor has made begin."""

Library = Callable[..., Any]
"""Is given an operation's name, the operation, and what that is called with."""


def generated_modules() -> Sequence[Any]:
    """The modules of all generated code; none where nothing was compiled."""
    inductor = sys.modules.get("torch._inductor.codecache")
    if inductor is None:
        return []
    kept = inductor.PyCodeCache
    modules = kept.modules if hasattr(kept, "modules") else kept.cache.values()  # up to torch 2.5
    return [one for one in list(modules) if hasattr(one, "call")]


def kernels_of(module: Any) -> list[str]:
    """The names of the kernels in generated code."""
    every = [name for name in vars(module) if name.startswith(_OWN)]
    return [name for name in every if not isinstance(getattr(module, name), ModuleType)]


def put_kernel(patches: Patches, module: Any, name: str, around: Callable[[Launch], Any]) -> None:
    """Have launches of a kernel go to ``around``, which makes them."""
    patches.put(module, name, Around(getattr(module, name), around))


def put_libraries(patches: Patches, module: Any, around: Library) -> None:
    """Have calls of operations of libraries go to ``around``, which makes them."""
    if hasattr(module, _LIBRARIES):
        patches.put(module, _LIBRARIES, _Libraries(getattr(module, _LIBRARIES), around))


class _Libraries:
    """Operations of libraries, as generated code looks them up."""

    def __init__(self, known: Any, around: Library) -> None:
        self._known, self._around = known, around

    def __getattr__(self, op: str) -> Any:
        return partial(self._called, op, getattr(self._known, op))

    @passing
    def _called(self, op: str, function: Callable[..., Any], *args: Any, **named: Any) -> Any:
        return self._around(op, function, *args, **named)
