"""Rows in the order of the program: a module before what is inside it, siblings by energy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from joulemap.comparing.difference import Difference
from joulemap.comparing.variant import WHOLE
from joulemap.program import SEPARATOR, leaf, split
from joulemap.units import fmt_pm, fmt_share


@dataclass(frozen=True, slots=True)
class Entry:
    """A row, how deep it stands, and what it is called there."""

    depth: int
    label: str
    row: Difference


def outline(rows: Sequence[Difference], nested: bool) -> list[Entry]:
    """The whole program first; modules nested by their paths, or all rows as they are."""
    if not nested:
        return [Entry(0, row.name, row) for row in rows]
    names = {row.name for row in rows}
    inside: dict[str, list[Difference]] = {}
    for row in rows:
        inside.setdefault(_parent(row.name, names), []).append(row)
    return list(_walk("", inside, 0))


def _parent(name: str, names: set[str]) -> str:
    """The nearest module around it that has a row."""
    parts = [] if name == WHOLE else split(name)
    paths = (SEPARATOR.join(parts[:end]) for end in range(len(parts) - 1, 0, -1))
    return next((path for path in paths if path in names), "")


def _walk(path: str, inside: dict[str, list[Difference]], depth: int) -> Iterator[Entry]:
    for row in _in_series(inside.get(path, [])):
        yield Entry(depth, leaf(row.name) if depth else row.name, row)
        yield from _walk(row.name, inside, depth + 1)


def _in_series(rows: Sequence[Difference]) -> list[Difference]:
    """By energy, and ``layer_0, layer_1 …`` in their own order where the first of them would stand."""
    place: dict[str, int] = {}
    for number, row in enumerate(rows):
        place.setdefault(_stem(row.name), number)
    return sorted(rows, key=lambda row: (place[_stem(row.name)], _number(row.name)))


def _stem(name: str) -> str:
    return name.rstrip("0123456789")


def _number(name: str) -> int:
    digits = name[len(_stem(name)) :]
    return int(digits) if digits else -1


def percent(value: float | None) -> str:
    """``+4.8 %``, or ``×12.3`` from ten times as much on; a dash where there is nothing to be a part of."""
    if value is None:
        return "–"
    if value >= 9:
        return f"×{_three_digits(1 + value)}"
    text = fmt_share(abs(value))
    return text if text == fmt_share(0.0) else f"{'+' if value > 0 else '-'}{text}"


def _three_digits(value: float) -> str:
    return f"{float(f'{value:.3g}'):,.12g}"


def difference(row: Difference) -> str:
    """``+14.3 ± 1.5 J``; without the interval where it is not known."""
    half_j = (row.high_j - row.low_j) / 2 if row.spread else None
    return ("+" if row.difference_j > 0 else "") + fmt_pm(row.difference_j, "J", half_j)


def change(row: Difference) -> str:
    """``+4.8 % (+3.7 % … +5.9 %)``."""
    if row.relative_low is None:
        return percent(row.relative)
    return f"{percent(row.relative)} ({percent(row.relative_low)} … {percent(row.relative_high)})"
