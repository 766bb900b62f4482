"""Which memory the operations of one step were given, and which was allocated: taken out of the profiler and
written down, for ``caches`` to tell what a GPU's cache held. Inductor's launcher of Triton kernels says it as
operations do."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from joulemap.frameworks.torch.inputs import is_number, reach, type_word, walk
from joulemap.frameworks.torch.launched import PREFIX

FILE = "touches.json"
_KERNEL, _BACKWARD = "triton_", "autograd::engine::evaluate_function"
"""How names of kernels that inductor has made begin, and those of what calls them in a backward pass."""
_TOUCH_NOTHING = {
    f"aten::{name}"
    for name in ("empty_like", "new_empty", "new_empty_strided", "resize_", "resize_as_", "detach_")
}

Given = tuple[int, int, Sequence[int], str, bool]
"""A tensor: where its memory begins, 0 for one that is elsewhere, how many bytes it reaches, shape and type;
no type in a list, of which the profiler's plain events tell none; and whether it is the same as the argument
before, or in its list as the one at the same place, and that is not written to."""


def write_touches(roots: Sequence[Any], folder: Path, device: str, size: int) -> set[str]:
    """Write what a session says of tensors on ``device``, whose last cache has ``size`` bytes; the names of
    what touches any are returned."""
    operations, allocations = [], []
    for node in walk(roots):
        fields = node.extra_fields
        if hasattr(fields, "alloc_size"):
            if fields.alloc_size > 0 and fields.device.type == device:
                allocations.append((node.start_time_ns, fields.ptr, fields.alloc_size))
        elif hasattr(fields, "inputs") and (name := _named(node)):
            given = list(_given(fields.inputs, device, name.endswith("_")))
            if any(where for where, *_ in given):
                operations.append((name, node.start_time_ns, node.end_time_ns, given))
    said = {"size": size, "operations": operations, "allocations": allocations}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE).write_text(json.dumps(said, separators=(",", ":")))
    return {name for name, *_ in operations}


def of_kernel(name: str, backward: bool) -> str:
    """What a kernel of inductor's own goes by here: graphs of the two passes may have different ones of one
    name."""
    return f"{PREFIX}{name}{' backward' * backward}"


def _named(node: Any) -> str:
    """What an operation that touches memory goes by; nothing for others."""
    if node.name.startswith(_KERNEL):
        return of_kernel(node.name, _is_in_backward(node))
    return node.name if _touches(node.name) else ""


def _is_in_backward(node: Any) -> bool:
    while node is not None:
        if node.name.startswith(_BACKWARD):
            return True
        node = node.parent
    return False


def _given(inputs: Sequence[Any], device: str, in_place: bool) -> Iterator[Given]:
    before: list[Any] = []
    for number, one in enumerate(inputs):
        some = [each for each in (one if isinstance(one, list) else [one]) if _counts(each)]
        for place, each in enumerate(some):
            where = each.storage_data_ptr if each.device.type == device else 0
            word = "" if isinstance(one, list) else type_word(each.dtype)
            same = bool(where) and place < len(before) and _are_same(each, before[place])
            yield where or 0, reach(each.sizes, each.strides) * each.dtype.itemsize, each.sizes, word, same
        if some:
            before = [] if in_place and number == 0 else some


def _counts(given: Any) -> bool:
    """Whether it is a tensor, and no number that PyTorch has made one of."""
    shape = getattr(given, "sizes", None)
    return shape is not None and not is_number(shape, type_word(given.dtype))


def _are_same(one: Any, other: Any) -> bool:
    """Whether two arguments are one tensor."""
    return bool(one.impl_ptr == other.impl_ptr)


@cache
def _touches(name: str) -> bool:
    """Whether an operation reads or writes what it is given: none that returns views of it does."""
    import torch

    schemas = torch._C._jit_get_schemas_for_operator(name) if "::" in name else []
    if not schemas or name in _TOUCH_NOTHING:
        return False
    returned = [one.alias_info for schema in schemas for one in schema.returns]
    return not any(alias is not None and not alias.is_write for alias in returned)
