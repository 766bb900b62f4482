"""Accounting similarity as a picture: the four matrices of the paper's Figure 9, as one SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from joulemap.comparing.similarity import Matrix, Similarity

_CELL, _GAP, _TOP, _CHARACTER = 56, 40, 58, 6.6
STYLE = (
    "text{font:12px system-ui,Helvetica,Arial,sans-serif;fill:#1c1917}"
    ".c{text-anchor:middle}.r{text-anchor:end}.t{font-weight:600}@media(prefers-color-scheme:dark)"
    "{.o{fill:#e7e5e4}}"
)
_WHITE, _TEAL, _RED, _BLUE = (255, 255, 255), (15, 118, 110), (220, 38, 38), (37, 99, 235)
_LONGEST = 18


def heat_map(alike: Similarity) -> str:
    """PCC from white to teal; MED red where the row draws more than the column, blue where less."""
    panels = (
        ("PCC of power (STPF)", alike.stpf_pcc, False),
        ("PCC of energy (STEF)", alike.stef_pcc, False),
        ("MED of power (STPF), W", alike.stpf_med_w, True),
        ("MED of energy (STEF), J", alike.stef_med_j, True),
    )
    left = 16 + min(max(map(len, alike.labels)), _LONGEST) * _CHARACTER
    side = len(alike.labels) * _CELL
    width, height = 2 * (left + side) + _GAP + 16, 2 * (_TOP + side) + _GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" role="img" aria-label="accounting similarity">',
        f"<style>{STYLE}</style>",
    ]
    for number, (title, matrix, signed) in enumerate(panels):
        x, y = (number % 2) * (left + side + _GAP) + left, (number // 2) * (_TOP + side + _GAP / 2) + _TOP
        parts += panel(title, alike.labels, matrix, signed, x, y)
    return "\n".join((*parts, "</svg>", ""))


def panel(
    title: str, labels: Sequence[str], matrix: Matrix, signed: bool, left: float, top: float
) -> Iterator[str]:
    """One matrix with its title and the labels of rows and columns; ``signed`` numbers are red or blue."""
    yield f'<text class="t o" x="{left:.0f}" y="{top - 34:.0f}">{escape(title)}</text>'
    known = [abs(cell) for row in matrix for cell in row if cell is not None]
    largest = max(known, default=0.0) or 1.0
    for number, label in enumerate(labels):
        name = escape(label if len(label) <= _LONGEST else f"{label[: _LONGEST - 1]}…")
        place = (number + 0.5) * _CELL
        yield f'<text class="r o" x="{left - 6:.0f}" y="{top + place + 4:.0f}">{name}</text>'
        short = escape(label if len(label) <= 8 else f"{label[:7]}…")
        yield f'<text class="c o" x="{left + place:.0f}" y="{top - 8:.0f}">{short}</text>'
    for row, cells in enumerate(matrix):
        for column, value in enumerate(cells):
            x, y = left + column * _CELL, top + row * _CELL
            yield from _cell(labels[row], labels[column], value, _fill(value, largest, signed), x, y, signed)


def _cell(
    row: str, column: str, value: float | None, fill: str, x: float, y: float, signed: bool
) -> Iterator[str]:
    told = "not defined" if value is None else f"{value:.6g}"
    shown = "–" if value is None else f"{value:+.3g}" if signed else f"{value:.3f}"
    yield f"<g><title>{escape(row)} against {escape(column)}: {told}</title>"
    size = f'width="{_CELL - 2}" height="{_CELL - 2}"'
    yield f'<rect x="{x:.0f}" y="{y:.0f}" {size} fill="{fill}" stroke="#e7e5e4"/>'
    yield f'<text class="c" x="{x + _CELL / 2 - 1:.0f}" y="{y + _CELL / 2 + 4:.0f}">{shown}</text></g>'


def _fill(value: float | None, largest: float, signed: bool) -> str:
    if value is None:
        return "#f5f5f4"
    end = _TEAL if not signed else _RED if value > 0 else _BLUE
    heat = 0.65 * min(abs(value) / largest, 1.0) if signed else 0.65 * max(value, 0.0)
    red, green, blue = (round(a + (b - a) * heat) for a, b in zip(_WHITE, end, strict=True))
    return f"#{red:02x}{green:02x}{blue:02x}"
