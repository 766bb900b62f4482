"""How large the arrays are that a call is given: bytes, shapes and types, without copying or computing any.

Lists, tuples and dicts are looked into one level deep, and not further than a few hundred elements.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from joulemap.calls.remembered import ById

UNKNOWN = -1
FAR = 256
"""Elements of a container that are looked at."""

PLAIN = frozenset(map(id, (int, float, bool, str, bytes, type(None), complex, range, slice)))
"""What is no array, and has none in it; by ``id``, since a program's class may have no hash."""

_CONTAINERS = frozenset(map(id, (list, tuple, dict)))


class Sizes:
    """Remembers which types are arrays, so that a number costs next to nothing."""

    def __init__(self) -> None:
        self.arrays = ById()
        self._is_array = self.arrays.get

    def of(self, values: Iterable[Any]) -> tuple[int, tuple[Any, ...]]:
        """Bytes of all arrays among some values, -1 where that is not known; and what says their shapes."""
        total, seen = 0, ()
        for value in values:
            key = id(type(value))
            if key in PLAIN:
                continue
            found = self._container(value) if key in _CONTAINERS else self._one(value, key)
            if found is not None:
                total = UNKNOWN if UNKNOWN in (found[0], total) else total + found[0]
                seen += found[1]
        return total, seen

    def of_object(self, owner: Any) -> int:
        """Bytes of the object whose method is called; -1 where it is no array."""
        found = self._one(owner, id(type(owner)))
        return UNKNOWN if found is None else found[0]

    def _container(self, values: Any) -> tuple[int, tuple[Any, ...]] | None:
        inside = list(values.values() if type(values) is dict else values)[:FAR]
        total, seen = 0, ()
        for value in inside:
            key = id(type(value))
            found = None if key in PLAIN else self._one(value, key)
            if found is not None:
                total = UNKNOWN if UNKNOWN in (found[0], total) else total + found[0]
                seen += found[1]
        return (UNKNOWN if seen and len(values) > FAR else total), seen

    def _one(self, value: Any, key: int) -> tuple[int, tuple[Any, ...]] | None:
        """An array's bytes, shape and type; None for anything else. ``key`` is the ``id`` of its type: to ask
        for that here, or to look up a method, would take one more level of the program's recursion."""
        is_array = self._is_array(key)
        if is_array is False:
            return None
        try:
            if is_array is None:
                kind = type(value)
                self.arrays.keep(kind, hasattr(kind, "shape") and hasattr(kind, "dtype"))
                return self._one(value, key)
            shape, dtype = value.shape, value.dtype
            return _bytes(value, shape, dtype), ((shape, dtype),)
        except Exception:  # noqa: BLE001 - an array that cannot say: a symbolic one, or one that is gone
            return UNKNOWN, ()


def _bytes(value: Any, shape: Any, dtype: Any) -> int:
    """From what the array says of itself; never by evaluating it."""
    if hasattr(type(value), "nbytes"):
        return int(value.nbytes)
    count = 1
    for length in shape:
        if length is None:
            return UNKNOWN
        count *= int(length)
    size = getattr(dtype, "itemsize", None) or getattr(dtype, "size", None)
    return UNKNOWN if size is None else count * int(size)


def spelled(seen: tuple[Any, ...]) -> str:
    """Shapes and types as JSON: ``[[[32, 784], "float32"]]``."""
    return json.dumps([[_lengths(shape), _type_name(dtype)] for shape, dtype in seen])


def _lengths(shape: Any) -> list[int | None]:
    try:
        return [None if length is None else int(length) for length in shape]
    except (TypeError, ValueError):  # of unknown rank, or symbolic
        return []


def _type_name(dtype: Any) -> str:
    name = getattr(dtype, "name", None)
    return name if isinstance(name, str) else str(dtype).removeprefix("torch.")
