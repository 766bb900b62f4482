"""One plane of an XPlane file: its tables of names, its own stats, and where its lines lie."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from joulemap.frameworks import wire
from joulemap.frameworks.wire import Field

Value: TypeAlias = int | str | bytes

_NAME, _LINE, _EVENT_NAMES, _STAT_NAMES, _STAT = 2, 3, 4, 5, 6
_MAP_VALUE = 2
_ID, _ENTRY_NAME, _DISPLAY_NAME, _ENTRY_STAT = 1, 2, 4, 5
_KEY, _TEXT, _BYTES, _REFERENCE = 1, 5, 6, 7


@dataclass(slots=True)
class Described:
    """What events refer to: a name, a shorter one to show, and stats that hold for all such events."""

    number: int = 0
    name: str = ""
    display: str = ""
    stats: dict[str, Value] = field(default_factory=dict)


class Plane:
    """The tables are read at once; ``lines`` are read by ``events``."""

    def __init__(self, data: bytes, start: int, end: int) -> None:
        self.data = data
        parts: dict[int, list[Field]] = {}
        for part in wire.fields(data, start, end):
            parts.setdefault(part.number, []).append(part)
        self.name = wire.text(data, parts[_NAME][-1]) if _NAME in parts else ""
        self.lines: list[Field] = parts.get(_LINE, [])
        entries = [self._described(part) for part in parts.get(_STAT_NAMES, [])]
        self._stat_names = {entry.number: entry.name for entry in entries}
        self.stat_keys = {entry.name: entry.number for entry in entries}
        self.stats = dict(self._stat(part) for part in parts.get(_STAT, []))
        self.described = [*map(self._described, parts.get(_EVENT_NAMES, [])), Described()]
        """The names that events refer to; the last is for those that refer to nothing."""

    def _described(self, entry: Field) -> Described:
        """An entry of one of the two tables; that of stats has only a number and a name."""
        made = Described()
        for part in self._map_value(entry):
            if part.number == _ID:
                made.number = wire.signed(part.value)
            elif part.number == _ENTRY_NAME:
                made.name = wire.text(self.data, part)
            elif part.number == _DISPLAY_NAME:
                made.display = wire.text(self.data, part)
            elif part.number == _ENTRY_STAT:
                key, value = self._stat(part)
                made.stats[key] = value
        return made

    def _map_value(self, entry: Field) -> Iterator[Field]:
        for part in wire.fields(self.data, entry.value, entry.end):
            if part.number == _MAP_VALUE:
                yield from wire.fields(self.data, part.value, part.end)

    def _stat(self, stat: Field) -> tuple[str, Value]:
        key = ""
        value: Value = 0
        for part in wire.fields(self.data, stat.value, stat.end):
            if part.number == _KEY:
                key = self._stat_names.get(part.value, "")
            elif part.number == _BYTES:
                value = self.data[part.value : part.end]
            elif part.number in (_TEXT, _REFERENCE):
                value = self.text(*part)
            else:
                value = wire.signed(part.value)
        return key, value

    def text(self, kind: int, value: int, end: int) -> str:
        """A stat's value as text: one that the plane keeps, the stat's own, or a number's digits."""
        if kind == _REFERENCE:
            return self._stat_names.get(value, "")
        if kind in (_TEXT, _BYTES):
            return self.data[value:end].decode("utf-8", "replace")
        return str(value)
