"""Results for people: Markdown tables, and plots as SVG that need nothing but a browser."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as Xml

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 760, 380, 74, 48, 30, 230
COLOURS = (
    *("#00897b", "#e65100", "#3949ab", "#8e24aa", "#6d4c41"),
    *("#c0a000", "#d81b60", "#039be5", "#7cb342", "#757575"),
)
_STYLE = "text{font:12px system-ui,sans-serif;fill:#888}.title{font-weight:600;font-size:13px}"


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; every column but the first is set right."""
    marks = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, marks, *rows))


@dataclass(frozen=True, slots=True)
class Series:
    """Points with a name; joined by a line where asked."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    joined: bool = False


@dataclass(frozen=True, slots=True)
class Axis:
    """A scale from numbers to pixels; logarithmic ones leave out what is not above zero."""

    label: str
    low: float
    high: float
    log: bool

    @classmethod
    def over(cls, label: str, values: Sequence[float], log: bool) -> Axis:
        kept = [value for value in values if not log or value > 0]
        low, high = (min(kept), max(kept)) if kept else (0.1 if log else 0.0, 1.0)
        if log:
            return cls(label, 10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high)), log)
        margin = (high - low or 1.0) * 0.05
        return cls(label, min(low, 0.0), high + margin, log)

    def place(self, value: float) -> float:
        """Where a value lies, from 0 to 1."""
        if self.log:
            return math.log(value / self.low) / (math.log(self.high / self.low) or 1.0)
        return (value - self.low) / (self.high - self.low or 1.0)

    def ticks(self) -> list[float]:
        if self.log:
            first, last = round(math.log10(self.low)), round(math.log10(self.high))
            return [10.0**power for power in range(first, last + 1, max((last - first) // 6, 1))]
        step = 10 ** math.floor(math.log10((self.high - self.low) / 2))
        step *= 2 if (self.high - self.low) / step > 8 else 1
        return [step * number for number in range(math.ceil(self.low / step), int(self.high / step) + 1)]


def plot(
    path: Path,
    title: str,
    series: Sequence[Series],
    labels: tuple[str, str],
    log: tuple[bool, bool] = (False, False),
) -> None:
    """Write points as an SVG file."""
    x = Axis.over(labels[0], [value for one in series for value in one.x], log[0])
    y = Axis.over(labels[1], [value for one in series for value in one.y], log[1])
    root = Xml.Element("svg", xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img")
    Xml.SubElement(root, "title").text = title
    Xml.SubElement(root, "style").text = _STYLE
    _text(root, LEFT, 18, title, "start", "title")
    _frame(root, x, y)
    for number, one in enumerate(series):
        _draw(root, one, x, y, COLOURS[number % len(COLOURS)])
        _legend(root, one.name, number)
    path.parent.mkdir(parents=True, exist_ok=True)
    Xml.indent(root)
    path.write_text(Xml.tostring(root, "unicode") + "\n")


def _at(x: Axis, y: Axis, across: float, up: float) -> tuple[float, float]:
    return (
        round(LEFT + x.place(across) * (WIDTH - LEFT - RIGHT), 1),
        round(HEIGHT - BOTTOM - y.place(up) * (HEIGHT - BOTTOM - TOP), 1),
    )


def _frame(root: Xml.Element, x: Axis, y: Axis) -> None:
    for tick in x.ticks():
        across, _ = _at(x, y, tick, y.low)
        _line(root, across, TOP, across, HEIGHT - BOTTOM)
        _text(root, across, HEIGHT - BOTTOM + 16, f"{tick:g}", "middle")
    for tick in y.ticks():
        _, up = _at(x, y, x.low, tick)
        _line(root, LEFT, up, WIDTH - RIGHT, up)
        _text(root, LEFT - 6, up + 4, f"{tick:g}", "end")
    _text(root, (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, x.label, "middle")
    turned = _text(root, 16, (TOP + HEIGHT - BOTTOM) / 2, y.label, "middle")
    turned.set("transform", f"rotate(-90 16 {(TOP + HEIGHT - BOTTOM) / 2})")


def _draw(root: Xml.Element, series: Series, x: Axis, y: Axis, colour: str) -> None:
    pairs = zip(series.x, series.y, strict=True)
    places = [_at(x, y, a, b) for a, b in pairs if (a > 0 or not x.log) and (b > 0 or not y.log)]
    if series.joined:
        points = " ".join(f"{across},{up}" for across, up in places)
        Xml.SubElement(root, "polyline", points=points, fill="none", stroke=colour)
    for across, up in places:
        circle = {"cx": str(across), "cy": str(up), "r": "3.5", "fill": colour, "fill-opacity": "0.7"}
        Xml.SubElement(root, "circle", circle)


def _legend(root: Xml.Element, name: str, number: int) -> None:
    left, up = WIDTH - RIGHT + 14, TOP + 10 + 18 * number
    Xml.SubElement(root, "circle", cx=str(left), cy=str(up), r="4", fill=COLOURS[number % len(COLOURS)])
    _text(root, left + 10, up + 4, name, "start")


def _line(root: Xml.Element, x1: float, y1: float, x2: float, y2: float) -> None:
    ends = {"x1": x1, "y1": y1, "x2": x2, "y2": y2}
    Xml.SubElement(root, "line", {k: str(v) for k, v in ends.items()}, stroke="#8884")


def _text(root: Xml.Element, x: float, y: float, text: str, anchor: str, kind: str = "") -> Xml.Element:
    element = Xml.SubElement(root, "text", {"x": str(x), "y": str(y), "text-anchor": anchor})
    element.text = text
    if kind:
        element.set("class", kind)
    return element
