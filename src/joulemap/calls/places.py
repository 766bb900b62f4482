"""Where the sites of a program are, by number: files one after the other, as they were rewritten."""

from __future__ import annotations

import linecache
import tokenize
from bisect import bisect_right
from contextlib import suppress
from dataclasses import dataclass
from types import CodeType

LONGEST_TEXT = 200


@dataclass(frozen=True)
class Place:
    """The span of what a site calls (lines from 1, columns of bytes from 0), and the function around it."""

    line: int
    column: int
    end_line: int
    end_column: int
    function: str


class Places:
    """All sites that were made so far."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._files: list[tuple[str, list[Place]]] = []
        self._lines: dict[str, list[str]] = {}
        self._spots: dict[tuple[str, int, int, int, int], int] = {}
        self.next = 0

    def add(self, file: str, places: list[Place]) -> None:
        """The sites of another file, from ``next`` on."""
        self._firsts.append(self.next)
        self._files.append((file, places))
        self.next += len(places)

    def number_of(self, spot: tuple[str, int, int, int, int]) -> int:
        """The number of a site in a patched file, by its file and its span in characters from 1."""
        if spot not in self._spots:
            self._spots[spot] = self.next
            self.add(spot[0], [])
            self.next += 1
        return self._spots[spot]

    def describe(self, number: int, code: CodeType) -> list[int | str]:
        """File, span, text and function as the table of call sites has them. Of a site in a patched file the
        text is looked for in the source of the code that called."""
        row = bisect_right(self._firsts, number) - 1
        file, places = self._files[row]
        if not places:
            spot = next(spot for spot, known in self._spots.items() if known == number)
            return _patched_row(spot, linecache.getlines(code.co_filename), code)
        place = places[number - self._firsts[row]]
        lines = self._read(file)
        column, end_column = (
            _characters(lines, place.line, place.column),
            _characters(lines, place.end_line, place.end_column),
        )
        text = _text(lines, place.line, column, place.end_line, end_column)
        return [file, place.line, column + 1, place.end_line, end_column + 1, text, place.function]

    def _read(self, file: str) -> list[str]:
        if file not in self._lines:
            self._lines[file] = []
            with suppress(OSError, SyntaxError, UnicodeDecodeError), tokenize.open(file) as source:
                self._lines[file] = source.read().split("\n")
        return self._lines[file]


def _patched_row(spot: tuple[str, int, int, int, int], lines: list[str], code: CodeType) -> list[int | str]:
    """A site by what stands in its patched file."""
    from joulemap.calls.patching import called_at

    text = called_at("".join(lines), spot[1:])
    function = getattr(code, "co_qualname", code.co_name).replace(".<locals>", "")
    return [*spot, text[:LONGEST_TEXT], function]


def _characters(lines: list[str], line: int, column: int) -> int:
    """Bytes of a line as characters."""
    if not 0 < line <= len(lines):
        return column
    return len(lines[line - 1].encode()[:column].decode(errors="replace"))


def _text(lines: list[str], line: int, column: int, end_line: int, end_column: int) -> str:
    """What stands in the source, on one line."""
    if not 0 < end_line <= len(lines):
        return ""
    span = lines[line - 1 : end_line]
    span[-1] = span[-1][:end_column]
    span[0] = span[0][column:]
    return " ".join(" ".join(span).split())[:LONGEST_TEXT]
