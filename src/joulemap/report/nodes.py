"""The tree of modules as columns: every node once, its numbers for the whole program and for each phase, and
the dataflow between siblings, as the energy distribution diagram has it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from joulemap.accounting.diagram import energy_distribution
from joulemap.accounting.footprint import Footprint
from joulemap.accounting.tree import OWN, Node, Tree
from joulemap.program import SEPARATOR, Program, split
from joulemap.report.numbers import column

MOST = 6000
"""As many operations by name as the page holds; smaller ones stand together in one node of their module."""

ALL = "all"


def nodes(
    footprint: Footprint, program: Program, baseline_w: Mapping[str, float] | None = None
) -> dict[str, Any]:
    """``name`` and ``parent`` (-1: none) of each node, and ``views`` of them: of all phases, and of each. Net
    energies are with them where an idle baseline is known."""
    footprint = folded(footprint)
    leaves = _leaves_only(footprint)
    net = None if baseline_w is None else leaves.net(baseline_w)
    tree = leaves.tree()
    index = {node.path: number for number, (_, node) in enumerate(tree.walk())}
    views = {ALL: _view(tree, net, index) | {"edges": _edges(footprint, program, None, index)}}
    for phase in phases(footprint):
        of_phase = None if net is None else net.where(phase=phase)
        view = _view(leaves.where(phase=phase).tree(), of_phase, index)
        views[phase] = view | {"edges": _edges(footprint, program, phase, index)}
    return {"name": [node.name for _, node in tree.walk()], "parent": _parents(tree), "views": views}


def largest(tree: dict[str, Any], count: int) -> list[str]:
    """The paths of the nodes with the most energy."""
    paths: list[str] = []
    for name, parent in zip(tree["name"], tree["parent"], strict=True):
        paths.append(_joined(paths[parent] if parent >= 0 else "", name))
    energy_j = tree["views"][ALL]["energy_j"]
    return [paths[node] for node in sorted(range(len(paths)), key=lambda node: -energy_j[node])[:count]]


def phases(footprint: Footprint) -> list[str]:
    """The phases that drew energy, in the order in which they run."""
    drawn = np.bincount(
        footprint.phase.codes, weights=footprint.energy_j, minlength=len(footprint.phase.words)
    )
    return [word for word, energy in zip(footprint.phase.words, drawn.tolist(), strict=False) if energy > 0]


def folded(footprint: Footprint, most: int = MOST) -> Footprint:
    """With at most so many names: each of the smallest becomes part of one that says how many they are."""
    words = footprint.name.words
    if len(words) <= most:
        return footprint
    energy = np.bincount(footprint.name.codes, weights=footprint.energy_j, minlength=len(words))
    kept = set(np.argsort(-energy, kind="stable")[:most].tolist())
    modules = {module for number in kept for module in _around(words[number])}
    home = {
        word: next((module for module in reversed(_around(word)) if module in modules), "")
        for number, word in enumerate(words)
        if number not in kept
    }
    guests = Counter(home.values())
    renamed = [
        _joined(home[word], f"({guests[home[word]]} smaller)") if word in home else word for word in words
    ]
    return replace(footprint, name=footprint.name.mapped(renamed))


def _leaves_only(footprint: Footprint) -> Footprint:
    """Rows that bear the name of a module become a child of it, in every phase alike."""
    modules = {module for word in footprint.name.words for module in _around(word)}
    renamed = [_joined(word, OWN) if word in modules else word for word in footprint.name.words]
    return replace(footprint, name=footprint.name.mapped(renamed))


def _around(name: str) -> list[str]:
    """The modules around a name, outermost first."""
    parts = split(name)
    return [SEPARATOR.join(parts[:end]) for end in range(1, len(parts))]


def _joined(module: str, name: str) -> str:
    return f"{module}{SEPARATOR}{name}" if module else name


def _parents(tree: Tree) -> list[int]:
    parents: list[int] = []
    above: list[int] = []
    for number, (depth, _) in enumerate(tree.walk()):
        del above[depth:]
        parents.append(above[-1] if above else -1)
        above.append(number)
    return parents


def _view(tree: Tree, net: Footprint | None, index: dict[str, int]) -> dict[str, Any]:
    found = [node for _, node in tree.walk()]
    words = list(dict.fromkeys(node.provenance for node in found))
    return _beside(found, net) | {
        "node": [index[node.path] for node in found],
        "energy_j": column(node.energy_j for node in found),
        "low_j": column(node.low_j for node in found),
        "high_j": column(node.high_j for node in found),
        "active_s": column(node.active_s for node in found),
        "calls": [node.calls for node in found],
        "spread": [int(node.spread) for node in found],
        "interval": [int(node.interval) for node in found],
        "provenance": [words.index(node.provenance) for node in found],
        "provenances": words,
    }


def _beside(found: list[Node], net: Footprint | None) -> dict[str, Any]:
    """What stands beside the energy of each node, where it is known: net, and by time alone."""
    columns = {}
    if net is not None:
        net_j = {node.path: node.energy_j for _, node in net.tree().walk()}
        columns["net_j"] = column(net_j[node.path] for node in found)
    by_time_j = [node.time_based_j for node in found if node.time_based_j is not None]
    return columns | ({"time_based_j": column(by_time_j)} if by_time_j else {})


def _edges(
    footprint: Footprint, program: Program, phase: str | None, index: dict[str, int]
) -> list[list[int]]:
    """The dataflow at each level that has any: the level's node (-1: the program), then pairs of nodes."""
    if not program.edges:
        return []
    found = []
    for level in energy_distribution(footprint, program, phase=phase).walk():
        path = {box.name: box.path for box in level.boxes}
        pairs = [index[path[end]] for pair in level.edges for end in pair]
        if pairs:
            found.append([index.get(level.path, -1), *pairs])
    return found
