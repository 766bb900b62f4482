"""The graphs that a program made: their nodes, and which name scope in them belongs to which layer.

A scope's name is not the layer's: Keras 3 opens a layer's scope twice, so that layer ``query`` becomes
``query_1``, and its sibling ``query_1`` becomes ``query_1_1``. No rule leads back; being there does.
"""

from __future__ import annotations

import json
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

FORMAT = 1


class Operation(Protocol):
    """A node, as TensorFlow gives it."""

    @property
    def name(self) -> str: ...
    @property
    def type(self) -> str: ...
    @property
    def inputs(self) -> Sequence[Tensor]: ...
    @property
    def control_inputs(self) -> Sequence[Operation]: ...


class Tensor(Protocol):
    """One output of a node."""

    @property
    def op(self) -> Operation: ...
    @property
    def value_index(self) -> int: ...


class Graph(Protocol):
    """A function's graph, or one of ``tf.compat.v1``; ``version`` grows with every node."""

    @property
    def version(self) -> int: ...
    def get_operations(self) -> Sequence[Operation]: ...


@dataclass
class _Captured:
    """What is known of one graph; ``number`` is its file's, once it has one."""

    name: str = ""
    functions: list[str] = field(default_factory=list)
    scopes: dict[str, str] = field(default_factory=dict)
    number: int | None = None
    written: tuple[int, int, int] = (0, 0, 0)


class GraphCapture:
    """Remembers graphs for as long as the program does, and writes those that are new or have grown."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._graphs: weakref.WeakKeyDictionary[Graph, _Captured] = weakref.WeakKeyDictionary()
        self._files = 0

    def opened(self, graph: Graph, scope: str, path: str) -> None:
        """A call of the layer at ``path`` got ``scope`` in ``graph``, which is being traced."""
        with self._lock:
            self._of(graph).scopes[scope] = path

    def made(self, graph: Graph, name: str, function: str | None = None) -> None:
        """``graph`` is complete enough to run, under the name ``function`` where it is one."""
        with self._lock:
            captured = self._of(graph)
            captured.name = captured.name or name
            if function is not None and function not in captured.functions:
                captured.functions.append(function)

    def write(self) -> None:
        """Write every graph that runs and is not on disk as it is now."""
        with self._lock:
            for graph, captured in list(self._graphs.items()):
                state = (graph.version, len(captured.scopes), len(captured.functions))
                if captured.name and state != captured.written:
                    self._write(graph, captured)
                    captured.written = state

    def _of(self, graph: Graph) -> _Captured:
        captured = self._graphs.get(graph)
        if captured is None:
            captured = self._graphs[graph] = _Captured()
        return captured

    def _write(self, graph: Graph, captured: _Captured) -> None:
        if captured.number is None:
            captured.number = self._files
            self._files += 1
        content = {
            "format": FORMAT,
            "name": captured.name,
            "functions": captured.functions,
            "scopes": captured.scopes,
            "nodes": [_node(operation) for operation in graph.get_operations()],
        }
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{captured.number}.json"
        unfinished = path.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(content, separators=(",", ":")), encoding="utf-8")
        unfinished.replace(path)


def _node(operation: Operation) -> list[Any]:
    """Name, type and inputs as a NodeDef has them; not its attributes, where a whole dataset may lie."""
    inputs = [_output(tensor) for tensor in operation.inputs]
    inputs += [f"^{before.name}" for before in operation.control_inputs]
    return [operation.name, operation.type, inputs]


def _output(tensor: Tensor) -> str:
    name = tensor.op.name
    return f"{name}:{tensor.value_index}" if tensor.value_index else name
