"""Makes sites of the calls in the program's own modules while Python imports them.

A finder at the front of ``sys.meta_path`` finds a module as Python would and looks at where it comes from.
The module's spec and loader are the ones it would have had, and no bytecode of ours is written anywhere.
"""

from __future__ import annotations

import builtins
import importlib.util
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from joulemap.calls.places import Places
from joulemap.calls.rewrite import HOOK, rewrite
from joulemap.calls.runtime import site

_SENDERS = frozenset(("cloudpickle", "dill"))
"""What sends functions to other processes by value, with what they need from their module."""

MARK = b"joulemap.calls.patched"
"""What a file that has sites already imports."""

_NOT_OWN = frozenset(("site-packages", "dist-packages"))


class SiteLoader:
    """Rewrites the modules below some folder, and those of some packages wherever they are."""

    def __init__(
        self,
        places: Places,
        warn: Callable[[str], None],
        *,
        root: str = "",
        packages: Iterable[str] = (),
        libraries: Iterable[str] = (),
    ) -> None:
        self.places = places
        self.warn = warn
        self._root = Path(root).resolve() if root else None
        self._packages = frozenset(packages)
        self._never = frozenset((*libraries, "joulemap")) - self._packages
        self._standard = Path(importlib.util.__file__).parents[1].resolve()
        self._looking = threading.local()
        self._rewritten: list[dict[str, Any]] = []
        self._sent = False

    def start(self) -> None:
        """Begin to watch imports; sites are known to every module."""
        vars(builtins)[HOOK] = site
        sys.meta_path.insert(0, self)

    def stop(self) -> None:
        """Take the finder out again; the sites that were made stay, and do nothing."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec that all other finders agree on; for the program's own source, with a loader of ours."""
        if fullname.rpartition(".")[2] in _SENDERS and not self._sent:
            self._send_sites_along()
        if fullname.split(".")[0] in self._never or hasattr(self._looking, "now"):
            return None
        self._looking.now = True
        try:
            spec = _found(fullname, path, target)
        finally:
            del self._looking.now
        if spec is not None and type(spec.loader) is SourceFileLoader and self._is_own(fullname, spec):
            spec.loader = _Rewriting(spec, self)
        return spec

    def add(self, module: dict[str, Any]) -> None:
        """A module that has sites. They find their hook among the builtins: its names stay its own."""
        self._rewritten.append(module)
        if self._sent:
            module[HOOK] = site

    def _send_sites_along(self) -> None:
        """Where functions go to other processes, the hook has to be among their module's names."""
        self._sent = True
        for module in self._rewritten:
            module[HOOK] = site

    def _is_own(self, fullname: str, spec: ModuleSpec) -> bool:
        if fullname.split(".")[0] in self._packages:
            return True
        if self._root is None or not spec.origin:
            return False
        origin = Path(spec.origin).resolve()
        inside = origin.is_relative_to(self._root) and not origin.is_relative_to(self._standard)
        return inside and not _NOT_OWN.intersection(origin.parts)


def _found(fullname: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
    """What the other finders say, in their order."""
    for finder in list(sys.meta_path):
        find = getattr(finder, "find_spec", None)
        spec: ModuleSpec | None = None if find is None else find(fullname, path, target)
        if spec is not None:
            return spec
    return None


class _Rewriting(SourceFileLoader):
    """Compiles with sites, and steps out of the way before the module can see it."""

    def __init__(self, spec: ModuleSpec, sites: SiteLoader) -> None:
        real = spec.loader
        assert isinstance(real, SourceFileLoader)  # noqa: S101 - it was looked at
        super().__init__(real.name, real.path)
        self._spec, self._real, self._sites = spec, real, sites

    def get_code(self, fullname: str) -> CodeType | None:
        self._spec.loader = self._real
        module = sys.modules.get(fullname)
        if module is not None and getattr(module, "__spec__", None) is self._spec:
            module.__loader__ = self._real
        try:
            places, source = self._sites.places, self._real.get_data(self._real.path)
            if MARK in source:
                return self._real.get_code(fullname)
            rewritten = rewrite(source, self._real.path, places.next)
        except Exception as error:  # noqa: BLE001 - Python says what is wrong with it, as it always would
            if not isinstance(error, SyntaxError):
                self._sites.warn(f"The calls of {self._real.path} are not measured: {error!r}")
            return self._real.get_code(fullname)
        places.add(self._real.path, rewritten.places)
        if module is not None:
            self._sites.add(vars(module))
        return rewritten.code
