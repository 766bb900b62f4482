"""Notices when the program imports a module, and leaves no trace of having looked.

A finder at the front of ``sys.meta_path`` finds the module as Python would, and is told when it has been
executed. The module's spec and loader are the ones it would have had.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.abc import Loader


class ImportWatch:
    """Calls ``imported(name)`` after each of some modules was imported; at once for those that are there."""

    def __init__(self, names: Iterable[str], imported: Callable[[str], None]) -> None:
        self._names = frozenset(names)
        self._imported = imported
        self._looking = threading.local()

    def start(self) -> None:
        """Begin to watch."""
        sys.meta_path.insert(0, self)
        for name in sorted(self._names & sys.modules.keys()):
            self._imported(name)

    def stop(self) -> None:
        """Take the finder out again."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec that all other finders agree on, with a loader that tells us."""
        if fullname not in self._names or hasattr(self._looking, "now"):
            return None
        self._looking.now = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            del self._looking.now
        if spec is not None and spec.loader is not None:
            spec.loader = _Telling(spec.loader, self._imported)  # type: ignore[assignment]
        return spec


class _Telling:
    """Loads with the real loader, and steps out of the way before the module can see it."""

    def __init__(self, real: Loader, imported: Callable[[str], None]) -> None:
        self._real, self._imported = real, imported

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        if spec is not None:
            spec.loader = self._real
        module.__loader__ = self._real
        self._real.exec_module(module)
        self._imported(module.__name__)
