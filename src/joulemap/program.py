"""The program's structure: qualified names, its operations, and the dataflow between them.

A *qualified name* (QTN) is a path: composite layers from the outside in, and the operation last, as
``bert/encoder/layer_0/output/dense/MatMul``. The same name with another phase is the same operation's
backward pass.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field
from typing import Any

from joulemap.errors import InputError

PLACES, APART = ("optimizer", "loss", "communication"), " (module)"
"""What is outside of models and has a name that an attribute may have, too; and what tells the two apart."""
SEPARATOR = "/"
PROFILER = "(profiler)"
"""What a framework's tracer does itself, while it traces and never else."""
SLICE = "slice"
"""The label of steps that are none: stretches of time of a program without steps, as long as they like."""
FAR = 8
"""A step that is given more than so many times as much as another is of another size."""
_SIZED = re.compile(r"(.+) \((\d+) numbers\)")
BETWEEN = "(between steps)"
"""What a program does there, of which nothing is traced."""
START_UP = "(start-up)"
"""What it does before its first step."""

Edge = tuple[str, str]
"""From one operation to another that uses what it has computed."""


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


def sized(label: str, numbers: int) -> str:
    """The label of steps that are given so many numbers, far more or far less than those of ``label``."""
    return f"{label} ({numbers} numbers)"


def unsized(label: str) -> str:
    """The label that such a one was made from, or itself."""
    found = _SIZED.fullmatch(label)
    return found[1] if found else label


def numbers_of(label: str) -> int | None:
    """How many numbers steps of this label are given, where it says so."""
    found = _SIZED.fullmatch(label)
    return int(found[2]) if found else None


def leaf(name: str) -> str:
    """The operation's own name, the last part."""
    return name.rstrip(SEPARATOR).rpartition(SEPARATOR)[2]


@dataclass(frozen=True, slots=True)
class FusedPart:
    """What a layer has in a fusion: its greatest operation there, and its share of the work."""

    name: str
    phase: str
    share: float


@dataclass(frozen=True, slots=True)
class Fusion:
    """Operations of several layers that a compiler made one kernel of: where its result is computed, and the
    parts that its events are split into, in their order in time."""

    name: str
    op: str
    phase: str
    parts: tuple[FusedPart, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """Operations by qualified name with their type, and dataflow edges between them; ``phases`` of those
    edges that are not there in every phase; and the ``fusions`` that were split over their layers."""

    operations: Mapping[str, str] = field(default_factory=dict)
    edges: tuple[Edge, ...] = ()
    phases: Mapping[Edge, frozenset[str]] = field(default_factory=dict)
    fusions: tuple[Fusion, ...] = ()

    @classmethod
    def of(
        cls,
        operations: Mapping[str, str],
        edges: Iterable[Edge],
        phases: Mapping[Edge, Set[str]] | None = None,
        fusions: Iterable[Fusion] = (),
    ) -> Program:
        """Keep the edges whose both ends are operations, each once, without loops."""
        known = dict.fromkeys(
            (source, target)
            for source, target in edges
            if source != target and source in operations and target in operations
        )
        told = {edge: frozenset(its) for edge, its in (phases or {}).items() if edge in known and its}
        return cls(dict(operations), tuple(known), told, tuple(dict.fromkeys(fusions)))

    @classmethod
    def joined(cls, programs: Sequence[Program]) -> Program:
        """What any of them has. An edge that one of them has in every phase is in every phase."""
        operations: dict[str, str] = {}
        phases: dict[Edge, frozenset[str] | None] = {}
        for program in programs:
            operations.update(program.operations)
            for edge in program.edges:
                its, others = program.phases.get(edge), phases.get(edge, frozenset())
                phases[edge] = None if its is None or others is None else its | others
        told = {edge: its for edge, its in phases.items() if its is not None}
        return cls.of(operations, phases, told, (one for program in programs for one in program.fusions))

    def among(self, present: Set[str], phase: str | None = None) -> Program:
        """The part of the program that is ``present``, in one phase or all of them, with edges through the
        rest: where the operations between two are not there, the first feeds the second."""
        followers: dict[str, list[str]] = {}
        for edge in self.edges:
            if phase is None or phase in self.phases.get(edge, (phase,)):
                followers.setdefault(edge[0], []).append(edge[1])
        operations = {name: kind for name, kind in self.operations.items() if name in present}
        return Program.of(operations, _through_gaps(followers, operations))

    def to_json(self) -> str:
        index = {name: number for number, name in enumerate(self.operations)}
        pairs = [[index[source], index[target]] for source, target in self.edges]
        content: dict[str, Any] = {"operations": list(self.operations.items()), "edges": pairs}
        if self.phases:
            content["phases"] = [sorted(self.phases.get(edge, ())) for edge in self.edges]
        if self.fusions:
            content["fusions"] = [asdict(one) for one in self.fusions]
        return json.dumps(content)

    @classmethod
    def from_json(cls, text: str) -> Program:
        try:
            content: dict[str, Any] = json.loads(text)
            operations = {str(name): str(kind) for name, kind in content["operations"]}
            names = list(operations)
            edges = tuple((names[source], names[target]) for source, target in content["edges"])
            told = zip(edges, content.get("phases", ()), strict=False)
            phases = {edge: frozenset(map(str, its)) for edge, its in told if its}
            fusions = tuple(map(_fusion, content.get("fusions", ())))
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise InputError(f"This is not a program description: {error!r}.") from error
        return cls(operations, edges, phases, fusions)


def _fusion(content: Mapping[str, Any]) -> Fusion:
    parts = tuple(
        FusedPart(str(one["name"]), str(one["phase"]), float(one["share"])) for one in content["parts"]
    )
    return Fusion(str(content["name"]), str(content["op"]), str(content["phase"]), parts)


def _through_gaps(followers: Mapping[str, Sequence[str]], present: Mapping[str, str]) -> Iterator[Edge]:
    """From everything present to the next that is."""
    for source in present:
        ahead, met = list(followers.get(source, ())), set[str]()
        while ahead:
            target = ahead.pop()
            if target in present:
                yield source, target
            elif target not in met:
                met.add(target)
                ahead.extend(followers.get(target, ()))


def apart(attribute: str) -> str:
    """What an attribute of a model is called that has the name of a place outside of models."""
    return f"{attribute}{APART}" if attribute in PLACES else attribute
