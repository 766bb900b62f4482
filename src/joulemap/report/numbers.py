"""Numbers as the page holds them: short enough for thousands of them, finer than any meter."""

from __future__ import annotations

from collections.abc import Iterable

from joulemap.traces import Float64

DIGITS = 7
"""Significant digits: a part in a million, where a meter knows a part in a thousand."""


def short(value: float) -> float:
    """A number with so many digits as the page keeps."""
    return float(f"{value:.{DIGITS}g}")


def column(values: Float64 | Iterable[float]) -> list[float]:
    """A column of numbers, shortened; whole ones are written without a point."""
    return [int(number) if number.is_integer() else number for number in map(short, values)]
