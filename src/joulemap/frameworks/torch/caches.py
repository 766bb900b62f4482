"""Which operands of an operation a GPU's cache still holds in a program, and which come from its memory.

That makes a difference of up to twice to what an operation costs: a sum of activations that were just
computed reads the cache, a product with weights that were used a step ago the memory. So two steps of the
program are looked at, every operation of them, before it is traced: where its tensors are, and how much else
has been touched since each was. The first step fills the cache; the second tells.

A look costs some microseconds an operation. It is made where operations will be executed again, by
themselves or in place.
"""

from __future__ import annotations

import json
import sys
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from joulemap.frameworks.torch import gpus
from joulemap.frameworks.torch.repeating import Operands, operands
from joulemap.frameworks.torch.rotation import cache_bytes

FILE = "caches.json"
FIRST = 5
"""The step that is looked at first: the ones before may compile, or choose algorithms."""
STEPS = 2

_ANY = ""

Cold = dict[tuple[str, Operands], str]
"""By operation and operands, a letter for each of these: 1 where it is mostly not in the cache, else 0. Where
all that have such operands agree, also without the operation: many are called by another with the same."""


class Cache:
    """Memory that was touched last, up to a size: storages by address, the latest at the end."""

    def __init__(self, size: int) -> None:
        self._size, self._held = size, 0
        self._recent: OrderedDict[int, int] = OrderedDict()

    def holds(self, address: int, size: int) -> bool:
        """Whether that much was touched so lately that all since then fits beside it."""
        since = size
        for other, touched in reversed(self._recent.items()):
            if other == address:
                return since <= self._size
            since += touched
            if since > self._size:
                return False
        return False

    def touch(self, address: int, size: int) -> None:
        """Read or write; what is long gone is forgotten."""
        self._held += size - self._recent.pop(address, 0)
        self._recent[address] = size
        while self._held > 2 * self._size and len(self._recent) > 1:
            self._held -= self._recent.popitem(last=False)[1]


class Look:
    """What the cache holds whenever an operation begins, by what went before."""

    def __init__(self, cache: Cache, device: str = "cuda") -> None:
        self._cache, self._device = cache, device
        self._seen: dict[tuple[str, Operands], list[int]] = {}
        self.counts = self.is_over = False

    def mode(self) -> Any:
        """Looks on while it is entered, in this thread and in those of its backward passes."""
        from torch.utils._python_dispatch import TorchDispatchMode

        look = self

        class Looking(TorchDispatchMode):  # type: ignore[misc]
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                given = kwargs or {}
                if look.is_over:
                    return func(*args, **given)
                if _is_composite(func):  # without gradients it comes here before it is taken apart
                    with self:
                        result = func.decompose(*args, **given)
                    if result is not NotImplemented:
                        return result
                result = func(*args, **given)
                look.safely_see(func._schema, (*args, *given.values()), result)
                return result

        return Looking()

    def safely_see(self, schema: Any, given: Sequence[Any], result: Any) -> None:
        """The program has its result, whatever comes of the look."""
        try:
            self.see(schema, given, result)
        except Exception:  # noqa: BLE001 - a tensor of a kind that has no memory, say: nothing is known then
            self.is_over = True
            self._seen.clear()

    def see(self, schema: Any, given: Sequence[Any], result: Any) -> None:
        """An operation has been called; one that returns a view has touched nothing."""
        if any(one.alias_info is not None and not one.alias_info.is_write for one in schema.returns):
            return
        tensors = list(_tensors(given))
        if not any(one.device.type == self._device for one in tensors):
            return
        touched = [(_address(one), one.numel() * one.element_size()) for one in tensors]
        if self.counts:
            found = [int(not self._cache.holds(*one)) for one in touched]
            key = schema.name.removeprefix("aten::"), operands(given)
            before = self._seen.get(key, [0] * (len(found) + 1))
            self._seen[key] = [sum(pair) for pair in zip(before, (1, *found), strict=True)]
        for one in touched:
            self._cache.touch(*one)
        for made in _tensors([result]):
            self._cache.touch(_address(made), made.numel() * made.element_size())

    def write(self, folder: Path) -> None:
        """What was seen, beside the sessions."""
        rows = [
            [op, given, "".join(str(int(2 * one > calls)) for one in cold)]
            for (op, given), (calls, *cold) in self._seen.items()
        ]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / FILE).write_text(json.dumps(rows))


def read_cold(folder: Path) -> Cold:
    """What was seen in a program; nothing where nobody looked."""
    try:
        rows = json.loads((folder / FILE).read_text())
    except (OSError, ValueError):
        return {}
    found: Cold = {}
    for op, given, cold in rows:
        tensors = tuple((tuple(shape), word) for shape, word in given)
        found[op, tensors] = cold
        found[_ANY, tensors] = cold if found.get((_ANY, tensors), cold) == cold else ""
    return found


def cold_of(op: str, given: Operands, known: Cold) -> str:
    """Of one operation's operands; empty where nothing is known of them."""
    return known.get((op, given)) or known.get((_ANY, given), "")


def new_look() -> Look | None:
    """Of the current GPU; None without one, and where compiled code runs, which must not be looked into."""
    import torch

    if not gpus.in_use() or _compiles():
        return None
    size = cache_bytes(torch.device("cuda", torch.cuda.current_device()))
    return Look(Cache(size)) if size else None


def is_innermost(mode: Any) -> bool:
    """Whether a mode may be left: the program has entered none inside of it."""
    from torch.utils._python_dispatch import _get_current_dispatch_mode

    return _get_current_dispatch_mode() is mode


def _compiles() -> bool:
    """Whether the program has had something compiled."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    counters: Mapping[str, Any] = getattr(dynamo, "counters", {})
    return bool(counters.get("frames"))


def _is_composite(func: Any) -> bool:
    import torch

    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"))


def _tensors(values: Sequence[Any]) -> Iterator[Any]:
    import torch

    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _address(tensor: Any) -> int:
    return int(tensor.untyped_storage().data_ptr())
