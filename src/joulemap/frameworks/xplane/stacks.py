"""The Python stacks of a compiled program: on which each instruction was made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from joulemap.frameworks import wire
from joulemap.frameworks.wire import Field

_FILES, _FUNCTIONS, _LOCATIONS, _FRAMES = 1, 2, 3, 4
_FILE, _FUNCTION = 1, 2
_LOCATION, _PARENT = 1, 2


class Call(NamedTuple):
    """A function that was running: its file, and its qualified name."""

    file: str
    function: str


@dataclass(frozen=True)
class Stacks:
    """Frames refer to the frame that called them, and share what stacks have in common. Numbers are from 1;
    0 is nothing."""

    frames: list[tuple[Call, int]] = field(default_factory=list)

    @classmethod
    def read(cls, proto: bytes, index: Field) -> Stacks:
        """From the index of a module."""
        parts: dict[int, list[Field]] = {}
        for part in wire.fields(proto, index.value, index.end):
            parts.setdefault(part.number, []).append(part)
        files = [wire.text(proto, part) for part in parts.get(_FILES, [])]
        functions = [wire.text(proto, part) for part in parts.get(_FUNCTIONS, [])]
        locations = [_values(proto, part) for part in parts.get(_LOCATIONS, [])]
        calls = [
            Call(_at(files, one.get(_FILE, 0)), _at(functions, one.get(_FUNCTION, 0))) for one in locations
        ]
        frames = [_values(proto, part) for part in parts.get(_FRAMES, [])]
        nowhere = Call("", "")
        return cls(
            [
                (
                    calls[one[_LOCATION] - 1] if 0 < one.get(_LOCATION, 0) <= len(calls) else nowhere,
                    one.get(_PARENT, 0),
                )
                for one in frames
            ]
        )

    def calls(self, number: int) -> tuple[Call, ...]:
        """The functions of a stack, the innermost first."""
        found: list[Call] = []
        while 0 < number <= len(self.frames) and len(found) < len(self.frames):
            call, number = self.frames[number - 1]
            found.append(call)
        return tuple(found)


def _values(proto: bytes, message: Field) -> dict[int, int]:
    return {part.number: part.value for part in wire.fields(proto, message.value, message.end)}


def _at(texts: list[str], number: int) -> str:
    return texts[number - 1] if 0 < number <= len(texts) else ""
