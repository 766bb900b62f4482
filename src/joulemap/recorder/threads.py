"""Which threads have ended: a new one may have the same number."""

from __future__ import annotations

import threading
import weakref
from threading import get_ident


class _Mine:
    """What a thread keeps as long as it lives."""


class _Thread(weakref.ref[_Mine]):
    """A thread, by what it keeps; with its number."""

    number = 0


class Threads:
    """Those that were known once, and have ``ended`` since this was last asked for. No code of ours runs in
    the end of a thread."""

    def __init__(self) -> None:
        self._local = threading.local()
        self._known: dict[int, _Thread] = {}
        self.ended: list[_Thread] = []

    def know(self) -> None:
        """Hear of the end of this one."""
        if not hasattr(self._local, "mine"):
            mine = _Mine()
            here = self._known[get_ident()] = _Thread(mine, self.ended.append)
            here.number, self._local.mine = get_ident(), mine

    def take_ended(self) -> list[int]:
        """Their numbers."""
        numbers = [one.number for one in self.ended]
        del self.ended[: len(numbers)]
        return numbers
