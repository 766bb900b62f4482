"""Where a layer is in its model: the names from the outermost layer that is being called down to it."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

_First = tuple["weakref.ref[Any]", "weakref.ref[Any]", str]
"""The outermost layer, the layer, and the path of its first call."""


class LayerPaths:
    """One path for one layer below one outermost layer: a shared layer keeps that of its first call."""

    def __init__(self) -> None:
        self._first: dict[tuple[int, int], _First] = {}

    def path(self, opened: Iterable[tuple[str, Any]]) -> str:
        """The path of the last of these ``(name, layer)``; the layer is None for a scope without one."""
        path, root = "", None
        for name, layer in opened:
            root = layer if root is None else root
            path = f"{path}/{name}" if path else name
            if layer is not None:
                path = self._keep(root, layer, path)
        return path

    def _keep(self, root: Any, layer: Any, path: str) -> str:
        """The path that ``layer`` had first. By identity: a layer may define equality as it likes."""
        key = (id(root), id(layer))
        known = self._first.get(key)
        if known is not None and known[0]() is root and known[1]() is layer:
            return known[2]
        self._first[key] = (weakref.ref(root), weakref.ref(layer, lambda _: self._first.pop(key, None)), path)
        return path
