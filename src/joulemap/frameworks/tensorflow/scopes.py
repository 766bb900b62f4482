"""What the name of a TensorFlow node says by itself.

A node's name is its path of scopes. Prefixes tell of functions that were inlined, of gradients, and of what
the graph optimizer (Grappler) rewrote; the rest is where the node was made.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from joulemap.program import SEPARATOR

_INLINED = re.compile(
    r"(?:^|(?<=/))(?:(?:Stateful)?PartitionedCall(?:_\d+)?|[^/]+/(?:body|cond|then|else|branch\d+)/_\d+)/"
)
_BODY = re.compile(r"/(?:body|cond|then|else|branch\d+)/_\d+/$")
_GRADIENTS = re.compile(r"(?:^|/)(?:gradients(?:_\d+)?|gradient_tape)/")
_REWRITTEN = re.compile(
    r"ConstantFolding/(?=.*/)|ArithmeticOptimizer/[A-Za-z]+_(?:Leaf_\d+_)?|RemapperOptimizer/|/unary_ops_composition$"
    r"|/_\d+(?:__cf__\d+)?$"
)
_REPLICA = re.compile(r"(?:replica|update)_\d+(?:_\d+)?/")
_FUNCTIONS = re.compile(
    r"(?:cond|while|Cast|Read|MatVec|Tensordot|(?:ones|zeros)(?:_like)?|Assert|assert_\w+|"
    r"(?:stateful|stateless|random)_(?:normal|uniform|truncated_normal)|truncated_normal)(?:_\d+)?"
)
_LOSS = re.compile(
    r"(?:\w+_)?loss|\w*cross_?entropy(?:_with_logits)?|(?:Sparse)?SoftmaxCrossEntropyWithLogits|"
    r"(?:mean|sum)_(?:squared|absolute)\w*_error|huber|kl_divergence|log_cosh|\w*hinge",
)
_HOUSEKEEPING = re.compile(r"(?P<scope>save|global_step|report_uninitialized_variables)(?:_\d+)?(?:/|$)")
_UPDATE = re.compile(r"(?:^|/)update_(?!\d+(?:_\d+)?/)[^/]+/")
_NUMBER = re.compile(r"_\d+$")
_OTHER_WORDS = ("truediv", "floordiv", "groupdeps", "mod", "packed", "stack", "unstack")
_SLOT = re.compile(
    r"(?P<variable>.+)/(?:(?:adam|lamb)_[mv]|Adam(?:_1)?|Momentum|RMSProp(?:_1)?|Adagrad|Adadelta(?:_1)?|Ftrl(?:_1)?)"
    r"(?:/(?P<part>.*))?$"
)
_PART_OF_SLOT = re.compile(r"Assign|read|(?:Read|Initializer|IsInitialized)/.*")
_OPTIMIZER = re.compile(
    r"(?:^|/)(?:Adam(?:W|ax)?|adam(?:_?w|ax)?|Nadam|nadam|LAMB|lamb|SGD|sgd|Momentum|GradientDescent|RMS[pP]rop|"
    r"rm_?sprop|Adagrad|adagrad|Adadelta|adadelta|Ftrl|ftrl|lion|adafactor|muon|loss_scale_optimizer|"
    r"beta[12]_power|update_[^/]+)(?:_\d+)?(?:/|$)"
)
_CLIPPING = re.compile(r"(?:clip_by_global_norm|global_norm|clip_by_norm)(?:_\d+)?/")


class Inlined(NamedTuple):
    """A node's name where it was made, and the calls, loops and branches through which it got here."""

    calls: str
    node: str


def inlined(name: str) -> Inlined:
    """``StatefulPartitionedCall/while/body/_7/`` and ``dense/MatMul``."""
    end = 0
    for match in _INLINED.finditer(name):
        end = match.end()
    return Inlined(name[:end], name[end:])


def caller(calls: str) -> Inlined:
    """The innermost loop or branch, as a scope: ``rnn/while/`` of ``…/rnn/while/body/_7/``."""
    return inlined(_BODY.sub("/", calls))


def forward_of(name: str) -> str | None:
    """The forward node whose gradient this is, with the gradient's own operation; None for others."""
    end = 0
    for match in _GRADIENTS.finditer(name):
        end = match.end()
    return name[end:] if end else None


def as_made(name: str) -> str:
    """The name before Grappler rewrote the node."""
    return _REWRITTEN.sub("", name)


def unreplicated(name: str) -> str:
    """The name without the scope that ``tf.distribute`` puts around what it does once for each replica."""
    return _REPLICA.sub("", name, count=1) if _REPLICA.match(name) else name


def first(name: str) -> str:
    """The outermost scope."""
    return unreplicated(as_made(name)).partition(SEPARATOR)[0]


def is_function(scope: str) -> bool:
    """Whether a function of TensorFlow opens this scope on its own, wherever it is called."""
    return bool(_FUNCTIONS.fullmatch(scope))


def is_loss(scope: str) -> bool:
    """Whether a scope is that of a loss."""
    return bool(_LOSS.fullmatch(_NUMBER.sub("", scope)))


def housekeeping(name: str) -> str | None:
    """The scope in which a session saves, restores or checks variables, or counts steps; None for others."""
    found = _HOUSEKEEPING.match(name)
    return found["scope"] if found else None


def optimizer(name: str) -> str | None:
    """The scope of the optimizer that a name is in, as far as its name tells."""
    found = _OPTIMIZER.search(name)
    return name[: found.end()].removesuffix(SEPARATOR) if found else None


def names_variable(name: str) -> bool:
    """Whether the name of an optimizer's node has that of the variable, as those of sessions do."""
    slot = _SLOT.match(name)
    part = slot["part"] if slot else ""
    return part is None or bool(_PART_OF_SLOT.fullmatch(part) or _UPDATE.search(name))


def is_automatic(name: str, op: str) -> bool:
    """Whether TensorFlow made the name from the operation: ``Mul_3``, ``add`` for AddV2, ``truediv``."""
    base = _NUMBER.sub("", name).replace("_", "").lower()
    return op.lower().startswith(base) or base in _OTHER_WORDS


def is_clipping(name: str) -> bool:
    """Whether gradients are clipped here."""
    return bool(_CLIPPING.match(name))


def is_optimizer(name: str) -> bool:
    """Whether the name is that of an optimizer's work, of its slots, or of clipping."""
    if forward_of(name) is not None:
        return False
    return bool(_SLOT.match(name) or is_clipping(name) or _OPTIMIZER.search(name))


def variable(name: str) -> str:
    """The variable that a slot belongs to; a variable is its own."""
    slot = _SLOT.match(name)
    return slot["variable"] if slot else name


@dataclass(frozen=True, slots=True)
class Layers:
    """Which scopes of a graph are which layers', by path."""

    of_scope: Mapping[str, str] = field(default_factory=dict)

    def scope(self, node: str) -> str | None:
        """The innermost scope of a layer that a node is in; None without."""
        scope = node
        while scope := scope.rpartition(SEPARATOR)[0]:
            if scope in self.of_scope:
                return scope
        return None

    def find(self, node: str) -> tuple[str, str] | None:
        """The path of the innermost layer that a node is in, and the rest of its name; None without."""
        scope = self.scope(node)
        return None if scope is None else (self.of_scope[scope], node[len(scope) + 1 :])

    def resolve(self, node: str) -> str:
        """The node's name with its scope exchanged for the layer's path."""
        found = self.find(node)
        return SEPARATOR.join(found) if found else node
