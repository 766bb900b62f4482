"""What the joins need of Kineto's events on the CPU."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joulemap.frameworks.kineto_names import Role
from joulemap.labels import Labels
from joulemap.traces import Int64

NONE = -1


@dataclass(frozen=True, eq=False)
class Calls:
    """Events on the CPU. ``thread`` is torch's number, or 0 where unknown."""

    name: Labels
    role: NDArray[np.int64]
    lane: Int64
    start_ns: Int64
    thread: Int64
    sequence: Int64
    forward_thread: Int64

    def is_named(self, pattern: re.Pattern[str]) -> NDArray[np.bool_]:
        """Which events have a name that begins like this."""
        words = np.array([pattern.match(word) is not None for word in self.name.words], bool)
        return words[self.name.codes] if len(words) else np.zeros(len(self.name), bool)

    @property
    def is_backward(self) -> NDArray[np.bool_]:
        """The autograd engine's own events: they carry the sequence number of a forward operation."""
        gradient = (self.role == Role.OP) & (self.sequence >= 0) & (self.forward_thread > 0)
        return np.asarray((self.role == Role.EVALUATE) | gradient)
