"""Qualified names and phases for what a TensorFlow profile says ran."""

from __future__ import annotations

import re
from collections.abc import Sequence

from joulemap.frameworks.imported import ACCUMULATION, UNNAMED
from joulemap.frameworks.tensorflow.frames import INPUT_FUNCTION
from joulemap.frameworks.tensorflow.graphs import Graph
from joulemap.frameworks.tensorflow.host import Context, Named, Subject
from joulemap.frameworks.tensorflow.roles import Role
from joulemap.program import SEPARATOR, leaf

COMPILATION, INPUT, RUNTIME = "(compilation)", "input pipeline", "(runtime)"
_CALLS = re.compile(r"(?:^|/)(?:Stateful)?PartitionedCall(?:_\d+)?(?=/)")
_GRADIENTS = re.compile(r"(?:.*/)?(?:gradients(?:_\d+)?|gradient_tape)/(?P<forward>.+)")
_OPTIMIZER = re.compile(
    r"(?:adam|sgd|rmsprop|adagrad|adadelta|adamax|nadam|ftrl|lion|lamb|adafactor|muon)\w*/", re.I
)


class Naming:
    """Names for everything that can run; graphs tell which scope is which layer's."""

    def __init__(self, graphs: Sequence[Graph] = ()) -> None:
        self._graphs = graphs

    def __call__(self, subject: Subject, context: Context) -> Named:
        if subject.role == Role.NODE:
            return self._node(subject, context)
        if subject.role == Role.EAGER:
            return Named(f"{context.scope or UNNAMED}/{subject.name}", subject.name, context.phase or "other")
        if subject.role == Role.DATA:
            path = pipeline_path(subject.name)
            return Named(f"{INPUT}/{path}", leaf(path), "other")
        if subject.role == Role.HLO:
            return Named(f"{UNNAMED}/hlo/{subject.name}", "hlo", "other")
        bucket = COMPILATION if subject.role == Role.COMPILING else RUNTIME
        return Named(f"{bucket}/{subject.name}", subject.name, "other")

    def _node(self, subject: Subject, context: Context) -> Named:
        node = _CALLS.sub("", subject.name).lstrip(SEPARATOR)
        if context.function == INPUT_FUNCTION:
            return Named(f"{INPUT}/{node}", subject.op, "other")
        phase = "forward"
        if gradient := _GRADIENTS.match(node):
            node, phase = gradient["forward"], "backward"
        elif _OPTIMIZER.match(node):
            return Named(node, subject.op, "optimizer")
        if subject.op == "AddN" and SEPARATOR not in node:
            return Named(f"{ACCUMULATION}/{subject.op}", subject.op, "backward")
        layers = {found for graph in self._graphs if (found := graph.layer(node))}
        if len(layers) == 1:
            return Named(SEPARATOR.join(layers.pop()), subject.op, phase)
        return Named(node if SEPARATOR in node else f"{UNNAMED}/{subject.op}", subject.op, phase)


def pipeline_path(name: str) -> str:
    """``Prefetch/BatchV2`` of ``Iterator::Root::Prefetch::BatchV2``."""
    return name.removeprefix("Iterator::Root::").replace("Op::DoCompute", "").replace("::", SEPARATOR)
