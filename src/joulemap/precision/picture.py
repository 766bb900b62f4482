"""The paper's Figures 7 and 8 as one SVG: ASSS and ASSW as curves, stability as a heat map."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from joulemap.comparing.heatmap import STYLE, panel
from joulemap.precision.report import Report
from joulemap.units import fmt_seconds

_WIDTH, _HEIGHT, _LEFT, _TOP, _GAP, _CELL = 300.0, 180.0, 60.0, 50.0, 70.0, 56
_LINE = "polyline{fill:none;stroke:#0f766e;stroke-width:2}circle{fill:#0f766e}line{stroke:#a8a29e}"
_LOWEST = 0.7
_CHARACTER = 8.0
"""Room for one of a label, so that labels do not run into each other: where they would, some are left out."""

Point = tuple[str, float | None]


def picture(report: Report) -> str:
    """All three side by side."""
    asss = [(fmt_seconds(one.period_s), one.similarity) for one in report.asss]
    assw = [(str(one.experiments), one.similarity) for one in report.assw]
    letters = [str(number + 1) for number in range(len(report.stability))]
    side = _CELL * len(letters)
    width, height = 2 * (_WIDTH + _GAP) + _LEFT + side + 40, _TOP + max(_HEIGHT, side) + 60
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" role="img" aria-label="precision">',
        f"<style>{STYLE}{_LINE}</style>",
        *_curve("ASSS by sampling period", asss, _LEFT),
        *_curve("ASSW by number of experiments", assw, _LEFT + _WIDTH + _GAP),
        *panel("stability, PCC", letters, report.stability, False, 2 * (_WIDTH + _GAP) + _LEFT, _TOP),
    ]
    return "\n".join((*parts, "</svg>", ""))


def _curve(title: str, points: Sequence[Point], left: float) -> Iterator[str]:
    """A line through the points that are defined, on an axis that ends at 1."""
    known = [(place, label, value) for place, (label, value) in enumerate(points) if value is not None]
    lowest = min([_LOWEST, *(math.floor(value * 10) / 10 for _, _, value in known)])
    apart = _WIDTH / max(len(points) - 1, 1)
    yield f'<text class="t o" x="{left:.0f}" y="{_TOP - 34:.0f}">{escape(title)}</text>'
    yield f'<line x1="{left:.0f}" y1="{_TOP:.0f}" x2="{left:.0f}" y2="{_TOP + _HEIGHT:.0f}"/>'
    base = _TOP + _HEIGHT
    yield f'<line x1="{left:.0f}" y1="{base:.0f}" x2="{left + _WIDTH:.0f}" y2="{base:.0f}"/>'
    for value in (lowest, (lowest + 1) / 2, 1.0):
        y = _height(value, lowest)
        yield f'<text class="r o" x="{left - 6:.0f}" y="{y + 4:.0f}">{value:.3g}</text>'
    dots = [(left + place * apart, _height(value, lowest)) for place, _, value in known]
    yield f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in dots)}"/>'
    every = math.ceil(max((len(label) for label, _ in points), default=0) * _CHARACTER / apart)
    for (x, y), (place, label, value) in zip(dots, known, strict=True):
        told = f"<title>{escape(label)}: {value:.6f}</title>"
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5">{told}</circle>'
        if place % max(every, 1) == 0:
            yield f'<text class="c o" x="{x:.1f}" y="{base + 18:.0f}">{escape(label)}</text>'


def _height(value: float, lowest: float) -> float:
    return _TOP + _HEIGHT * (1 - value) / (1 - lowest)
