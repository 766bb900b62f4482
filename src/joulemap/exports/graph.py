"""The energy distribution diagram (EDD) of a layer as a Graphviz graph: boxes with shares, and dataflow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from joulemap.accounting.diagram import Box, Diagram, energy_distribution
from joulemap.errors import InputError
from joulemap.exports.levels import Drawing, Frame
from joulemap.exports.source import Source
from joulemap.units import fmt, fmt_pm, fmt_share

_LIGHT, _VIBRANT = (255, 247, 237), (234, 88, 12)
_DARK_TEXT, _LIGHT_TEXT = "#1c1917", "#ffffff"


def drawing_of(source: Source) -> Drawing:
    """The diagram that was asked for: of a layer or the program, of a phase or all of them, so deep."""
    asked = source.asked
    phases = [one for one in source.footprint.phase.words if len(source.footprint.where(phase=one))]
    if asked.phase is not None and asked.phase not in phases:
        raise InputError(f"Nothing ran in the phase {asked.phase!r}.", f"Here are: {', '.join(phases)}.")
    diagram = energy_distribution(source.footprint, source.program, asked.module, asked.phase)
    if not diagram.boxes:
        raise InputError("There is nothing to draw: no operation has any energy.", "See joulemap show.")
    return Drawing(diagram, asked.depth)


def write_dot(source: Source, path: Path) -> None:
    """Write the diagram with the look of the paper's figures."""
    path.write_text(_dot(drawing_of(source)))


def dot(diagram: Diagram, depth: int = 1) -> str:
    """Rounded boxes are layers and sharp ones operations; the more energy, the more vibrant the colour."""
    return _dot(Drawing(diagram, depth))


def _dot(drawing: Drawing) -> str:
    ids = {box.path: f"n{number}" for number, box in enumerate(drawing.boxes)}
    lines = [
        "digraph energy {",
        f"  label={quoted(drawing.diagram.path or 'program')}; labelloc=t;",
        '  node [shape=box, style=filled, fontname="Helvetica", fontsize=11, color="#a8a29e"];',
        '  edge [color="#78716c", arrowsize=0.7];',
        *_statements(drawing.items, drawing, ids, "  "),
        *(f"  {ids[source.path]} -> {ids[target.path]};" for source, target in drawing.flows),
    ]
    return "\n".join((*lines, "}", ""))


def _statements(
    items: Sequence[Frame | Box], drawing: Drawing, ids: Mapping[str, str], indent: str
) -> Iterator[str]:
    for item in items:
        if isinstance(item, Frame):
            yield f"{indent}subgraph {quoted('cluster ' + item.box.path)} {{"
            yield f"{indent}  label={quoted(headline(item.box, drawing))}; {_FRAME}"
            yield f"{indent}  tooltip={quoted(told(item.box, drawing))};"
            yield from _statements(item.inside, drawing, ids, indent + "  ")
            yield f"{indent}}}"
        else:
            yield f"{indent}{ids[item.path]} [{_attributes(item, drawing)}];"


_FRAME = 'style=rounded; labeljust=l; fontname="Helvetica"; fontsize=11; color="#a8a29e";'


def headline(box: Box, drawing: Drawing) -> str:
    """What stands above the inside of an opened layer."""
    return f"{box.name} {fmt_share(drawing.share(box))}"


def _attributes(box: Box, drawing: Drawing) -> str:
    fill, text = colours(drawing.heat(box))
    shape = "filled" if box.is_operation else "rounded,filled"
    label = quoted(f"{box.name}\n{fmt_share(drawing.share(box))}")
    tooltip = quoted(told(box, drawing))
    return f'label={label}, style="{shape}", fillcolor="{fill}", fontcolor="{text}", tooltip={tooltip}'


def told(box: Box, drawing: Drawing) -> str:
    """What a pointer over the box says: the whole path, and energy with its interval."""
    by_time = "" if box.time_based_j is None else f", by time {fmt(box.time_based_j, 'J')}"
    energy = fmt_pm(box.energy_j, "J", box.half_width_j)
    return f"{box.path}: {energy}{by_time}, {fmt_share(drawing.share(box))}"


def colours(heat: float) -> tuple[str, str]:
    """The fill for a heat from 0 to 1, and the text that can be read on it."""
    red, green, blue = (round(a + (b - a) * heat) for a, b in zip(_LIGHT, _VIBRANT, strict=True))
    luminance = (0.299 * red + 0.587 * green + 0.114 * blue) / 255
    return f"#{red:02x}{green:02x}{blue:02x}", _DARK_TEXT if luminance > 0.6 else _LIGHT_TEXT


def quoted(text: str) -> str:
    """A string as Graphviz reads it: backslashes are no escapes of its own, a line break is one."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
