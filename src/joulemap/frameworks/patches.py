"""Attributes of other people's classes and modules, replaced for a while and then put back as they were."""

from __future__ import annotations

from typing import Any

_ABSENT = object()


class Patches:
    """What was replaced by what."""

    def __init__(self) -> None:
        self._put: list[tuple[Any, str, object, object]] = []

    def put(self, owner: Any, name: str, ours: object) -> None:
        """Put ``ours`` in the place of a class's or module's own attribute."""
        self._put.append((owner, name, vars(owner).get(name, _ABSENT), ours))
        setattr(owner, name, ours)

    def restore(self) -> None:
        """Put everything back, except where somebody has put theirs over ours."""
        for owner, name, original, ours in reversed(self._put):
            if vars(owner).get(name) is not ours:
                continue
            if original is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, original)
        self._put.clear()
