"""What operations were called with, where the profiler's plain events do not say.

These leave out the types of tensors in lists (foreach and fused optimizers), and before torch 2.13 their
shapes, and all strides. Its tree of the same events has them; walking that takes some microseconds an event,
so only sessions with shapes do.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from typing import Any

TYPES = {
    "float": "float32",
    "double": "float64",
    "c10::Half": "float16",
    "c10::BFloat16": "bfloat16",
    "c10::Float8_e4m3fn": "float8_e4m3fn",
    "c10::Float8_e5m2": "float8_e5m2",
    "c10::complex<float>": "complex64",
    "c10::complex<double>": "complex128",
    "long int": "int64",
    "int": "int32",
    "short int": "int16",
    "signed char": "int8",
    "unsigned char": "uint8",
    "bool": "bool",
    "unsigned short": "uint16",
}
"""What the profiler calls a type, and what torch does."""
LIST = "TensorList"
_WORDS = {f"torch.{name}": word for word, name in TYPES.items()}

Input = tuple[list[Any], list[Any], Any]
"""Shape, stride and type of a tensor; of the tensors of a list, a list of each."""

Inputs = list[Input | None]
"""What an operation was called with, by place; None for what is no tensor."""


def inputs_of(roots: Sequence[Any], wanted: Collection[int] | None = None) -> dict[int, Inputs]:
    """By the number of the call, of those ``wanted`` or of all."""
    found: dict[int, Inputs] = {}
    for node in walk(roots):
        if wanted is None or node.correlation_id in wanted:
            inputs = getattr(node.extra_fields, "inputs", None)  # only operations have any
            if inputs:
                found[node.correlation_id] = [_input(one) for one in inputs]
    return found


def filled_in(shapes: list[Any], strides: list[Any], types: list[Any], inputs: Inputs) -> None:
    """Put what is known of tensors where it belongs."""
    strides += [[]] * (len(types) - len(strides))
    for place, one in enumerate(inputs[: len(types)]):
        if one is not None:
            shapes[place], strides[place], types[place] = one


def tensors_of(shapes: str, types: str) -> tuple[tuple[tuple[int, ...], str], ...]:
    """Shape and type of every tensor in a signature, in order; a list of tensors, whatever its type is
    called, as its tensors, of which the profiler tells no types; and no numbers."""
    found: list[tuple[tuple[int, ...], str]] = []
    for shape, kind in zip(json.loads(shapes or "[]"), json.loads(types or "[]"), strict=False):
        if kind == LIST or any(isinstance(one, list) for one in shape):
            found += [(tuple(one), "") for one in shape]
        elif kind not in ("", "Scalar", "ScalarList") and not is_number(shape, kind):
            found.append((tuple(shape), kind))
    return tuple(found)


def is_number(shape: Sequence[int], kind: str) -> bool:
    """Whether a tensor may be a number that PyTorch has made one of: it may come as either."""
    return not shape and kind in ("double", "long int")


def reach(shape: Sequence[int], strides: Sequence[int]) -> int:
    """How many elements lie from the first of a tensor to its last, however it is strided."""
    if 0 in shape:
        return 0
    return 1 + sum((int(size) - 1) * int(step) for size, step in zip(shape, strides, strict=True))


def walk(roots: Sequence[Any]) -> Iterator[Any]:
    """All nodes of the profiler's tree, in no order."""
    todo = list(roots)
    while todo:
        node = todo.pop()
        yield node
        todo += node.children


def _input(given: Any) -> Input | None:
    if isinstance(given, list):
        tensors = [one for one in map(_input, given) if one is not None]
        shapes, strides, types = zip(*tensors, strict=True) if tensors else ((), (), ())
        return (list(shapes), list(strides), list(types)) if tensors else None
    sizes = getattr(given, "sizes", None)  # a new list, as are the strides
    return None if sizes is None else (sizes, given.strides, type_word(given.dtype))


@cache
def type_word(dtype: Any) -> str:
    """What the profiler calls a type of torch's."""
    return _WORDS.get(str(dtype), str(dtype))
