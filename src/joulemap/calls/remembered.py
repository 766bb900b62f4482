"""Answers about things that the program may let go of."""

from __future__ import annotations

import weakref
from typing import Any


class ById(dict[int, bool]):
    """Answers by ``id``, each forgotten when its thing is gone; nothing is kept alive."""

    def __init__(self) -> None:
        super().__init__()
        self._alive: dict[int, weakref.ref[Any]] = {}

    def keep(self, thing: Any, answer: bool) -> None:
        """Remember it; what cannot be watched is asked about again."""
        key = id(thing)
        try:
            self._alive[key] = weakref.ref(thing, lambda _: self._forget(key))
        except TypeError:
            return
        self[key] = answer

    def _forget(self, key: int) -> None:
        self.pop(key, None)
        self._alive.pop(key, None)
