"""Truth, time-based and calibrated beside each other, with their intervals, as one SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from joulemap.comparing.heatmap import STYLE
from joulemap.units import fmt, fmt_share
from joulemap.validating.report import CALIBRATED, TIME, Report, Row

_BAR, _GAP, _WIDTH, _TOP, _CHARACTER, _LONGEST = 15, 14, 460.0, 64, 6.6, 44
_GROUP, _HEAD, _LEGEND = 3 * _BAR + _GAP, 30, 800.0
_HEADS = {"operation": "operations", "module": "modules, with all that is in them, at a scale of their own"}
_COLOURS = {"truth": "#57534e", TIME: "#e65100", CALIBRATED: "#0f766e"}
_WORDS = {"truth": "truth, by repeating in place", TIME: "by time", CALIBRATED: "calibrated"}
_LINES = (
    "line{stroke:#a8a29e}.e{stroke:#1c1917;stroke-width:1.5}"
    "@media(prefers-color-scheme:dark){.e{stroke:#e7e5e4}}"
)

Bar = tuple[str, float, float, float]
"""What it shows, joules, and their interval."""


def picture(report: Report, title: str = "Joules a step") -> str:
    """Operations, then modules, most energy first."""
    kinds = {kind: rows for kind in _HEADS if (rows := report.of(kind))}
    names = [row.name for rows in kinds.values() for row in rows]
    left = 20 + min(max(map(len, names), default=8), _LONGEST) * _CHARACTER
    height = _TOP + max(len(kinds), 1) * _HEAD + len(names) * _GROUP + 16
    width = max(left + _WIDTH + 110, _LEGEND)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" role="img" aria-label="accuracy">',
        f"<style>{STYLE}{_LINES}</style>",
        f'<text class="t o" x="16" y="22">{escape(title)}</text>',
        *_legend(report),
    ]
    if not kinds:
        parts.append(f'<text class="o" x="16" y="{_TOP + 14}">{escape(_nothing(report))}</text>')
    top = _TOP
    for kind, rows in kinds.items():
        parts += _panel(kind, rows, left, top)
        top += _HEAD + len(rows) * _GROUP
    return "\n".join((*parts, "</svg>", ""))


def page(report: Report, title: str = "Joules a step") -> str:
    """The same as a page of its own."""
    head = '<!doctype html><html lang="en"><meta charset="utf-8"><title>joulemap validate</title>'
    return f"{head}<style>:root{{color-scheme:light dark}}</style>{picture(report, title)}</html>\n"


def _bars(row: Row) -> list[Bar]:
    half_j = row.half_j
    found = [("truth", row.truth_j, max(row.truth_j - half_j, 0.0), row.truth_j + half_j)]
    return found + [(rule, one.energy_j, one.low_j, one.high_j) for rule, one in row.charges.items()]


def _nothing(report: Report) -> str:
    why = "a larger --budget has more blocks of each" if report.is_spent else report.reached
    return f"Nothing is known well enough: {why}."


def _legend(report: Report) -> Iterator[str]:
    """What is drawn, and how far off it is: of operations, or of modules where nothing else is known."""
    drawn = {rule for row in report.rows if row.is_known for rule in row.charges}
    x = 16.0
    for what, word in _WORDS.items():
        if what != "truth" and what not in drawn:
            continue
        found = next(filter(None, (report.errors(kind, what) for kind in _HEADS)), None)
        said = word if found is None else f"{word}: off by {fmt_share(found.mean)} on the mean"
        yield f'<rect x="{x:.0f}" y="36" width="12" height="12" fill="{_COLOURS[what]}"/>'
        yield f'<text class="o" x="{x + 18:.0f}" y="46">{escape(said)}</text>'
        x += 40 + len(said) * _CHARACTER


def _panel(kind: str, rows: Sequence[Row], left: float, top: float) -> Iterator[str]:
    bars = [_bars(row) for row in rows]
    most_j = max(high for some in bars for *_, high in some) or 1.0
    yield f'<text class="o" x="{left:.0f}" y="{top + 14}">{_HEADS[kind]}</text>'
    first = top + _HEAD
    for number, (row, some) in enumerate(zip(rows, bars, strict=True)):
        yield from _group(row, some, left, first + number * _GROUP, most_j)
    base = first + len(rows) * _GROUP - _GAP / 2
    yield f'<line x1="{left:.0f}" y1="{first:.0f}" x2="{left:.0f}" y2="{base:.0f}"/>'


def _group(row: Row, bars: Sequence[Bar], left: float, top: float, most_j: float) -> Iterator[str]:
    name = row.name if len(row.name) <= _LONGEST else f"{row.name[: _LONGEST - 1]}…"
    middle = top + len(bars) * _BAR / 2 + 4
    yield f'<text class="r o" x="{left - 8:.0f}" y="{middle:.0f}">{escape(name)}</text>'
    for place, (what, energy_j, low_j, high_j) in enumerate(bars):
        y = top + place * _BAR
        end, low, high = (left + _WIDTH * value / most_j for value in (energy_j, low_j, high_j))
        told = f"{row.name}, {_WORDS[what]}: {fmt(energy_j, 'J')} ({fmt(low_j, 'J')} to {fmt(high_j, 'J')})"
        yield f"<g><title>{escape(told)}</title>"
        size = f'width="{max(end - left, 0.5):.1f}" height="{_BAR - 2}"'
        yield f'<rect x="{left:.1f}" y="{y:.1f}" {size} fill="{_COLOURS[what]}"/>'
        centre = y + _BAR / 2 - 1
        yield f'<line class="e" x1="{low:.1f}" y1="{centre:.1f}" x2="{high:.1f}" y2="{centre:.1f}"/>'
        error = None if what == "truth" else row.error(what)
        said = fmt(energy_j, "J") if error is None else f"{100 * error:+.1f} %"
        yield f'<text class="o" x="{max(end, high) + 6:.1f}" y="{y + 11:.1f}">{escape(said)}</text></g>'
