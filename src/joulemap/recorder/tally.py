"""What is done in a part of a program, counted by the program itself: tokens, samples, requests."""

from __future__ import annotations

import math


class Tally:
    """So many of a ``unit``, whose energy each is to be known. Whether a recording is made or not, the same
    counts are refused."""

    def __init__(self, unit: str = "") -> None:
        if not isinstance(unit, str):
            raise TypeError(f"A unit is a word, such as 'token', and not {unit!r}.")
        self.unit = unit
        self._count = 0.0

    @property
    def count(self) -> float:
        """How many so far."""
        return self._count

    def add(self, count: float) -> None:
        """So many more."""
        more = float(count)
        if not (math.isfinite(more) and more >= 0):
            raise ValueError(f"{count!r} cannot be counted: it must be finite, and not negative.")
        self._count += more
