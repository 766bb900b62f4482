"""The energy distribution diagram as a picture: laid out by Graphviz, drawn as the paper draws it.

Graphviz is given boxes of known size and gives back where they are and how the arrows run; so the picture
looks the same wherever it is made, and needs no fonts there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from joulemap.accounting.diagram import Box, Diagram
from joulemap.errors import InputError
from joulemap.exports.graph import colours, drawing_of, headline, told
from joulemap.exports.levels import Drawing, Frame
from joulemap.exports.source import Source
from joulemap.units import fmt, fmt_share

_PER_INCH = 72.0
_CHARACTER, _PADDING, _HEIGHT, _HEADLINE = 7.0, 24.0, 42.0, 18.0
_MARGIN, _TITLE, _TITLE_CHARACTER = 16.0, 30.0, 8.0
_LONGEST, _ACROSS = 40, 4
_STYLE = (
    "text{font:12px system-ui,Helvetica,Arial,sans-serif;text-anchor:middle}"
    ".share{font-weight:600}.title{font-size:13px;font-weight:600;text-anchor:start;fill:#57534e}"
    ".frame{fill:#78716c;fill-opacity:.05}.headline{font-weight:600;text-anchor:start;fill:#57534e}"
    "path{fill:none;stroke:#78716c;stroke-width:1.2}rect{stroke:#a8a29e}"
)
_NUMBER = r"-?[\d.]+(?:e[-+]?\d+)?"
_POINT = re.compile(rf"({_NUMBER}),({_NUMBER})")


def write_svg(source: Source, path: Path) -> None:
    """Write the picture of the diagram that was asked for."""
    path.write_text(_svg(drawing_of(source)))


def svg(diagram: Diagram, depth: int = 1) -> str:
    """The diagram as an SVG document."""
    return _svg(Drawing(diagram, depth))


def _svg(drawing: Drawing) -> str:
    diagram, layout = drawing.diagram, _Layout.of(drawing)
    title = f"{diagram.path or 'program'} · {fmt(diagram.energy_j, 'J')}"
    width = max(layout.width, len(title) * _TITLE_CHARACTER) + 2 * _MARGIN
    height = layout.height + 2 * _MARGIN + _TITLE
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" role="img" aria-label="{escape(title)}">',
        f"<style>{_STYLE}</style>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path d="M0 0L8 4L0 8z" style="fill:#78716c;stroke:none"/></marker></defs>',
        f'<text class="title" x="{_MARGIN}" y="{_MARGIN + 10}">{escape(title)}</text>',
        f'<g transform="translate({_MARGIN} {_MARGIN + _TITLE})">',
    ]
    for number, frame in enumerate(drawing.frames):
        parts += _framed(frame.box, drawing, layout.frame[number])
    parts += [f'<path d="{curve}" marker-end="url(#tip)"/>' for curve in layout.curves]
    for number, box in enumerate(drawing.boxes):
        parts += _drawn(box, drawing, layout.centre[number])
    return "\n".join((*parts, "</g>", "</svg>", ""))


def _framed(box: Box, drawing: Drawing, corners: tuple[float, float, float, float]) -> Iterator[str]:
    left, top, right, bottom = corners
    yield f"<g><title>{escape(told(box, drawing))}</title>"
    yield (
        f'<rect class="frame" x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" '
        f'height="{bottom - top:.1f}" rx="12"/>'
    )
    text = escape(_cut(headline(box, drawing)))
    yield f'<text class="headline" x="{left + 10:.1f}" y="{top + 18:.1f}">{text}</text></g>'


def _drawn(box: Box, drawing: Drawing, centre: tuple[float, float]) -> Iterator[str]:
    x, y = centre
    width = _width(box)
    fill, text = colours(drawing.heat(box))
    corner = 0 if box.is_operation else 12
    share = fmt_share(drawing.share(box))
    yield f"<g><title>{escape(told(box, drawing))}</title>"
    yield (
        f'<rect x="{x - width / 2:.1f}" y="{y - _HEIGHT / 2:.1f}" width="{width:.1f}" height="{_HEIGHT:.0f}" '
        f'rx="{corner}" fill="{fill}"/>'
    )
    yield f'<text x="{x:.1f}" y="{y - 3:.1f}" fill="{text}">{escape(_cut(box.name))}</text>'
    yield f'<text class="share" x="{x:.1f}" y="{y + 14:.1f}" fill="{text}">{share}</text></g>'


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _width(box: Box) -> float:
    return max(len(_cut(box.name)), 7) * _CHARACTER + _PADDING


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where Graphviz put things, with the origin at the top left: boxes by their centre and frames by their
    corners, in the order of the drawing, and arrows as SVG paths."""

    width: float
    height: float
    centre: list[tuple[float, float]]
    frame: list[tuple[float, float, float, float]]
    curves: list[str]

    @classmethod
    def of(cls, drawing: Drawing) -> _Layout:
        found = _laid_out(drawing)
        left, bottom, right, top = map(float, found["bb"].split(","))
        placed = {one["name"]: one for one in found.get("objects", ())}
        centre = []
        for number in range(len(drawing.boxes)):
            ((x, y),) = _POINT.findall(placed[f"n{number}"]["pos"])
            centre.append((float(x) - left, top - float(y)))
        frames = []
        for number in range(len(drawing.frames)):
            west, south, east, north = map(float, placed[f"cluster{number}"]["bb"].split(","))
            frames.append((west - left, top - north, east - left, top - south))
        seen = [edge for edge in found.get("edges", ()) if edge.get("style") != "invis"]
        curves = [_curve(edge["pos"], left, top) for edge in seen]
        return cls(right - left, top - bottom, centre, frames, curves)


def _laid_out(drawing: Drawing) -> dict[str, Any]:
    """The boxes, frames and arrows as Graphviz places them, in its own JSON."""
    try:
        from pygraphviz import AGraph
    except ImportError:
        raise InputError(
            "Pictures of diagrams are laid out by Graphviz, which is not installed.",
            "pip install 'joulemap[export]', or write --to dot and use a Graphviz of your own.",
        ) from None
    graph = AGraph(string="\n".join(_skeleton(drawing)))
    found: dict[str, Any] = json.loads(graph.draw(format="json0", prog="dot"))
    return found


def _skeleton(drawing: Drawing) -> Iterator[str]:
    """What is to be laid out: names are numbers, and texts are room for them."""
    ids = {box.path: f"n{number}" for number, box in enumerate(drawing.boxes)}
    ids |= {f"{frame.box.path}/": f"cluster{number}" for number, frame in enumerate(drawing.frames)}
    yield f'strict digraph {{ node [shape=box, label="", fixedsize=true, height={_HEIGHT / _PER_INCH}];'
    yield from _places(drawing.items, drawing, ids)
    yield from (f"{ids[source.path]} -> {ids[target.path]};" for source, target in drawing.flows)
    for level in (drawing.items, *(frame.inside for frame in drawing.frames)):
        for above, below in _in_rows(level, drawing):
            yield f"{ids[above]} -> {ids[below]} [style=invis];"
    yield "}"


def _in_rows(level: Sequence[Frame | Box], drawing: Drawing) -> Iterator[tuple[str, str]]:
    """Boxes without dataflow stand some in a row, and not all beside each other."""
    apart = [item.path for item in level if isinstance(item, Box) and item.path not in drawing.flowing]
    yield from zip(apart, apart[_ACROSS:], strict=False)


def _places(items: Sequence[Frame | Box], drawing: Drawing, ids: Mapping[str, str]) -> Iterator[str]:
    for item in items:
        if isinstance(item, Frame):
            room = len(_cut(headline(item.box, drawing))) * _CHARACTER
            yield f"subgraph {ids[item.box.path + '/']} {{ margin=12; label=<{_room(room)}>;"
            yield from _places(item.inside, drawing, ids)
            yield "}"
        else:
            yield f"{ids[item.path]} [width={_width(item) / _PER_INCH}];"


def _room(width: float) -> str:
    """An empty label of a known size."""
    size = f'FIXEDSIZE="TRUE" WIDTH="{width:.0f}" HEIGHT="{_HEADLINE:.0f}" BORDER="0"'
    return f"<TABLE {size}><TR><TD></TD></TR></TABLE>"


def _curve(position: str, left: float, top: float) -> str:
    """Graphviz's ``e,tip start control control end …`` as a path from the start to the tip."""
    points = [(float(x) - left, top - float(y)) for x, y in _POINT.findall(position)]
    tips = points[:1] if position.startswith("e,") else []
    start, *rest = points[len(tips) :]
    bends = " ".join(f"{x:.1f},{y:.1f}" for x, y in rest)
    return f"M{start[0]:.1f},{start[1]:.1f} C{bends}" + "".join(f" L{x:.1f},{y:.1f}" for x, y in tips)
