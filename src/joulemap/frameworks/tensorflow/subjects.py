"""What ran, as a profile tells it, and what a namer makes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from joulemap.frameworks.tensorflow.roles import Role
from joulemap.labels import Labels


@dataclass(frozen=True, slots=True)
class Subject:
    """A node, an eager operation, an instruction of a compiled program, a kernel, or a part of the runtime.

    ``name`` is the profile's. ``node`` and ``op`` are a graph node's, where one ran or launched this;
    ``program`` and ``instruction`` a compiled program's; ``path`` is the framework's name of the latter.
    """

    role: Role
    name: str
    node: str = ""
    op: str = ""
    program: int = 0
    instruction: str = ""
    path: str = ""


@dataclass(frozen=True, slots=True)
class Context:
    """Where it ran: the function, and the ranges around it that name a layer and a phase; empty: unknown."""

    function: str = ""
    scope: str = ""
    phase: str = ""


@dataclass(frozen=True, slots=True)
class Named:
    """A qualified name, the operation's type, and the phase."""

    name: str
    op: str
    phase: str


Namer: TypeAlias = Callable[[Sequence[tuple[Subject, Context]]], list[Named]]
"""Names many things at once, since what ran together tells which graph it was."""


@dataclass(frozen=True, eq=False)
class NamedRows:
    """For each row its place in a table of names."""

    place: NDArray[np.int32]
    table: Sequence[Named]

    def column(self, words: Callable[[Named], str]) -> Labels:
        """One of the three for every row."""
        return Labels(self.place, tuple(map(str, range(len(self.table))))).mapped([*map(words, self.table)])

    @property
    def name(self) -> Labels:
        return self.column(lambda one: one.name)

    @property
    def op(self) -> Labels:
        return self.column(lambda one: one.op)

    @property
    def phase(self) -> Labels:
        return self.column(lambda one: one.phase)
