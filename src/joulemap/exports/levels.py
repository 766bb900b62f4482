"""What of a nested diagram is drawn: layers opened down to a depth, and the dataflow between the others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from joulemap.accounting.diagram import Box, Diagram
from joulemap.accounting.tree import OWN
from joulemap.program import SEPARATOR, split

LEAST = 0.01
"""Layers with a smaller share of the drawing stay closed."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A layer that is opened: its box, and what is drawn inside it."""

    box: Box
    inside: tuple[Frame | Box, ...]


@dataclass(frozen=True, eq=False)
class Drawing:
    """A diagram opened so many levels deep; shares and heat are of all that is drawn."""

    diagram: Diagram
    depth: int = 1

    @cached_property
    def items(self) -> tuple[Frame | Box, ...]:
        """Frames and boxes, as they stand in each other."""
        return _opened(self.diagram, self.depth, LEAST * self.diagram.energy_j)

    @cached_property
    def boxes(self) -> list[Box]:
        """Everything that is closed: operations, and layers as deep as was asked."""
        return list(_closed(self.items))

    @cached_property
    def frames(self) -> list[Frame]:
        """Every layer that is opened, outer ones first."""
        return list(_frames(self.items))

    @cached_property
    def flows(self) -> list[tuple[Box, Box]]:
        """The dataflow between the boxes, in the order of the program."""
        home = {box.path: box for box in self.boxes}
        ends = ((_place(source, home), _place(target, home)) for source, target in self.diagram.flows)
        pairs = dict.fromkeys((source, target) for source, target in ends if source and target)
        return [(home[source], home[target]) for source, target in pairs if source != target]

    @cached_property
    def flowing(self) -> frozenset[str]:
        """The paths of the boxes that dataflow goes into or out of."""
        return frozenset(box.path for pair in self.flows for box in pair)

    def share(self, box: Box) -> float:
        """Of the energy of the whole drawing."""
        return box.energy_j / self.diagram.energy_j if self.diagram.energy_j else 0.0

    def heat(self, box: Box) -> float:
        """Against the box with the most energy, from 0 to 1."""
        return box.energy_j / self._most_j if self._most_j > 0 else 0.0

    @cached_property
    def _most_j(self) -> float:
        return max(box.energy_j for box in self.boxes)


def _opened(diagram: Diagram, depth: int, least_j: float) -> tuple[Frame | Box, ...]:
    return tuple(
        Frame(box, _opened(box.inside, depth - 1, least_j))
        if box.inside is not None and depth > 1 and box.energy_j >= least_j
        else box
        for box in diagram.boxes
    )


def _closed(items: Iterable[Frame | Box]) -> Iterator[Box]:
    for item in items:
        if isinstance(item, Frame):
            yield from _closed(item.inside)
        else:
            yield item


def _frames(items: Iterable[Frame | Box]) -> Iterator[Frame]:
    for item in items:
        if isinstance(item, Frame):
            yield item
            yield from _frames(item.inside)


def _place(name: str, home: Mapping[str, Box]) -> str | None:
    """The path of the box that an operation is drawn in; None where it is none of these."""
    own = f"{name}{SEPARATOR}{OWN}"
    if own in home:
        return own
    parts = split(name)
    paths = (SEPARATOR.join(parts[:end]) for end in range(len(parts), 0, -1))
    return next((path for path in paths if path in home), None)
