"""Qualified names and phases of a TensorFlow graph's nodes, from their names and the dataflow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from joulemap.frameworks.imported import ACCUMULATION, UNNAMED
from joulemap.frameworks.tensorflow import scopes
from joulemap.frameworks.tensorflow.dataflow import Dataflow, Node
from joulemap.frameworks.tensorflow.scopes import Layers
from joulemap.program import SEPARATOR

CLIPPING = "gradient clipping"
UPDATE = "(update)"
METRICS = "(metrics)"
OPTIMIZER = "optimizer"
RUNTIME = "(runtime)"
INPUT = "input pipeline"
LOSS = "loss"
_KERAS_LOSS = "compile_loss"


class Place(NamedTuple):
    """Where a node belongs: its qualified name and its phase."""

    name: str
    phase: str


def places(nodes: Mapping[str, Node], layers: Layers | None = None) -> dict[str, Place]:
    """For every node its place. ``layers`` tells which scopes are whose; without, scopes are layers."""
    layers = Layers() if layers is None else layers
    flow = Dataflow(nodes, layers)
    return {name: _place(name, node, flow, layers) for name, node in nodes.items()}


def place_by_name(name: str, op: str, layers: Layers) -> Place:
    """The place of a node of which only the name is known."""
    if (forward := scopes.forward_of(name)) is not None:
        named = not _is_nameless(forward, op, layers)
        return Place(_gradient_name(name, forward, op, layers, named=named), "backward")
    made = scopes.as_made(name)
    if scopes.is_clipping(name):
        return Place(f"{CLIPPING}/{made}", "optimizer")
    found = layers.find(made)
    if scopes.is_optimizer(name) and (found is None or SEPARATOR not in found[0]):
        return Place(part_of_optimizer(made, op, layers), "optimizer")
    if _is_nameless(made, op, layers):
        return Place(
            f"{ACCUMULATION if op == 'AddN' else UNNAMED}/{op}", "backward" if op == "AddN" else "forward"
        )
    return _forward(made, op, layers)


def _place(name: str, node: Node, flow: Dataflow, layers: Layers) -> Place:
    if name in ("_SOURCE", "_SINK"):
        return Place(f"{RUNTIME}/{name}", "other")
    if name.startswith(("_arg_", "_retval_")):
        return Place(f"{INPUT}/{node.op}", "other")
    if (forward := scopes.forward_of(name)) is not None:
        named = flow.scoped(forward)
        return Place(_gradient_name(name, forward, node.op, layers, named=named), "backward")
    if name in flow.backward:
        return Place(f"{ACCUMULATION}/{node.op}", "backward")
    if name in flow.optimizer:
        return Place(_optimizer_name(name, node, flow, layers), "optimizer")
    if name in flow.metrics:
        return Place(f"{METRICS}/{node.op}", "other")
    if not flow.scoped(name):
        return Place(f"{UNNAMED}/{node.op}", flow.again.get(name, "forward"))
    place = _forward(scopes.as_made(name), node.op, layers)
    return place._replace(phase=flow.again.get(name, place.phase))


def _forward(made: str, op: str, layers: Layers) -> Place:
    keeping = scopes.housekeeping(made)
    if keeping and not layers.find(made):
        return Place(f"{keeping}/{op}", "other")
    return Place(_under(_path(made, layers), op), "forward")


def _is_nameless(name: str, op: str, layers: Layers) -> bool:
    """Whether a name that is all that is known says only what is computed, not where."""
    made = scopes.unreplicated(scopes.as_made(name))
    first = scopes.first(name)
    if layers.find(name) or layers.find(made):
        return False
    return scopes.is_function(first) or (first == made and scopes.is_automatic(made, op))


def _path(made: str, layers: Layers) -> str:
    """The node's name with its layer's path; losses outside of every model are together."""
    found = layers.find(made) or layers.find(scopes.unreplicated(made))
    path = SEPARATOR.join(found) if found else scopes.unreplicated(made)
    first, _, rest = path.partition(SEPARATOR)
    if first == LOSS or not scopes.is_loss(first):
        return path
    return SEPARATOR.join((LOSS, rest) if first == _KERAS_LOSS else (LOSS, path))


def _gradient_name(name: str, forward: str, op: str, layers: Layers, *, named: bool) -> str:
    """A gradient is its forward layer's; one without is that of the layer whose loop it is in, if any."""
    made = scopes.as_made(forward)
    if named and SEPARATOR in scopes.unreplicated(made):
        return _path(made, layers)
    around = scopes.forward_of(name[: len(name) - len(forward)].rstrip(SEPARATOR).rpartition(SEPARATOR)[0])
    if around and (layers.find(around + SEPARATOR) or not scopes.is_function(scopes.first(around))):
        return f"{layers.resolve(around + SEPARATOR)}{made}"
    return f"{ACCUMULATION if op == 'AddN' else UNNAMED}/{op}"


def _under(made: str, op: str) -> str:
    """A node that is named like a scope (a variable) becomes a part of that scope."""
    return made if SEPARATOR in made else f"{made}/{op}"


def _optimizer_name(name: str, node: Node, flow: Dataflow, layers: Layers) -> str:
    made, variable = scopes.as_made(name), flow.variable.get(name)
    if scopes.is_clipping(name):
        return f"{CLIPPING}/{made}"
    if not flow.scoped(name):
        return f"{variable}/{UPDATE}/{node.op}" if variable else f"{OPTIMIZER}/{node.op}"
    scope, rest = _in_optimizer(made, layers)
    if variable and rest:
        return SEPARATOR.join((scope, variable, scopes.unreplicated(rest)))
    return part_of_optimizer(made, node.op, layers)


def _in_optimizer(made: str, layers: Layers) -> tuple[str, str]:
    """The optimizer's scope, and the rest of the name."""
    if found := layers.find(made):
        return found
    scope = scopes.optimizer(made) or made.partition(SEPARATOR)[0]
    return scope, made[len(scope) + 1 :]


def part_of_optimizer(made: str, op: str, layers: Layers) -> str:
    """What serves no one variable is told by what it computes, unless its name has the variable."""
    if scopes.names_variable(made):
        return _under(made, op)
    return f"{_in_optimizer(made, layers)[0]}/{op}"
