"""Qualified names and phases of TensorFlow's graph nodes, from their names and the dataflow between them.

A node's name is its path of scopes, so most nodes name their layer themselves. Three kinds do not:

- gradients repeat the path of the forward layer below ``gradients/``;
- optimizers written by hand are arithmetic without a scope (``Mul_388``, ``Assign_550``): the dataflow
  ties it to the optimizer's slots (``…/kernel/adam_m``), to clipped gradients, and to the variable that
  it updates;
- what the runtime adds (``_SOURCE``, ``_arg_…``) belongs to no layer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from joulemap.frameworks.imported import ACCUMULATION, UNNAMED
from joulemap.program import SEPARATOR

CLIPPING = "gradient clipping"
UPDATE = "(update)"
OPTIMIZER = "optimizer"
RUNTIME = "(runtime)"
INPUT = "input pipeline"

_GRADIENTS = re.compile(r"(?:.*/)?(?:gradients(?:_\d+)?|gradient_tape)/(?P<forward>.+)")
_REWRITTEN = re.compile(r"ConstantFolding/(?=.*/)")
_SLOT = re.compile(
    r"(?P<variable>.+)/(?:(?:adam|lamb)_[mv]|Adam(?:_1)?|Momentum|RMSProp(?:_1)?|Adagrad|Adadelta(?:_1)?|Ftrl(?:_1)?)"
    r"(?:/.*)?$"
)
_OPTIMIZER_SCOPE = re.compile(
    r"(?:^|/)(?:Adam(?:W|ax)?|adamw?|Nadam|LAMB|SGD|sgd|Momentum|GradientDescent|RMSprop|RMSProp|rmsprop|Adagrad|"
    r"Adadelta|Ftrl|beta[12]_power|update_[^/]+)(?:_\d+)?(?:/|$)"
)
_CLIPPING = re.compile(r"(?:clip_by_global_norm|global_norm|clip_by_norm)(?:_\d+)?/")
_ASSIGNS = re.compile(r"Assign|Apply|Scatter")


@dataclass(frozen=True, slots=True)
class Node:
    """A graph node: its operation's type and the names of the nodes that feed it."""

    op: str
    inputs: tuple[str, ...] = ()


def input_name(text: str) -> str:
    """The node behind an input: ``^node`` is a control input, ``node:1`` its second output."""
    return text.removeprefix("^").partition(":")[0]


def qualified_names(nodes: Mapping[str, Node]) -> dict[str, tuple[str, str]]:
    """For every node its qualified name and its phase."""
    graph = _Graph(nodes)
    optimizer = graph.optimizer_nodes()
    variables = graph.updated_variables(optimizer)
    named = {}
    for name, node in nodes.items():
        if name in optimizer:
            named[name] = (_optimizer_name(name, node, graph.scoped(name), variables.get(name)), "optimizer")
        else:
            named[name] = _name_and_phase(name, node, graph.scoped(name))
    return named


def _name_and_phase(name: str, node: Node, scoped: bool) -> tuple[str, str]:
    if name in ("_SOURCE", "_SINK"):
        return f"{RUNTIME}/{name}", "other"
    if name.startswith(("_arg_", "_retval_")):
        return f"{INPUT}/{node.op}", "other"
    if gradient := _GRADIENTS.match(name):
        forward = gradient["forward"]
        return (forward if SEPARATOR in forward else _accumulation(node)), "backward"
    return (_scoped_name(name, node) if scoped else f"{UNNAMED}/{node.op}"), "forward"


def _accumulation(node: Node) -> str:
    """Gradients that meet where a tensor was used twice are added up outside every layer."""
    return f"{ACCUMULATION if node.op == 'AddN' else UNNAMED}/{node.op}"


def _scoped_name(name: str, node: Node) -> str:
    """The node's path; a node that is named like a scope (a variable) becomes a part of that scope."""
    plain = _REWRITTEN.sub("", name)
    return plain if SEPARATOR in plain else f"{plain}/{node.op}"


def _optimizer_name(name: str, node: Node, scoped: bool, variable: str | None) -> str:
    if _CLIPPING.match(name):
        return f"{CLIPPING}/{name}"
    if scoped:
        return _scoped_name(name, node)
    return f"{variable}/{UPDATE}/{node.op}" if variable else f"{OPTIMIZER}/{node.op}"


class _Graph:
    """The dataflow, for the questions that names do not answer."""

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self._nodes = nodes
        self._consumers: dict[str, list[str]] = {name: [] for name in nodes}
        for name, node in nodes.items():
            for source in node.inputs:
                if source in self._consumers:
                    self._consumers[source].append(name)

    def scoped(self, name: str) -> bool:
        """Whether the name says where the node belongs; ``Mul_3/x`` is only an argument of ``Mul_3``."""
        first = _first_scope(name)
        if first not in self._nodes:
            return first != "ArithmeticOptimizer"
        return not _is_automatic(first, self._nodes[first].op)

    def optimizer_nodes(self) -> set[str]:
        """Nodes named as optimizer, the arithmetic that follows from them, and what only feeds those."""
        found = {name for name in self._nodes if _is_optimizer(name)}
        pending = list(found)
        while pending:
            name = pending.pop()
            fresh = [after for after in self._consumers[name] if not self.scoped(after)]
            fresh += [
                before
                for before in self._nodes[name].inputs
                if before in self._nodes and self._only_feeds(before, found)
            ]
            pending.extend(node for node in fresh if node not in found)
            found.update(fresh)
        return found | self._left_over(found)

    def _left_over(self, optimizer: set[str]) -> set[str]:
        """Constants that nothing reads any more, in scopes whose work is all the optimizer's."""
        work = {
            _first_scope(n) for n, node in self._nodes.items() if n not in optimizer and node.op != "Const"
        }
        scopes = {_first_scope(name) for name in optimizer} - work
        return {name for name in self._nodes if _first_scope(name) in scopes}

    def _only_feeds(self, name: str, optimizer: set[str]) -> bool:
        """Gradients feed the optimizer too, but they are the backward pass."""
        return not _GRADIENTS.match(name) and all(after in optimizer for after in self._consumers[name])

    def updated_variables(self, optimizer: set[str]) -> dict[str, str]:
        """The variable that each unscoped optimizer node helps to update, where it is a single one."""
        variable: dict[str, str] = {}
        pending = []
        for name in optimizer:
            node = self._nodes[name]
            if not self.scoped(name) and _ASSIGNS.search(node.op) and node.inputs:
                variable[name] = _variable(node.inputs[0])
                pending.append(name)
        while pending:
            name = pending.pop()
            for before in self._nodes[name].inputs:
                if before not in optimizer or self.scoped(before):
                    continue
                merged = variable[name] if variable.get(before, variable[name]) == variable[name] else ""
                if variable.get(before) != merged:
                    variable[before] = merged
                    pending.append(before)
        return variable


def _first_scope(name: str) -> str:
    return _REWRITTEN.sub("", name).partition(SEPARATOR)[0]


def _is_automatic(name: str, op: str) -> bool:
    """Whether TensorFlow made the name from the operation: ``Mul_3``, ``add`` for AddV2, ``truediv``."""
    base = re.sub(r"_\d+$", "", name).replace("_", "").lower()
    return op.lower().startswith(base) or base in ("truediv", "floordiv", "groupdeps")


def _is_optimizer(name: str) -> bool:
    if _GRADIENTS.match(name):
        return False
    return bool(_SLOT.match(name) or _CLIPPING.match(name) or _OPTIMIZER_SCOPE.search(name))


def _variable(name: str) -> str:
    """The variable that a slot belongs to; a variable is its own."""
    slot = _SLOT.match(name)
    return slot["variable"] if slot else name
