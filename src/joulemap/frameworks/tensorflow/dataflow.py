"""What the dataflow of a graph says of nodes whose names say too little.

- Optimizers written by hand are arithmetic without a scope (``Mul_388``, ``Assign_550``); those of Keras have
  one, but it does not name the variable. The dataflow ties them to slots, to gradients, and to the variable
  that they update.
- Gradients that meet are added up outside every layer.
- What a layer computes a second time for the backward pass has the gradient before it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from joulemap.frameworks.tensorflow import scopes
from joulemap.frameworks.tensorflow.scopes import Layers
from joulemap.program import SEPARATOR

_ASSIGNS = re.compile(r"Assign|Apply|Scatter")
_HAS_EFFECT = re.compile(r"Assign|Apply|Scatter|^Identity|If$|While$|Case$|PartitionedCall$")
"""What is of use without feeding anything: it changes variables, or hands its result to the caller."""

_CARRIES_GRADIENTS = ("AddN", "AddV2", "Add", "Identity", "IdentityN", "Cast")
CAPTURED = "Placeholder"
"""How a function sees what lives outside of it: its arguments, and variables."""

_NO_GRADIENT = re.compile(
    r"EmptyTensorList|TensorList(?:Reserve|Length|ElementShape)|Shape|Placeholder|Const"
)


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
        self._outermost = {
            scopes.first(name): node.op
            for name, node in nodes.items()
            if SEPARATOR not in scopes.unreplicated(scopes.as_made(name))
        }
        self.backward = self._backward()
        self.optimizer = self._optimizer()
        self.again = self._again()
        """For nodes that come after a gradient and serve only gradients: whether they compute again what
        the forward pass has computed (recompute), or are a gradient that the program defines (backward)."""
        self.metrics = self._metrics()
        self.variable = self._variables()
        """The variable, or the layer of the variable, that an optimizer's node helps to update; empty
        where it serves several."""

    def scoped(self, name: str) -> bool:
        """Whether the name says where the node belongs; ``Mul_3/x`` is only an argument of ``Mul_3``."""
        first = scopes.first(name)
        if self._layers.find(name):
            return True
        if first not in self._outermost:
            return first != "ArithmeticOptimizer" and not scopes.is_function(first)
        return not scopes.is_function(first) and not scopes.is_automatic(first, self._outermost[first])

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
        found |= self._with_gradients()
        pending = list(found)
        while pending:
            name = pending.pop()
            fresh = [after for after in self._consumers[name] if not self.scoped(after)]
            fresh += [before for before in self._nodes[name].inputs if self._only_feeds(before, found)]
            pending.extend(node for node in fresh if node not in found)
            found.update(fresh)
        return found | self._left_over(found)

    def _with_gradients(self) -> set[str]:
        """What is done outside of every scope with gradients, and not for further ones: tests, updates."""
        after = self._reached(
            self._gradients(), lambda name: [n for n in self._consumers[name] if not self.scoped(n)]
        )
        after -= self._reached(self.backward, self._inputs)
        done = {name for name in after if _HAS_EFFECT.search(self._nodes[name].op)}
        return self._reached(done, lambda name: after.intersection(self._inputs(name)))

    def _inputs(self, name: str) -> list[str]:
        return [before for before in self._nodes[name].inputs if before in self._nodes]

    @staticmethod
    def _reached(start: Collection[str], following: Callable[[str], Iterable[str]]) -> set[str]:
        """The nodes that can be reached, and those to start from."""
        found, pending = set(start), list(start)
        while pending:
            fresh = set(following(pending.pop())) - found
            found |= fresh
            pending.extend(fresh)
        return found

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

    def _again(self) -> dict[str, str]:
        """Layers, and what has a gradient of its own, are computed again, with all that this needs.

        Where scopes are all that is known, they may hold anything: those stay in the forward pass.
        """
        between = {n for n in self._between_gradients() if self._layers.find(n) or not self.scoped(n)}
        again = between & self._differentiated()
        again |= {name for name in between if self._layers.find(name)}
        near = self._reached(
            again, lambda name: between.intersection((*self._consumers[name], *self._nodes[name].inputs))
        )
        return {name: "recompute" if name in near else "backward" for name in between}

    def _differentiated(self) -> set[str]:
        """Nodes whose gradients are named after them."""
        forward = (scopes.forward_of(name) for name in self.backward)
        return {name.rpartition(SEPARATOR)[0].removesuffix("_grad") for name in forward if name is not None}

    def _between_gradients(self) -> set[str]:
        """Nodes that come after a gradient, and feed nothing but gradients and each other."""
        others = self.backward | self.optimizer
        after_gradient = self._reached(
            self._gradients(), lambda name: [n for n in self._consumers[name] if n not in others]
        )
        after_gradient -= self.backward
        serving = after_gradient | self.backward
        pending = list(after_gradient)
        while pending:
            name = pending.pop()
            if name in after_gradient and not self._only_serves(name, serving):
                after_gradient.remove(name)
                serving.remove(name)
                pending.extend(before for before in self._nodes[name].inputs if before in after_gradient)
        return after_gradient

    def _gradients(self) -> set[str]:
        """The backward pass without what is no gradient: lists that a loop will fill for its gradient are
        made before it, and shapes are known before."""
        return {name for name in self.backward if not _NO_GRADIENT.fullmatch(self._nodes[name].op)}

    def _only_serves(self, name: str, others: set[str]) -> bool:
        """Whether a node feeds only others. A result may go unused the second time."""
        if not self._consumers[name]:
            in_layer = self._layers.find(name) is not None
            return in_layer or not (self.scoped(name) or _HAS_EFFECT.search(self._nodes[name].op))
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
