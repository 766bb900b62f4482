"""What feeds what in a session, seen where it costs little: at the borders of modules and of backward passes.

- The backward pass walks a graph that joins the operations of the forward pass: it is read when it begins.
  That is exact, and names operations by the numbers that the trace has for them.
- Where nothing is differentiated, tensors tell: what a module gives back and another one is given. A tensor
  is known by its storage, so that a view of it is the same, and by its version, so that one that was written
  to is not. What else a module is given, the module around it has made itself.

Storages are held weakly: none lives longer for it, and no address is taken for that of another one.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joulemap.frameworks.torch.flags import autocast

_MOST_TENSORS, _MOST_NODES = 20_000, 50_000
"""In one session; what comes after is not looked at."""
_DEEPEST = 7
_PLAIN = (type(None), bool, int, float, str)
_NO_NUMBER = 1 << 62
"""Nodes that stand for parameters have numbers from here on."""

Pairs = dict[tuple[str, str], None]


@dataclass(slots=True)
class _Made:
    """A tensor that a module gave back: which one, of which version, and whether anybody took it."""

    storage: Any
    version: int
    tensor: int
    label: str
    taken: bool = False


@dataclass(slots=True)
class _Call:
    """A module's call that is open: the storages it was given, and what modules inside it have made."""

    label: str
    given: set[int]
    made: list[_Made] = field(default_factory=list)


class _Thread(threading.local):
    def __init__(self) -> None:
        self.calls: list[_Call] = []


class Dataflow:
    """One session's. Modules are known by their labels."""

    def __init__(self) -> None:
        self.passes: Pairs = {}
        """From a module to another one."""
        self.taken_in: Pairs = {}
        """From a module to the one around it, which computes with it by itself."""
        self.handed_out: Pairs = {}
        """From a module that has computed something by itself to one inside it."""
        self.autocast: dict[str, str] = {}
        """What modules were called to cast to, by the kind of device."""
        self.graph = Graph()
        self._made: dict[int, _Made] = {}
        self._thread = _Thread()

    def call_begins(self, label: str, inputs: Any) -> None:
        """A module is called with these."""
        around = self._thread.calls[-1] if self._thread.calls else None
        call = _Call(label, set())
        self._thread.calls.append(call)
        self.autocast |= autocast()
        for storage, version, tensor, _ in _tensors(inputs):
            key = storage._cdata
            call.given.add(key)
            known = self._made.get(key)
            if known is not None and known.version == version:
                known.taken = True
                self.passes[known.label, label] = None
            elif around is not None and key not in around.given and not _is_parameter(tensor):
                self.handed_out[around.label, label] = None

    def call_ends(self, output: Any) -> None:
        """It has given this back, or nothing."""
        call = self._thread.calls.pop()
        around = self._thread.calls[-1] if self._thread.calls else None
        for storage, version, _, number in _tensors(output):
            known = self._made.get(storage._cdata)
            if known is None or (known.version, known.tensor) != (version, number):
                known = self._make(storage, version, number, call.label)
            if around is not None and known is not None:
                around.made.append(known)
            call.made = [one for one in call.made if one is not known]
        self.taken_in |= dict.fromkeys((one.label, call.label) for one in call.made if not one.taken)

    def _make(self, storage: Any, version: int, number: int, label: str) -> _Made | None:
        from torch.multiprocessing.reductions import StorageWeakRef

        if len(self._made) >= _MOST_TENSORS:
            return None
        made = _Made(StorageWeakRef(storage), version, number, label)
        self._made[storage._cdata] = made
        return made


class Graph:
    """The autograd graphs of a session: nodes by their number and name, and which feeds which."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[int, str], int] = {}
        self._edges: list[tuple[int, int]] = []

    def see(self, roots: Sequence[Any]) -> None:
        """What is differentiated, as ``backward`` and ``grad`` are given it."""
        stack = [node for node in map(_node, roots) if node is not None]
        met = set(stack)
        while stack and len(self._nodes) < _MOST_NODES:
            node = stack.pop()
            number = self._number(node)
            before = [one for one, _ in node.next_functions if one and one._sequence_nr() < _NO_NUMBER]
            self._edges += [(self._number(one), number) for one in before]
            new = set(before) - met
            met |= new
            stack += new

    def _number(self, node: Any) -> int:
        return self._nodes.setdefault((node._sequence_nr(), node.name()), len(self._nodes))

    def columns(self) -> tuple[NDArray[np.int64], list[str], NDArray[np.int32]]:
        """The nodes' sequence numbers and names, and pairs of their places: who feeds whom."""
        sequence = np.array([number for number, _ in self._nodes], np.int64)
        return sequence, [name for _, name in self._nodes], np.array(self._edges, np.int32).reshape(-1, 2)


def _node(root: Any) -> Any:
    """The graph's last node: that of a tensor, or the one that is given in its place."""
    import torch

    with torch._C.DisableTorchFunction():
        return root.grad_fn if isinstance(root, torch.Tensor) else root.node


def _tensors(value: Any) -> list[tuple[Any, int, Any, int]]:
    """Storage, version, tensor and its number of all that are in a value, without asking the tensors' own
    classes."""
    import torch

    with torch._C.DisableTorchFunction():
        held = _held_in(value, torch.Tensor)
        return [found for tensor in held if (found := _known_by(tensor)) is not None]


def _known_by(tensor: Any) -> tuple[Any, int, Any, int] | None:
    """None for what has no storage: sparse ones, and those inside ``torch.func``."""
    try:
        version = 0 if tensor.is_inference() else tensor._version
        return tensor.untyped_storage(), version, tensor, tensor._cdata
    except RuntimeError:
        return None


def _held_in(value: Any, tensors: type) -> list[Any]:
    """The tensors in tuples, lists, dicts and dataclasses; no code of the program's runs for it."""
    found, level = [], [value]
    for _ in range(_DEEPEST):
        found += [one for one in level if isinstance(one, tensors)]
        level = [part for one in level if not isinstance(one, _PLAIN) for part in _parts(one)]
    return found


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, tuple):
        return tuple.__iter__(value)
    if isinstance(value, list):
        return list.__iter__(value)
    if isinstance(value, dict):
        return dict.values(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return list(getattr(value, "__dict__", {}).values())
    return ()


def _is_parameter(tensor: Any) -> bool:
    from torch.nn import Parameter

    return isinstance(tensor, Parameter)
