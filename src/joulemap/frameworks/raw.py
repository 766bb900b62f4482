"""Raw traces, as the adapters left them beside a recording: read by the framework that wrote them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

from joulemap.frameworks.imported import ImportedTrace

_READERS = {
    "tensorflow": "joulemap.frameworks.tensorflow.raw",
    "torch": "joulemap.frameworks.torch.raw",
    "jax": "joulemap.frameworks.jax.raw",
}


def read_raw(raw: Path, progress: Callable[[float], None] | None = None) -> list[ImportedTrace]:
    """The traces of every framework that left some; ``InputError`` where one cannot be read."""
    found = [name for name in _READERS if (raw / name).is_dir()]
    return [importlib.import_module(_READERS[name]).read_raw(raw / name, progress) for name in found]
