"""Kinds of inference, by the model that is called, and of training, by the optimizer: what one does says
nothing of another."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from math import log
from typing import Any, NamedTuple

from joulemap.frameworks.torch.given import ABSENT, FEWEST, Between
from joulemap.frameworks.watch import from_a_signal
from joulemap.program import FAR, sized, unsized

INFERENCE, TRAIN = "inference", "train"
MOST = 8
"""Models that are told apart, and sizes of each beside the first; models that come later are of the last
kind, sizes of the nearest. Each kind takes a session of its own."""
TOO_MANY = (
    f"The program calls more than {MOST} models by themselves: those after the first {MOST - 1} are taken "
    "for one kind, and what all of them take goes by the one that was traced."
)
_REMEMBERED = 1000


def is_inference(label: str) -> bool:
    """Whether steps of this label are of inference."""
    return label.startswith(INFERENCE)


class InferenceKinds:
    """``inference`` for the first model, ``inference 2`` for the next. Models of one class that are as large
    are of one kind: the layers that a program calls by itself, or one that is made anew for every call. Where
    a model is given far more or far less than at first, that is ``inference (4 numbers)``. What loaders give
    it is of one kind, by the size of the first."""

    def __init__(self) -> None:
        self._labels: dict[int, tuple[weakref.ref[Any], str]] = {}
        self._kinds: dict[tuple[str, int], str] = {}
        self._sizes: dict[str, list[int]] = {}
        self._fed: dict[str, int] = {}

    @property
    def too_many(self) -> bool:
        """Whether the last kind is of several models."""
        return len(self._kinds) > MOST

    def label(self, module: Any, numbers: int = ABSENT, fed: bool = False) -> str:
        """Of a step that is a call of this module with so many numbers, ``fed`` by a loader."""
        label, numbers = self._of_model(module), max(numbers, FEWEST)
        if fed:
            numbers = self._fed.setdefault(label, numbers)
        sizes = self._sizes.setdefault(label, [numbers])
        if not _near(_its(sizes, numbers), numbers) and len(sizes) <= MOST:
            sizes.append(numbers)
        size = _its(sizes, numbers)
        return label if size == sizes[0] else sized(label, size)

    def between(self, label: str, numbers: int) -> Between:
        """How many numbers other calls may have that are of this kind, as one with so many is."""
        if numbers == ABSENT:
            return ABSENT, ABSENT
        sizes = self._sizes[unsized(label)]
        size = _its(sizes, numbers)
        if not _near(size, numbers):
            return numbers, numbers
        earlier = sizes[: sizes.index(size)]
        least = max([FAR * one + 1 for one in earlier if one < size], default=FEWEST)
        most = min([-(-one // FAR) - 1 for one in earlier if one > size], default=FAR * size)
        return max(least, -(-size // FAR)), min(most, FAR * size)

    def _of_model(self, module: Any) -> str:
        known, label = self._labels.get(id(module), (_nobody, ""))
        if known() is module:
            return label
        kind = f"{type(module).__module__}.{type(module).__qualname__}", numbers_in(module)
        label = self._kinds.get(kind) or self._next()
        if not self.too_many:  # else any other is of the last kind, too
            self._kinds[kind] = label
        if len(self._labels) >= _REMEMBERED:
            self._labels.clear()
        self._labels[id(module)] = weakref.ref(module), label
        return label

    def _next(self) -> str:
        number = min(len(set(self._kinds.values())) + 1, MOST)
        return INFERENCE if number == 1 else f"{INFERENCE} {number}"


def _its(sizes: list[int], numbers: int) -> int:
    """The size that so many numbers are of: the first that they are near, so that it stays the same."""
    near = [size for size in sizes if _near(size, numbers)]
    return near[0] if near else min(sizes, key=lambda one: abs(log(one / numbers)))


def _near(one: int, other: int) -> bool:
    return max(one, other) <= FAR * min(one, other)


class TrainingKinds:
    """``train`` for the steps of the first optimizer, ``train 2`` for those of the next."""

    def __init__(self) -> None:
        self._optimizers: list[_Known] = []

    def number(self, optimizer: Any) -> tuple[int, bool]:
        """Of an optimizer: that of one of its kind for the same parameters, whose place it takes, or of one
        that is gone and was for as many; where there are too many, of any that is gone. And whether it is
        known, or takes another's place."""
        for number, known in enumerate(self._optimizers):
            if known.optimizer() is optimizer:
                return number, True
        kind, size = _kind(optimizer)
        gone = [number for number, known in enumerate(self._optimizers) if known.optimizer() is None]
        same = [n for n, known in enumerate(self._optimizers) if (known.kind, known.size) == (kind, size)]
        alike = [number for number in gone if self._optimizers[number].size == size]
        any_gone = gone if len(self._optimizers) >= MOST else []
        number = next(iter(same + alike + any_gone), len(self._optimizers))
        self._optimizers[number : number + 1] = [_Known(weakref.ref(optimizer), kind, size)]
        return number, bool(same)

    def optimizer(self, number: int) -> Callable[[], Any]:
        """A weak reference to the one that has this number now."""
        return self._optimizers[number].optimizer

    @staticmethod
    def label(number: int | None) -> str:
        """Of the steps that it ends."""
        return f"{TRAIN} {min(number + 1, MOST)}" if number else TRAIN


class _Known(NamedTuple):
    """An optimizer, what makes others do the same step (their class, and the parameters that they have), and
    how much that is."""

    optimizer: weakref.ref[Any]
    kind: tuple[str, frozenset[int]]
    size: tuple[str, int, int]


def _kind(optimizer: Any) -> tuple[tuple[str, frozenset[int]], tuple[str, int, int]]:
    name = type(optimizer).__qualname__
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    return (name, frozenset(map(id, parameters))), (name, len(parameters), numbers_in(parameters))


def numbers_in(parameters: Any) -> int:
    """How many numbers parameters are, or those of a module; 0 where that cannot be told, since some have no
    shape yet or the module is an odd one. While a call is traced into a graph, to ask for shapes would be a
    part of that."""
    from torch._C import DisableTorchFunction, _get_tracing_state
    from torch.nn import Module

    if _get_tracing_state() is not None:
        return 0
    try:
        with DisableTorchFunction():  # modes of the program's own hear nothing of it
            some = Module.parameters(parameters) if isinstance(parameters, Module) else parameters
            return sum(one.numel() for one in some)
    except Exception as error:
        if from_a_signal(error):
            raise
        return 0  # whatever a module of the program's has made of itself


def _nobody() -> None:
    """In the place of a module that is not known."""
