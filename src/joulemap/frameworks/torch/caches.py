"""Which operands of an operation a GPU's cache still holds in a program, and which come from its memory.

That makes a difference of up to twice to what an operation costs: a sum of activations that were just
computed reads the cache, a product with weights that were used a step ago the memory. So two steps of the
program are looked at, every operation of them, before it is traced: where its tensors lie, and whether so
much has been touched since that they are gone. The first step fills the cache; the second tells.

A look costs some microseconds an operation. It is made where operations will be executed again, by
themselves or in place.
"""

from __future__ import annotations

import json
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from joulemap.frameworks.torch import gpus
from joulemap.frameworks.torch.repeating import Operands, operands
from joulemap.frameworks.torch.rotation import cache_bytes, counted, reach, tensors_in

FILE = "caches.json"
FIRST = 5
"""The step that is looked at first: the ones before may compile, or choose algorithms."""
STEPS = 2
PAGE = 64 * 1024
"""Memory is in the cache or not by pages of so many bytes."""
SAMPLED = 256
"""Of a tensor so many pages are looked for, at most."""
_ANY = ""
_COPIES = ("_to_copy", "clone")
"""Each does its work by calling ``copy_``, which is what the profiler knows."""

Cold = dict[tuple[str, Operands], str]
"""By operation and operands, a letter for each of these: 1 where it is mostly not in the cache, else 0. Where
all that have such operands agree, also without the operation: many are called by another with the same."""


class Cache:
    """The pages of memory that were touched last, as many as fit; the latest at the end."""

    def __init__(self, size: int) -> None:
        self._most = size // PAGE
        self._recent: OrderedDict[int, None] = OrderedDict()

    def holds(self, begin: int, end: int) -> bool:
        """Whether most of what lies between two addresses is there."""
        first, last = begin // PAGE, max(end - 1, begin) // PAGE
        pages = range(first, last + 1, max((last - first) // SAMPLED, 1))
        return 2 * sum(page in self._recent for page in pages) > len(pages)

    def touch(self, begin: int, end: int) -> None:
        """Read or write it: from its beginning to its end, so that the end is what is left of much."""
        first, last = begin // PAGE, max(end - 1, begin) // PAGE
        for page in range(max(first, last + 1 - self._most), last + 1):
            self._recent[page] = None
            self._recent.move_to_end(page)
        while len(self._recent) > self._most:
            self._recent.popitem(last=False)


class Look:
    """What the cache holds whenever an operation begins, by what went before."""

    def __init__(self, cache: Cache, device: str = "cuda") -> None:
        self._cache, self.device = cache, device
        self._seen: dict[tuple[str, Operands], list[int]] = {}
        self.counts = self.is_over = False

    def mode(self) -> Any:
        """Looks on while it is entered, in this thread and in those of its backward passes."""
        import torch
        from torch.utils._python_dispatch import TorchDispatchMode

        look, composite = self, torch._C.DispatchKey.CompositeImplicitAutograd

        class Looking(TorchDispatchMode):  # type: ignore[misc]
            supports_higher_order_operators = True

            @classmethod
            def _should_skip_dynamo(cls) -> bool:
                return False  # or the compiler would be imported for it, which takes a second

            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                given = kwargs or {}
                if torch.is_inference_mode_enabled() and _is_made_of_others(func, look.device):
                    with _as_it_was_called(func, look.device), self:
                        return func._op_dk(composite, *args, **given)
                result = func(*args, **given)
                if not look.is_over:
                    look.safely_see(func, (*args, *given.values()), result)
                return result

        return Looking()

    def safely_see(self, func: Any, given: Sequence[Any], result: Any) -> None:
        """The program has its result, whatever comes of the look."""
        try:
            self.see(func._schema, given, result)
        except Exception:  # noqa: BLE001 - a tensor of a kind that has no memory, say: nothing is known then
            self.is_over = True
            self._seen.clear()

    def see(self, schema: Any, given: Sequence[Any], result: Any) -> None:
        """An operation has been called; one that returns a view has touched nothing."""
        if any(one.alias_info is not None and not one.alias_info.is_write for one in schema.returns):
            return
        tensors, made = counted(tensors_in(given)), tensors_in([result])
        if not any(one.device.type == self.device for one in (*tensors, *made)):
            return
        name = schema.name.removeprefix("aten::")
        if self.counts:
            self._count(name, tensors, operands(given))
            if name in _COPIES:
                self._count("copy_", [*made, *tensors], operands((*made, *given)))
        for one in (*tensors, *made):
            self._cache.touch(*_span(one))

    def _count(self, name: str, tensors: Sequence[Any], key: Operands) -> None:
        found = [int(not self._cache.holds(*_span(one))) for one in tensors]
        before = self._seen.get((name, key), [0] * (len(found) + 1))
        self._seen[name, key] = [sum(pair) for pair in zip(before, (1, *found), strict=True)]

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
    """Of the current GPU, where the program can be looked at and be the same: compiled code must not be
    looked into, and whoever looks on already may want to leave before us."""
    import torch

    if not gpus.in_use() or _compiles() or current_mode() is not None:
        return None
    size = cache_bytes(torch.device("cuda", torch.cuda.current_device()))
    return Look(Cache(size)) if size >= PAGE else None


def _is_made_of_others(func: Any, device: str) -> bool:
    """Whether an operation calls others. In inference mode such a one comes to us, and not these; with
    autograd it is the other way round."""
    has = _has_kernel(func)
    return has("CompositeImplicitAutograd") and not has(device.upper())


@contextmanager
def _as_it_was_called(func: Any, device: str) -> Iterator[None]:
    """What an operation calls finds the dispatcher as the program had it, and not as it is for us: with views
    that are tracked, and autocast, unless that has been done for the operation itself."""
    import torch

    autocast = f"Autocast{device.upper()}"
    with torch._C._RestorePythonTLSSnapshot():
        if not _has_kernel(func)(autocast):
            yield
            return
        keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, autocast))
        with torch._C._ExcludeDispatchKeyGuard(keys):
            yield


def _has_kernel(func: Any) -> Callable[[str], bool]:
    import torch

    return partial(torch._C._dispatch_has_kernel_for_dispatch_key, func.name())


def current_mode() -> Any:
    """The mode that was entered last in this thread and not left, if any."""
    from torch.utils._python_dispatch import _get_current_dispatch_mode

    return _get_current_dispatch_mode()


def _compiles() -> bool:
    """Whether the program has had something compiled."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    counters: Mapping[str, Any] = getattr(dynamo, "counters", {})
    return bool(counters.get("frames"))


def _span(tensor: Any) -> tuple[int, int]:
    """From where to where a tensor lies; ``ValueError`` for one that lies nowhere."""
    begin = int(tensor.data_ptr())
    if not begin and tensor.numel():
        raise ValueError("it has no memory")
    return begin, begin + reach(tensor) * tensor.element_size()
