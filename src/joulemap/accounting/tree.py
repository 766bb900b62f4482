"""The footprint as nested modules, each with its own interval and phases."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from joulemap.accounting.footprint import Footprint
from joulemap.program import SEPARATOR, leaf, split
from joulemap.units import fmt_pm, fmt_share

if TYPE_CHECKING:
    from joulemap.devices import Provenance

OWN = "(self)"
"""The child that stands for what a module does itself, beside its named children."""


@dataclass(frozen=True, slots=True)
class Node:
    """A module or an operation: its energy with everything inside it."""

    name: str
    path: str
    energy_j: float
    low_j: float
    high_j: float
    active_s: float
    calls: int
    phases: dict[str, float]
    provenance: Provenance
    spread: bool
    interval: bool
    time_based_j: float | None = None
    children: tuple[Node, ...] = ()

    @property
    def half_width_j(self) -> float | None:
        """Half of the interval; None where it is not known."""
        return (self.high_j - self.low_j) / 2 if self.interval else None

    def walk(self, depth: int = 0) -> Iterator[tuple[int, Node]]:
        """This node and all below it, with their depth, in order of energy."""
        yield depth, self
        for child in self.children:
            yield from child.walk(depth + 1)


@dataclass(frozen=True, slots=True)
class Tree:
    """The outermost modules, and the total they are shares of."""

    children: tuple[Node, ...]
    energy_j: float

    def walk(self) -> Iterator[tuple[int, Node]]:
        """Every node with its depth, outermost first, in order of energy."""
        for child in self.children:
            yield from child.walk()

    def __str__(self) -> str:
        lines = [
            (
                "  " * depth + node.name,
                fmt_pm(node.energy_j, "J", node.half_width_j),
                fmt_share(node.energy_j / self.energy_j if self.energy_j else 0.0),
            )
            for depth, node in self.walk()
        ]
        widths = [max((len(line[column]) for line in lines), default=0) for column in range(3)]
        return "\n".join(
            f"{name:<{widths[0]}}  {energy:>{widths[1]}}  {share:>{widths[2]}}"
            for name, energy, share in lines
        )


def build_tree(footprint: Footprint, depth: int | None = None) -> Tree:
    """Nest the rows by their names, down to ``depth``."""
    footprint = _with_own_children(footprint)
    deepest = max((len(split(word)) for word in footprint.name.words), default=0)
    nodes: dict[str, list[Node]] = {}
    for level in range(min(depth or deepest, deepest), 0, -1):
        nodes = _level(footprint, level, nodes)
    return Tree(_sorted(nodes.get("", [])), footprint.attributed_j)


def _with_own_children(footprint: Footprint) -> Footprint:
    """Rows that bear the name of a module with children become a child of it: only leaves have rows."""
    modules = {
        SEPARATOR.join(part[:end]) for part in map(split, footprint.name.words) for end in range(1, len(part))
    }
    names = [f"{word}{SEPARATOR}{OWN}" if word in modules else word for word in footprint.name.words]
    return replace(footprint, name=footprint.name.mapped(names))


def _level(footprint: Footprint, level: int, below: dict[str, list[Node]]) -> dict[str, list[Node]]:
    """The nodes with so many name parts, by the path of the module around them."""
    parts = [split(word) for word in footprint.name.words]
    cut = footprint.name.mapped([SEPARATOR.join(part[:level]) for part in parts])
    deep_enough = np.array([len(part) >= level for part in parts] or [False])[footprint.name.codes]
    total = footprint.take(deep_enough).rollup(cut[deep_enough], keep=())
    phases = footprint.take(deep_enough).rollup(cut[deep_enough], keep=("phase",))
    by_phase: dict[str, dict[str, float]] = {}
    for path, phase, energy in zip(phases.name, phases.phase, phases.energy_j.tolist(), strict=True):
        by_phase.setdefault(path, {})[phase] = energy
    found: dict[str, list[Node]] = {}
    for row, path in enumerate(total.name):
        above = path.rpartition(SEPARATOR)[0]
        found.setdefault(above, []).append(_node(total, row, path, by_phase[path], below.get(path, [])))
    return found


def _node(rows: Footprint, row: int, path: str, phases: dict[str, float], children: list[Node]) -> Node:
    beside_j = rows.beside_j
    return Node(
        name=leaf(path),
        path=path,
        energy_j=float(rows.energy_j[row]),
        low_j=float(rows.low_j[row]),
        high_j=float(rows.high_j[row]),
        active_s=float(rows.active_s[row]),
        calls=round(float(rows.calls[row])),
        phases=phases,
        provenance=rows.provenance[row],
        spread=bool(rows.has_spread[row]),
        interval=bool(rows.has_interval[row]),
        time_based_j=None if beside_j is None else float(beside_j[row]),
        children=_sorted(children),
    )


def _sorted(nodes: list[Node]) -> tuple[Node, ...]:
    return tuple(sorted(nodes, key=lambda node: -node.energy_j))
