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
        return Place(_gradient_name(name, forward, op, layers), "backward")
    made = scopes.as_made(name)
    if scopes.is_clipping(name):
        return Place(f"{CLIPPING}/{made}", "optimizer")
    if not layers.find(made) and scopes.is_optimizer(name):
        return Place(_under(made, op), "optimizer")
    if SEPARATOR not in made and scopes.is_automatic(made, op):
        return Place(
            f"{ACCUMULATION if op == 'AddN' else UNNAMED}/{op}", "backward" if op == "AddN" else "forward"
        )
    return Place(_under(layers.resolve(made), op), "forward")


def _place(name: str, node: Node, flow: Dataflow, layers: Layers) -> Place:
    if name in ("_SOURCE", "_SINK"):
        return Place(f"{RUNTIME}/{name}", "other")
    if name.startswith(("_arg_", "_retval_")):
        return Place(f"{INPUT}/{node.op}", "other")
    if (forward := scopes.forward_of(name)) is not None:
        return Place(_gradient_name(name, forward, node.op, layers), "backward")
    if name in flow.backward:
        return Place(f"{ACCUMULATION}/{node.op}", "backward")
    if name in flow.optimizer:
        return Place(_optimizer_name(name, node, flow, layers), "optimizer")
    if name in flow.metrics:
        return Place(f"{METRICS}/{node.op}", "other")
    made = scopes.as_made(name)
    phase = "recompute" if name in flow.recomputed else "forward"
    return Place(
        _under(layers.resolve(made), node.op) if flow.scoped(name) else f"{UNNAMED}/{node.op}", phase
    )


def _gradient_name(name: str, forward: str, op: str, layers: Layers) -> str:
    """A gradient is its forward layer's; one without is that of the layer whose loop it is in, if any."""
    made = scopes.as_made(forward)
    if SEPARATOR in made:
        return layers.resolve(made)
    around = scopes.forward_of(name[: len(name) - len(forward)].rstrip(SEPARATOR).rpartition(SEPARATOR)[0])
    if around:
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
    scope, _, rest = layers.resolve(made).partition(SEPARATOR)
    return (
        SEPARATOR.join((scope, variable, rest))
        if variable and rest
        else _under(layers.resolve(made), node.op)
    )
