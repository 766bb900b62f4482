"""The energy distribution diagram (EDD) of one layer as a Graphviz graph: boxes with shares, and dataflow."""

from __future__ import annotations

from pathlib import Path

from joulemap.accounting.diagram import Box, Diagram, energy_distribution
from joulemap.errors import InputError
from joulemap.exports.source import Source
from joulemap.units import fmt, fmt_pm, fmt_share

_LIGHT, _VIBRANT = (255, 247, 237), (234, 88, 12)
_DARK_TEXT, _LIGHT_TEXT = "#1c1917", "#ffffff"


def diagram_of(source: Source) -> Diagram:
    """The diagram that was asked for: of a layer or the program, of a phase or all of them."""
    asked = source.asked
    phases = [one for one in source.footprint.phase.words if len(source.footprint.where(phase=one))]
    if asked.phase is not None and asked.phase not in phases:
        raise InputError(f"Nothing ran in the phase {asked.phase!r}.", f"Here are: {', '.join(phases)}.")
    diagram = energy_distribution(source.footprint, source.program, asked.module, asked.phase)
    if not diagram.boxes:
        raise InputError("There is nothing to draw: no operation has any energy.", "See joulemap show.")
    return diagram


def write_dot(source: Source, path: Path) -> None:
    """Write the diagram with the look of the paper's figures."""
    path.write_text(dot(diagram_of(source)))


def dot(diagram: Diagram) -> str:
    """Rounded boxes are layers and sharp ones operations; the more energy, the more vibrant the colour."""
    most = max(box.share for box in diagram.boxes)
    ids = {box.name: f"n{number}" for number, box in enumerate(diagram.boxes)}
    lines = [
        "digraph energy {",
        f"  label={quoted(diagram.path or 'program')}; labelloc=t;",
        '  node [shape=box, style=filled, fontname="Helvetica", fontsize=11, color="#a8a29e"];',
        '  edge [color="#78716c", arrowsize=0.7];',
    ]
    lines += [
        f"  {ids[box.name]} [{_attributes(box, box.share / most if most else 0.0)}];" for box in diagram.boxes
    ]
    lines += [f"  {ids[source]} -> {ids[target]};" for source, target in diagram.edges]
    return "\n".join((*lines, "}", ""))


def _attributes(box: Box, heat: float) -> str:
    fill, text = colours(heat)
    shape = "filled" if box.is_operation else "rounded,filled"
    label = quoted(f"{box.name}\n{fmt_share(box.share)}")
    return (
        f'label={label}, style="{shape}", fillcolor="{fill}", fontcolor="{text}", tooltip={quoted(told(box))}'
    )


def told(box: Box) -> str:
    """What a pointer over the box says: the whole path, and energy with its interval."""
    by_time = "" if box.time_based_j is None else f", by time {fmt(box.time_based_j, 'J')}"
    return f"{box.path}: {fmt_pm(box.energy_j, 'J', box.half_width_j)}{by_time}, {fmt_share(box.share)}"


def colours(heat: float) -> tuple[str, str]:
    """The fill for a heat from 0 to 1, and the text that can be read on it."""
    red, green, blue = (round(a + (b - a) * heat) for a, b in zip(_LIGHT, _VIBRANT, strict=True))
    luminance = (0.299 * red + 0.587 * green + 0.114 * blue) / 255
    return f"#{red:02x}{green:02x}{blue:02x}", _DARK_TEXT if luminance > 0.6 else _LIGHT_TEXT


def quoted(text: str) -> str:
    """A string as Graphviz reads it: backslashes are no escapes of its own, a line break is one."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
