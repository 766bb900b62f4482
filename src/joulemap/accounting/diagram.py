"""Energy distribution diagrams (EDD): the footprint on the program's nested dataflow graph.

A diagram shows one level: the layers and operations inside one composite layer, each with its share of that
layer's energy (together 100 %), and the dataflow between them. Every composite layer in it is a diagram
again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from joulemap.accounting.footprint import Footprint
from joulemap.accounting.tree import OWN, Node
from joulemap.errors import InputError
from joulemap.program import SEPARATOR, Edge, Program, split


@dataclass(frozen=True, slots=True)
class Box:
    """A layer or an operation in a diagram; a layer holds the diagram of its inside."""

    name: str
    path: str
    energy_j: float
    low_j: float
    high_j: float
    share: float
    interval: bool
    time_based_j: float | None
    inside: Diagram | None

    @property
    def half_width_j(self) -> float | None:
        """The longer side of the interval; None where it is not known."""
        return max(self.high_j - self.energy_j, self.energy_j - self.low_j) if self.interval else None

    @property
    def is_operation(self) -> bool:
        return self.inside is None


@dataclass(frozen=True, slots=True)
class Diagram:
    """One level of the program: boxes by energy, and the dataflow edges between them, by name. ``flows`` are
    the edges between operations, of the whole program, by which layers that are opened are joined."""

    path: str
    energy_j: float
    boxes: tuple[Box, ...]
    edges: tuple[Edge, ...]
    flows: tuple[Edge, ...] = ()

    def at(self, path: str) -> Diagram:
        """The diagram of a layer inside this one."""
        if path == self.path:
            return self
        for box in self.boxes:
            if box.inside is not None and (path == box.path or path.startswith(box.path + SEPARATOR)):
                return box.inside.at(path)
        raise InputError(
            f"There is no layer {path!r} with energy in this diagram.",
            f"Here are: {', '.join(box.path for box in self.boxes) or 'none'}.",
        )

    def walk(self) -> Iterator[Diagram]:
        """This diagram and all inside it."""
        yield self
        for box in self.boxes:
            if box.inside is not None:
                yield from box.inside.walk()


def energy_distribution(
    footprint: Footprint, program: Program, path: str = "", phase: str | None = None
) -> Diagram:
    """The nested diagram of a layer (the whole program by default), of one phase or all of them.

    Its edges are between operations that have energy, through those that have none to the next that has; of
    all phases, those of the forward pass stand first, since it is what a drawing follows."""
    if phase is not None:
        footprint = footprint.where(phase=phase)
    flows = _edges(footprint, program, phase)
    if phase is None and flows:
        first = frozenset(_edges(footprint.where(phase="forward"), program, "forward"))
        flows = tuple(sorted(flows, key=lambda edge: edge not in first))
    return _diagram("", footprint.tree().children, lifted_edges(flows), flows).at(path)


def _edges(footprint: Footprint, program: Program, phase: str | None) -> tuple[Edge, ...]:
    return program.among(frozenset(footprint.name.used().words), phase).edges


def lifted_edges(edges: Iterable[Edge]) -> dict[str, dict[Edge, None]]:
    """Operation edges, lifted: an edge belongs to the level where its ends part, between the two layers
    (or operations) that hold them there."""
    lifted: dict[str, dict[Edge, None]] = {}
    for source, target in edges:
        ends = split(source), split(target)
        common = 0
        while common < min(map(len, ends)) - 1 and ends[0][common] == ends[1][common]:
            common += 1
        if ends[0][common] == ends[1][common]:  # one is a layer around the other: what is its own feeds it
            common += 1
        pair = tuple(end[common] if common < len(end) else OWN for end in ends)
        lifted.setdefault(SEPARATOR.join(ends[0][:common]), {})[pair[0], pair[1]] = None
    return lifted


def _diagram(
    path: str, nodes: tuple[Node, ...], edges: dict[str, dict[Edge, None]], flows: tuple[Edge, ...]
) -> Diagram:
    total = sum(node.energy_j for node in nodes)
    boxes = tuple(
        Box(
            name=node.name,
            path=node.path,
            energy_j=node.energy_j,
            low_j=node.low_j,
            high_j=node.high_j,
            share=node.energy_j / total if total else 0.0,
            interval=node.interval,
            time_based_j=node.time_based_j,
            inside=_diagram(node.path, node.children, edges, flows) if node.children else None,
        )
        for node in nodes
    )
    here = {box.name for box in boxes}
    between = tuple(pair for pair in edges.get(path, {}) if here.issuperset(pair))
    return Diagram(path, total, boxes, between, flows)
