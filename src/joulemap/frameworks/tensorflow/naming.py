"""Qualified names and phases for everything that a profile says ran."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import TypeAlias

from joulemap.frameworks.imported import ACCUMULATION, UNNAMED
from joulemap.frameworks.jax import names as jax_names
from joulemap.frameworks.tensorflow import roles, scopes
from joulemap.frameworks.tensorflow.frames import INPUT_FUNCTION
from joulemap.frameworks.tensorflow.graphs import Graph, Graphs
from joulemap.frameworks.tensorflow.names import (
    INPUT,
    OPTIMIZER,
    RUNTIME,
    Place,
    part_of_optimizer,
    place_by_name,
)
from joulemap.frameworks.tensorflow.roles import Role
from joulemap.frameworks.tensorflow.scopes import Inlined, Layers
from joulemap.frameworks.tensorflow.subjects import Context, Named, Subject
from joulemap.frameworks.xplane.hlo import Instruction, Module
from joulemap.program import SEPARATOR, leaf

COMPILATION = "(compilation)"
_COMPILED_FUNCTION = re.compile(r"a(?P<function>_inference_.+?)__\.\d+$")
_PYTHON_CALL = "$"
_NUMBERED_OPTIMIZER = re.compile(r"^optimizer_\d+(?=/|$)")
_COMPOSED = ("fusion", "custom-call")
_COPY_IN = re.compile(r"Memcpy ?H(?:to|2)D", re.IGNORECASE)

_Key: TypeAlias = tuple[str, str]


class Naming:
    """Names things with the help of the program's graphs and compiled programs, where there are any."""

    def __init__(self, graphs: Graphs, modules: Mapping[int, Module] | None = None) -> None:
        self._graphs = graphs
        self._modules = modules or {}
        self._ran: dict[_Key, list[Graph]] = {}
        self._used: dict[int, Module] = {}

    def __call__(self, asked: Sequence[tuple[Subject, Context]]) -> list[Named]:
        """Names for many things at once: what ran together tells which graph it was."""
        together: dict[_Key, set[str]] = {}
        for subject, context in asked:
            if subject.node:
                calls, node = scopes.inlined(subject.node)
                together.setdefault((context.function, calls), set()).add(node)
        self._ran.update({key: self._graphs_of(*key, nodes) for key, nodes in together.items()})
        return [self._named(subject, context) for subject, context in asked]

    def edges(self, ran: Set[str]) -> Iterator[tuple[str, str]]:
        """The dataflow between qualified names, from the graphs and the programs that were asked about."""
        for graph in {id(graph): graph for graphs in self._ran.values() for graph in graphs}.values():
            yield from graph.edges(ran)
        for module in self._used.values():
            for source, target in module.edges():
                yield self._instruction_name(module, source), self._instruction_name(module, target)

    def _instruction_name(self, module: Module, instruction: str) -> str:
        return self._compiled(Subject(Role.HLO, instruction, "", "", module.number, instruction)).name

    def _graphs_of(self, function: str, calls: str, nodes: Set[str]) -> list[Graph]:
        """The graphs that these nodes may be of: the function's own, or those that have most of them."""
        own = [] if calls else self._graphs.of_function(function)
        return own or self._graphs.with_most_of(nodes)

    def _named(self, subject: Subject, context: Context) -> Named:
        if subject.instruction or subject.path:
            return self._compiled(subject)
        if subject.node:
            return self._node(subject, context.function)
        if subject.role == Role.EAGER:
            return _eager(subject.name, context)
        if subject.role in (Role.DATA, Role.WAITING):
            return _in_pipeline(_pipeline_path(subject.name))
        if subject.role == Role.KERNEL:
            return _kernel(subject.name)
        bucket = COMPILATION if subject.role == Role.COMPILING else RUNTIME
        what = _what(subject.name)
        return Named(f"{bucket}/{what}", what, "other")

    def _node(self, subject: Subject, function: str) -> Named:
        inlined = scopes.inlined(subject.node)
        if function == INPUT_FUNCTION:
            return Named(f"{INPUT}/{inlined.node}", subject.op, "other")
        if roles.is_data_op(subject.op):
            return _in_pipeline(subject.op)
        place = self._place(inlined, subject.op, self._ran[function, inlined.calls])
        if place.phase == "forward" and (phase := self._phase_around(inlined, function)):
            return Named(_name_in(phase, place.name, subject.op), subject.op, phase)
        return Named(place.name, subject.op, place.phase)

    def _phase_around(self, inlined: Inlined, function: str) -> str | None:
        """The phase of the loop or branch that a node is in, where that is known and not the forward pass."""
        around = scopes.caller(inlined.calls)
        if around.calls == inlined.calls:
            return None
        node = around.node.removesuffix(SEPARATOR)
        phases = {
            graph.places[node].phase
            for graph in self._graphs_of(function, around.calls, {node})
            if node in graph.places
        }
        if len(phases) == 1 and phases != {"forward"}:
            return phases.pop()
        return self._phase_around(around, function)

    def _place(self, inlined: Inlined, op: str, graphs: Sequence[Graph]) -> Place:
        node, made = inlined.node, scopes.as_made(inlined.node)
        known = [graph.places.get(node) or graph.places.get(made) for graph in graphs]
        exact = {place for place in known if place is not None}
        if len(exact) == 1:
            return self._in_loop(exact.pop(), inlined)
        layers = graphs[0].layers if len(graphs) == 1 else self._graphs.layers
        return self._in_loop(place_by_name(node, op, layers), inlined)

    def _in_loop(self, place: Place, inlined: Inlined) -> Place:
        """What has no scope in the body of a layer's loop is that layer's."""
        around = scopes.caller(inlined.calls).node
        if not place.name.startswith(UNNAMED) or not self._graphs.layers.find(around):
            return place
        return Place(f"{self._graphs.layers.resolve(around)}{inlined.node}", place.phase)

    def _compiled(self, subject: Subject) -> Named:
        """An instruction of a compiled program; its own name where nothing says where it came from."""
        module = self._modules.get(subject.program)
        source = None
        if module:
            self._used[module.number] = module
            source = module.source(subject.instruction)
        if source is None and subject.path:
            source = Instruction(op_name=subject.path)
        if source is None or not source.op_name:
            own = subject.name if subject.role == Role.KERNEL else f"hlo/{subject.name}"
            return Named(f"{UNNAMED}/{own}", leaf(own), "other")
        if jax_names.is_name_stack(source.op_name):
            name, phase = jax_names.place(source.op_name)
            return Named(name, leaf(name) if source.opcode in ("", *_COMPOSED) else source.opcode, phase)
        return self._of_tensorflow(source, module)

    def _of_tensorflow(self, source: Instruction, module: Module | None) -> Named:
        inlined = scopes.inlined(source.op_name)
        place = self._place(inlined, source.op_type, self._compiled_from(module) if module else [])
        return Named(place.name, source.op_type or leaf(place.name), place.phase)

    def _compiled_from(self, module: Module) -> list[Graph]:
        compiled = _COMPILED_FUNCTION.match(module.name)
        key = (f"_{compiled['function']}" if compiled else module.name, "")
        if key not in self._ran:
            nodes = {scopes.inlined(op_name).node for op_name in module.op_names}
            self._ran[key] = self._graphs_of(*key, nodes)
        return self._ran[key]


def _name_in(phase: str, name: str, op: str) -> str:
    """The name of what turned out to be of another phase than the forward pass."""
    if phase != "optimizer":
        return name
    return f"{OPTIMIZER}/{op}" if name.startswith(UNNAMED) else part_of_optimizer(name, op, Layers())


def _eager(op: str, context: Context) -> Named:
    phase = context.phase or ("forward" if context.scope else "other")
    bucket = ACCUMULATION if op == "AddN" and phase == "backward" else UNNAMED
    scope = _NUMBERED_OPTIMIZER.sub(OPTIMIZER, context.scope)
    return Named(f"{scope or bucket}/{op}", op, phase)


def _what(name: str) -> str:
    """What the runtime does, without for which node, function or line of Python."""
    if name.startswith(_PYTHON_CALL):
        return "python"
    if moved := roles.transfer(name):
        return moved
    if name.startswith("RemoteCall: "):
        return "RemoteCall"
    call = roles.node_and_op(name)
    if call is None:
        return name
    return "function call" if call[1].startswith("__inference_") else call[1]


def _in_pipeline(path: str) -> Named:
    return Named(f"{INPUT}{SEPARATOR}{path}", leaf(path), "other")


def _pipeline_path(name: str) -> str:
    """``Prefetch/BatchV2`` of ``Iterator::Root::Prefetch::BatchV2``."""
    return name.removeprefix("Iterator::Root::").replace("Op::DoCompute", "").replace("::", SEPARATOR)


def _kernel(name: str) -> Named:
    """A kernel that nothing names; copies to the GPU feed it."""
    return _in_pipeline(name) if _COPY_IN.match(name) else Named(f"{UNNAMED}/{name}", name, "other")
