"""The graphs that a program ran, as the live adapter wrote them down."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from joulemap.errors import InputError
from joulemap.frameworks.tf_names import Node, input_name
from joulemap.program import SEPARATOR

FORMAT = 1
_FORWARD = "scratch_graph"
"""Keras draws graphs of this name only to learn the shapes of tensors; they never run."""


@dataclass(frozen=True, eq=False)
class Graph:
    """One graph: which of its scopes belong to which layer, its nodes, and the functions that it ran as."""

    name: str
    scopes: Mapping[str, str] = field(default_factory=dict)
    nodes: Mapping[str, Node] = field(default_factory=dict)
    functions: frozenset[str] = frozenset()

    def layer(self, node: str) -> tuple[str, str] | None:
        """The path of the layer in whose scope a node is, and the rest of the node's name; None without."""
        scope = node
        while scope := scope.rpartition(SEPARATOR)[0]:
            if scope in self.scopes:
                return self.scopes[scope], node[len(scope) + 1 :]
        return None

    def ran_as(self, function: str) -> bool:
        """Whether a function of this name (``__inference_train_step_123``) is this graph."""
        return function in self.functions


def read_graphs(folder: Path) -> list[Graph]:
    """The graphs of a raw folder, those that only served to learn shapes left out."""
    files = sorted(folder.glob("*.json"), key=lambda path: (len(path.stem), path.stem))
    graphs = [_read(path) for path in files]
    return [graph for graph in graphs if not graph.name.startswith(_FORWARD)]


def _read(path: Path) -> Graph:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise InputError(
                f"{path} is of format {content['format']}; this joulemap knows {FORMAT}.", "Update joulemap."
            )
        nodes = {
            str(name): Node(str(op), tuple(input_name(str(one)) for one in inputs))
            for name, op, inputs in content["nodes"]
        }
        scopes = {str(scope): str(layer) for scope, layer in content["scopes"].items() if scope}
        return Graph(str(content["name"]), scopes, nodes, frozenset(content.get("functions", ())))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path} is no graph that joulemap wrote: {error!r}.", "The recording's raw files are damaged."
        ) from error
