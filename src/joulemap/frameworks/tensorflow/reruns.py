"""Layers that were called again outside of their model, as ``tf.recompute_grad`` does: whose they are.

Such a call opens ``dense_3`` at the top of the graph, and nothing around it says that this is
``net/block/dense``. It reads the same variables, though.
"""

from __future__ import annotations

from collections.abc import Mapping

from joulemap.frameworks.tensorflow.dataflow import CAPTURED, Node
from joulemap.frameworks.tensorflow.scopes import Layers
from joulemap.program import SEPARATOR


def with_whole_paths(layers: Layers, nodes: Mapping[str, Node]) -> Layers:
    """The layers, with whole paths for scopes that have the end of another's path and read its variables."""
    path_of = layers.of_scope
    ends = {end for path in path_of.values() for end in _ends(path)}
    ending = {scope for scope, path in path_of.items() if path in ends}
    if not ending:
        return layers
    whole = {}
    for scopes in _readers(layers, nodes):
        for scope in scopes & ending:
            paths = {path_of[one] for one in scopes if path_of[one].endswith(SEPARATOR + path_of[scope])}
            if len(paths) == 1:
                whole[scope] = paths.pop()
    return Layers({**path_of, **whole})


def _ends(path: str) -> list[str]:
    parts = path.split(SEPARATOR)
    return [SEPARATOR.join(parts[i:]) for i in range(1, len(parts))]


def _readers(layers: Layers, nodes: Mapping[str, Node]) -> list[set[str]]:
    """For each variable the scopes of layers in which it is read."""
    readers: dict[str, set[str]] = {name: set() for name, node in nodes.items() if node.op == CAPTURED}
    for name, node in nodes.items():
        scope = layers.scope(name)
        for handle in node.inputs:
            if scope is not None and handle in readers:
                readers[handle].add(scope)
    return list(readers.values())
