"""What the dataflow of a graph says of nodes whose names say too little.

- Optimizers written by hand are arithmetic without a scope (``Mul_388``, ``Assign_550``); those of Keras have
  one, but it does not name the variable. The dataflow ties them to slots, to gradients, and to the variable
  that they update.
- Gradients that meet are added up outside every layer.
- What a layer computes a second time for the backward pass has the gradient before it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from joulemap.frameworks.tensorflow import scopes
from joulemap.frameworks.tensorflow.scopes import Layers
from joulemap.program import SEPARATOR

_ASSIGNS = re.compile(r"Assign|Apply|Scatter")
_CARRIES_GRADIENTS = ("AddN", "AddV2", "Add", "Identity", "IdentityN", "Cast")
CAPTURED = "Placeholder"
"""How a function sees what lives outside of it: its arguments, and variables."""

_NO_GRADIENT = ("EmptyTensorList", "TensorListReserve", "Placeholder", "Const")


@dataclass(frozen=True, slots=True)
class Node:
    """A graph node: its operation's type and the names of the nodes that feed it."""

    op: str
    inputs: tuple[str, ...] = ()


def input_name(text: str) -> str:
    """The node behind an input: ``^node`` is a control input, ``node:1`` its second output."""
    return text.removeprefix("^").partition(":")[0]


class Dataflow:
    """A graph's nodes and what they feed, for the questions that names do not answer."""

    def __init__(self, nodes: Mapping[str, Node], layers: Layers) -> None:
        self._nodes, self._layers = nodes, layers
        self._consumers: dict[str, list[str]] = {name: [] for name in nodes}
        for name, node in nodes.items():
            for source in node.inputs:
                if source in self._consumers:
                    self._consumers[source].append(name)
        self.backward = self._backward()
        self.optimizer = self._optimizer()
        self.recomputed = self._recomputed()
        self.metrics = self._metrics()
        self.variable = self._variables()
        """The variable, or the layer of the variable, that an optimizer's node helps to update; empty
        where it serves several."""

    def scoped(self, name: str) -> bool:
        """Whether the name says where the node belongs; ``Mul_3/x`` is only an argument of ``Mul_3``."""
        first = scopes.first(name)
        if first not in self._nodes:
            return first != "ArithmeticOptimizer"
        return not scopes.is_automatic(first, self._nodes[first].op)

    def _backward(self) -> set[str]:
        """Gradients, and where they are added up and handed on."""
        found = {name for name in self._nodes if scopes.forward_of(name) is not None}
        pending = list(found)
        while pending:
            for after in self._consumers[pending.pop()]:
                node = self._nodes[after]
                if after in found or node.op not in _CARRIES_GRADIENTS or self.scoped(after):
                    continue
                if all(before in found for before in node.inputs):
                    found.add(after)
                    pending.append(after)
        return found

    def _optimizer(self) -> set[str]:
        """Nodes in an optimizer's scope, the arithmetic that follows from them, and what only feeds those."""
        updating = self._updating_scopes()
        found = {
            name
            for name in self._nodes
            if name not in self.backward and (scopes.is_optimizer(name) or scopes.first(name) in updating)
        }
        pending = list(found)
        while pending:
            name = pending.pop()
            fresh = [after for after in self._consumers[name] if not self.scoped(after)]
            fresh += [before for before in self._nodes[name].inputs if self._only_feeds(before, found)]
            pending.extend(node for node in fresh if node not in found)
            found.update(fresh)
        return found | self._left_over(found)

    def _updating_scopes(self) -> set[str]:
        """Scopes in which gradients arrive and variables are assigned, and which no gradient needs."""
        assigned, arrived, needed = set(), set(), set()
        for name, node in self._nodes.items():
            scope = scopes.first(name)
            if scope == name or name in self.backward:
                continue
            if _ASSIGNS.search(node.op):
                assigned.add(scope)
            if any(before in self.backward for before in node.inputs):
                arrived.add(scope)
            if any(after in self.backward for after in self._consumers[name]):
                needed.add(scope)
        return (assigned & arrived) - needed

    def _only_feeds(self, name: str, optimizer: Collection[str]) -> bool:
        """Gradients feed the optimizer too, but they are the backward pass."""
        return (
            name in self._nodes
            and name not in self.backward
            and all(after in optimizer for after in self._consumers[name])
        )

    def _left_over(self, optimizer: Collection[str]) -> set[str]:
        """Constants that nothing reads any more, in scopes whose work is all the optimizer's."""
        work = {
            scopes.first(n) for n, node in self._nodes.items() if n not in optimizer and node.op != "Const"
        }
        left = {scopes.first(name) for name in optimizer} - work
        return {name for name in self._nodes if scopes.first(name) in left}

    def _metrics(self) -> set[str]:
        """Unscoped work that only serves to assign variables outside of every layer and optimizer, and
        what is read off those variables: Keras' metrics."""
        found = {
            name
            for name, node in self._nodes.items()
            if _ASSIGNS.search(node.op) and name not in self.optimizer and not self.scoped(name)
        }
        pending = list(found)
        for name in pending:
            handle = self._nodes[name].inputs[:1]
            readers = [after for before in handle for after in self._consumers.get(before, ())]
            fresh = [after for after in (*readers, *self._consumers[name]) if self._is_free(after)]
            fresh += [
                before
                for before in self._nodes[name].inputs
                if self._only_feeds(before, found) and self._is_free(before)
            ]
            pending.extend(dict.fromkeys(node for node in fresh if node not in found))
            found.update(fresh)
        return found

    def _is_free(self, name: str) -> bool:
        """Whether nothing else says where a node belongs."""
        return not self.scoped(name) and name not in self.optimizer and name not in self.backward

    def _recomputed(self) -> set[str]:
        """Nodes of layers that come after a gradient, and feed nothing but gradients and each other.

        Lists that a loop will fill for its gradient are made and handed in before it: no gradients yet.
        """
        after_gradient: set[str] = set()
        pending = [name for name in self.backward if self._nodes[name].op not in _NO_GRADIENT]
        while pending:
            for after in self._consumers[pending.pop()]:
                if not (after in after_gradient or after in self.backward or after in self.optimizer):
                    after_gradient.add(after)
                    pending.append(after)
        serving = after_gradient | self.backward
        pending = list(after_gradient)
        while pending:
            name = pending.pop()
            if name in after_gradient and not self._only_serves(name, serving):
                after_gradient.remove(name)
                serving.remove(name)
                pending.extend(before for before in self._nodes[name].inputs if before in after_gradient)
        return {name for name in after_gradient if self._layers.find(name)}

    def _only_serves(self, name: str, others: set[str]) -> bool:
        """Whether a node feeds only others. A layer's result may go unused the second time."""
        if not self._consumers[name]:
            return self._layers.find(name) is not None
        return others.issuperset(self._consumers[name])

    def _variables(self) -> dict[str, str]:
        assigned = {name: self._assigned(name) for name in self.optimizer}
        in_function = any(self._is_captured(name) for name in self.optimizer)
        owners = _Owners()
        for name, variable in assigned.items():
            if variable is not None:
                owners.tell(name, variable)
        while owners.pending:
            name = owners.pending.pop()
            for before in self._nodes[name].inputs:
                if before not in self.optimizer:
                    continue
                if self._nodes[before].op == CAPTURED:
                    for after in self._assignments(before):
                        owners.tell(after, owners.of[name])
                elif in_function or not self.scoped(before):
                    owners.tell(before, owners.of[name])
        return owners.of

    def _is_captured(self, name: str) -> bool:
        """Whether a node assigns a variable that lives outside of the graph, as functions do."""
        node = self._nodes[name]
        handle = self._nodes.get(node.inputs[0]) if node.inputs else None
        return bool(_ASSIGNS.search(node.op)) and handle is not None and handle.op == CAPTURED

    def _assigned(self, name: str) -> str | None:
        """The variable that a node assigns, by its name or by the layer that reads it; None for others."""
        node = self._nodes[name]
        if not _ASSIGNS.search(node.op) or not node.inputs:
            return None
        if self._is_captured(name):
            return self._reader(node.inputs[0])
        return None if self.scoped(name) else scopes.variable(node.inputs[0])

    def _reader(self, handle: str) -> str | None:
        """The layer that reads a captured variable in the forward pass: what its readers have in common."""
        others = set(self._consumers[handle]) - self.backward - self.optimizer
        found = map(self._layers.find, others)
        paths = [one[0].split(SEPARATOR) for one in found if one is not None]
        common = [parts[0] for parts in zip(*paths, strict=False) if len(set(parts)) == 1]
        return SEPARATOR.join(common) or None

    def _assignments(self, handle: str) -> list[str]:
        return [
            after
            for after in self._consumers[handle]
            if after in self.optimizer and _ASSIGNS.search(self._nodes[after].op)
        ]


class _Owners:
    """Which variable each node serves, told one after the other; those told of two serve none."""

    def __init__(self) -> None:
        self.of: dict[str, str] = {}
        self.pending: list[str] = []

    def tell(self, name: str, variable: str) -> None:
        merged = variable if self.of.get(name, variable) == variable else ""
        if self.of.get(name) != merged:
            self.of[name] = merged
            self.pending.append(name)
