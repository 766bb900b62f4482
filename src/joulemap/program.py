"""The program's structure: qualified names, its operations, and the dataflow between them.

A *qualified name* (QTN) is a path: composite layers from the outside in, and the operation last, as
``bert/encoder/layer_0/output/dense/MatMul``. The same name with another phase is the same operation's
backward pass.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from joulemap.errors import InputError

SEPARATOR = "/"


@dataclass(frozen=True, slots=True)
class QualifiedName:
    """``<[c1 … cn]; t>`` of the paper: the layers around an operation, and the operation."""

    layers: tuple[str, ...]
    operation: str

    @classmethod
    def parse(cls, text: str) -> QualifiedName:
        *layers, operation = split(text)
        return cls(tuple(layers), operation)

    def __str__(self) -> str:
        return SEPARATOR.join((*self.layers, self.operation))


def split(name: str) -> list[str]:
    """The parts of a qualified name, outermost first; empty parts do not count."""
    parts = [part for part in name.split(SEPARATOR) if part]
    return parts or [name]


def leaf(name: str) -> str:
    """The operation's own name, the last part."""
    return name.rstrip(SEPARATOR).rpartition(SEPARATOR)[2]


@dataclass(frozen=True, slots=True)
class Program:
    """Operations by qualified name with their type, and dataflow edges between them."""

    operations: Mapping[str, str] = field(default_factory=dict)
    edges: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, operations: Mapping[str, str], edges: Iterable[tuple[str, str]]) -> Program:
        """Keep the edges whose both ends are operations, each once, without loops."""
        known = dict.fromkeys(
            (source, target)
            for source, target in edges
            if source != target and source in operations and target in operations
        )
        return cls(dict(operations), tuple(known))

    def to_json(self) -> str:
        index = {name: number for number, name in enumerate(self.operations)}
        pairs = [[index[source], index[target]] for source, target in self.edges]
        return json.dumps({"operations": list(self.operations.items()), "edges": pairs})

    @classmethod
    def from_json(cls, text: str) -> Program:
        try:
            content: dict[str, Any] = json.loads(text)
            operations = {str(name): str(kind) for name, kind in content["operations"]}
            names = list(operations)
            edges = tuple((names[source], names[target]) for source, target in content["edges"])
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise InputError(f"This is not a program description: {error!r}.") from error
        return cls(operations, edges)
