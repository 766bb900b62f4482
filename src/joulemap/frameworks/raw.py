"""Raw traces, as the adapters left them beside a recording: read by the framework that wrote them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path

from joulemap.frameworks.imported import ImportedTrace

_READERS = {
    "tensorflow": "joulemap.frameworks.tensorflow.raw",
    "torch": "joulemap.frameworks.torch.raw",
    "jax": "joulemap.frameworks.jax.raw",
}
_MUST_BE_TOLD = ("torch",)
"""Those whose profiler sees a compiler at work, and does not tell it from the program: what it runs lies in
the modules that it compiles."""


def read_raw(
    raw: Path,
    progress: Callable[[float], None] | None = None,
    compiled_ns: Sequence[tuple[int, int]] = (),
) -> list[ImportedTrace]:
    """The traces of every framework that left some; ``InputError`` where one cannot be read. ``compiled_ns``
    are the steps in which something was compiled, on the traces' clock."""
    found = [name for name in _READERS if (raw / name).is_dir()]
    told = dict.fromkeys(_MUST_BE_TOLD, (compiled_ns,))
    return [
        importlib.import_module(_READERS[name]).read_raw(raw / name, progress, *told.get(name, ()))
        for name in found
    ]
