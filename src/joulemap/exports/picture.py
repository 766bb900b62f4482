"""The energy distribution diagram as a picture: laid out by Graphviz, drawn as the paper draws it.

Graphviz is given boxes of known size and gives back where they are and how the arrows run; so the picture
looks the same wherever it is made, and needs no fonts there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from joulemap.accounting.diagram import Box, Diagram
from joulemap.errors import InputError
from joulemap.exports.graph import colours, diagram_of, told
from joulemap.exports.source import Source
from joulemap.units import fmt, fmt_share

if TYPE_CHECKING:
    from pygraphviz import AGraph

_PER_INCH = 72.0
_CHARACTER, _PADDING, _HEIGHT = 7.0, 24.0, 42.0
_MARGIN, _TITLE, _TITLE_CHARACTER = 16.0, 30.0, 8.0
_LONGEST = 40
_STYLE = (
    "text{font:12px system-ui,Helvetica,Arial,sans-serif;text-anchor:middle}"
    ".share{font-weight:600}.title{font-size:13px;font-weight:600;text-anchor:start;fill:#57534e}"
    "path{fill:none;stroke:#78716c;stroke-width:1.2}rect{stroke:#a8a29e}"
)
_NUMBER = r"-?[\d.]+(?:e[-+]?\d+)?"
_POINT = re.compile(rf"({_NUMBER}),({_NUMBER})")


def write_svg(source: Source, path: Path) -> None:
    """Write the picture of the diagram that was asked for."""
    path.write_text(svg(diagram_of(source)))


def svg(diagram: Diagram) -> str:
    """The diagram as an SVG document."""
    layout = _Layout.of(diagram)
    most = max(box.share for box in diagram.boxes)
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
        *(f'<path d="{curve}" marker-end="url(#tip)"/>' for curve in layout.curves),
    ]
    for box in diagram.boxes:
        parts += _drawn(box, layout, box.share / most if most else 0.0)
    return "\n".join((*parts, "</g>", "</svg>", ""))


def _drawn(box: Box, layout: _Layout, heat: float) -> Iterator[str]:
    x, y = layout.centre[box.name]
    width = _width(box)
    fill, text = colours(heat)
    corner = 0 if box.is_operation else 12
    yield f"<g><title>{escape(told(box))}</title>"
    yield (
        f'<rect x="{x - width / 2:.1f}" y="{y - _HEIGHT / 2:.1f}" width="{width:.1f}" height="{_HEIGHT:.0f}" '
        f'rx="{corner}" fill="{fill}"/>'
    )
    yield f'<text x="{x:.1f}" y="{y - 3:.1f}" fill="{text}">{escape(_shown(box))}</text>'
    yield f'<text class="share" x="{x:.1f}" y="{y + 14:.1f}" fill="{text}">{fmt_share(box.share)}</text></g>'


def _shown(box: Box) -> str:
    return box.name if len(box.name) <= _LONGEST else f"{box.name[: _LONGEST - 1]}…"


def _width(box: Box) -> float:
    return max(len(_shown(box)), 7) * _CHARACTER + _PADDING


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where Graphviz put things, with the origin at the top left: centres by name, arrows as SVG paths."""

    width: float
    height: float
    centre: dict[str, tuple[float, float]]
    curves: list[str]

    @classmethod
    def of(cls, diagram: Diagram) -> _Layout:
        graph = _laid_out(diagram)
        left, bottom, right, top = map(float, graph.graph_attr["bb"].split(","))
        ids = {f"n{number}": box.name for number, box in enumerate(diagram.boxes)}
        centre = {}
        for node in graph.nodes():
            ((x, y),) = _POINT.findall(node.attr["pos"])
            centre[ids[str(node)]] = float(x) - left, top - float(y)
        curves = [_curve(edge.attr["pos"], left, top) for edge in graph.edges()]
        return cls(right - left, top - bottom, centre, curves)


def _laid_out(diagram: Diagram) -> AGraph:
    try:
        from pygraphviz import AGraph
    except ImportError:
        raise InputError(
            "Pictures of diagrams are laid out by Graphviz, which is not installed.",
            "pip install 'joulemap[export]', or write --to dot and use a Graphviz of your own.",
        ) from None
    graph = AGraph(directed=True, strict=True)
    graph.node_attr.update(shape="box", label="", fixedsize="true", height=_HEIGHT / _PER_INCH)
    ids = {box.name: f"n{number}" for number, box in enumerate(diagram.boxes)}
    for box in diagram.boxes:
        graph.add_node(ids[box.name], width=_width(box) / _PER_INCH)
    for source, target in diagram.edges:
        graph.add_edge(ids[source], ids[target])
    graph.layout(prog="dot")
    return graph


def _curve(position: str, left: float, top: float) -> str:
    """Graphviz's ``e,tip start control control end …`` as a path from the start to the tip."""
    points = [(float(x) - left, top - float(y)) for x, y in _POINT.findall(position)]
    tips = points[:1] if position.startswith("e,") else []
    start, *rest = points[len(tips) :]
    bends = " ".join(f"{x:.1f},{y:.1f}" for x, y in rest)
    return f"M{start[0]:.1f},{start[1]:.1f} C{bends}" + "".join(f" L{x:.1f},{y:.1f}" for x, y in tips)
