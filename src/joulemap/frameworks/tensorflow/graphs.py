"""The graphs that a program ran, as the live adapter wrote them down."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from joulemap.errors import InputError
from joulemap.frameworks.tensorflow.dataflow import Node, input_name
from joulemap.frameworks.tensorflow.names import Place, places
from joulemap.frameworks.tensorflow.reruns import with_whole_paths
from joulemap.frameworks.tensorflow.scopes import Layers

FORMAT = 1
_ONLY_SHAPES = "scratch_graph"
"""Keras draws graphs of this name to learn the shapes of tensors; they never run."""


@dataclass(frozen=True, eq=False)
class Graph:
    """One graph: its nodes, which of its scopes belong to which layer, and the functions that it ran as."""

    name: str
    nodes: Mapping[str, Node]
    layers: Layers = field(default_factory=Layers)
    functions: frozenset[str] = frozenset()

    @cached_property
    def places(self) -> dict[str, Place]:
        """Where each node belongs."""
        return places(self.nodes, self.layers)

    def edges(self, ran: Set[str]) -> Iterator[tuple[str, str]]:
        """What feeds what, by qualified names that ran; through nodes that did not to the nearest that did.

        Nodes come after their inputs, except where a loop of ``tf.compat.v1`` closes, so one pass suffices.
        """
        sources: dict[str, frozenset[str]] = {}
        for name, node in self.nodes.items():
            before = frozenset[str]().union(*(sources.get(source, ()) for source in node.inputs))
            qualified = self.places[name].name
            if qualified not in ran:
                sources[name] = before
                continue
            sources[name] = frozenset((qualified,))
            yield from ((source, qualified) for source in before)


class Graphs:
    """All graphs of a program.

    The body of a loop is a graph of its own that repeats the scopes around it. So what all graphs agree on
    holds in every one of them, unless it says otherwise itself.
    """

    def __init__(self, graphs: Sequence[Graph] = ()) -> None:
        self.layers = Layers(_agreed([graph.layers.of_scope for graph in graphs]))
        self._graphs = [self._completed(graph) for graph in graphs]

    def _completed(self, graph: Graph) -> Graph:
        layers = Layers({**self.layers.of_scope, **graph.layers.of_scope})
        return replace(graph, layers=with_whole_paths(layers, graph.nodes))

    def __len__(self) -> int:
        return len(self._graphs)

    def of_function(self, function: str) -> list[Graph]:
        """The graph that ran as a function (``__inference_train_step_123``), if it is known."""
        return [graph for graph in self._graphs if function in graph.functions]

    def with_most_of(self, nodes: Set[str]) -> list[Graph]:
        """The graphs that have most of these nodes; none where no graph has any."""
        having = [len(graph.nodes.keys() & nodes) for graph in self._graphs]
        most = max(having, default=0)
        return [graph for graph, count in zip(self._graphs, having, strict=True) if count == most > 0]


def _agreed(maps: Sequence[Mapping[str, str]]) -> dict[str, str]:
    agreed: dict[str, str | None] = {}
    for scope, path in chain.from_iterable(one.items() for one in maps):
        agreed[scope] = path if agreed.get(scope, path) == path else None
    return {scope: path for scope, path in agreed.items() if path is not None}


def read_graphs(folder: Path) -> Graphs:
    """The graphs of a raw folder."""
    files = sorted(folder.glob("*.json"), key=lambda path: (len(path.stem), path.stem))
    graphs = [_read(path) for path in files]
    return Graphs([graph for graph in graphs if not graph.name.startswith(_ONLY_SHAPES)])


def _read(path: Path) -> Graph:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] == FORMAT:
            return _graph(content)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path} is no graph that joulemap wrote: {error!r}.",
            "The recording's raw files are damaged; record again.",
        ) from error
    raise InputError(f"{path} is of format {content['format']}, and this knows {FORMAT}.", "Update joulemap.")


def _graph(content: Mapping[str, Any]) -> Graph:
    """Only data flows: control inputs say what comes first, not what feeds what."""
    nodes = {
        str(name): Node(str(op), tuple(input_name(one) for one in inputs if not one.startswith("^")))
        for name, op, inputs in content["nodes"]
    }
    layers = Layers({str(scope): str(path) for scope, path in content["scopes"].items() if scope})
    return Graph(str(content["name"]), nodes, layers, frozenset(content.get("functions", ())))
