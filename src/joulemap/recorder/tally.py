"""What is done in a part of a program, counted by the program itself: tokens, samples, requests."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Tally:
    """So many of a ``unit``, whose energy each is to be known."""

    unit: str = ""
    count: float = 0.0

    def add(self, count: float) -> None:
        """So many more."""
        self.count += count
