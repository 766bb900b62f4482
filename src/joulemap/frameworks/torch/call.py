"""An operation as it was called, read from its signature."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

OWN = "aten::"


class NotRebuilt(Exception):
    """An operation cannot be called from what is known of it."""


@dataclass(frozen=True, slots=True)
class Call:
    """An operation as it was called; see ``joulemap.calibration.operation``. The type of a list of tensors is
    the list of their types. ``cold`` has a letter for each tensor, where it is known: 1 where it is not in a
    cache, and = where it is the argument before, or in its list the one at the same place. ``names`` are
    what an overload calls its arguments, except for those that it writes its results into."""

    key: str
    op: str
    shapes: Sequence[Any]
    strides: Sequence[Any]
    types: Sequence[Any]
    scalars: Sequence[Any]
    cold: str = ""
    names: Sequence[str] = ()

    @classmethod
    def of(cls, key: str) -> Call:
        op, shapes, strides, types, scalars, *cold = json.loads(key)
        columns = (json.loads(one) if one else [] for one in (shapes, strides, types, scalars))
        return cls(key, op, *columns, *cold)

    @property
    def name(self) -> str:
        """Without aten's namespace: what is known of its ``mul_`` is not known of another one."""
        return self.op.removeprefix(OWN)

    def at(self, column: Sequence[Any], place: int, otherwise: Any) -> Any:
        """What a column has for an argument; columns may be short."""
        return column[place] if place < len(column) else otherwise

    def has(self, name: str) -> bool:
        """Whether there is such an argument, given or not."""
        return name in self.names

    def shape(self, name: str) -> Sequence[int]:
        """Of the tensor that was given for an argument."""
        return list(self._named(self.shapes, name) or ())

    def number(self, name: str) -> int | None:
        """The whole number that was given for an argument; None where there was none."""
        given = self._named(self.scalars, name)
        return given if isinstance(given, int) else None

    def numbers(self, name: str) -> Sequence[int]:
        """The list of whole numbers that was given for an argument."""
        return list(self._named(self.scalars, name) or ())

    def _named(self, column: Sequence[Any], name: str) -> Any:
        return self.at(column, self.names.index(name), None) if name in self.names else None


def in_a_line(error: Exception) -> str:
    """An error as a reason: what it is, and the first line of what it says, if it says anything. Ours say it
    in words."""
    first = next(iter(str(error).splitlines()), "")[:200]
    kind = "" if isinstance(error, NotRebuilt) else type(error).__name__
    return ": ".join(filter(None, (kind, first)))
