"""Which operands of an operation a GPU's cache still holds in a program, and which come from its memory.

That makes a difference of up to twice to what an operation costs: a sum of activations that were just
computed reads the cache, a product with weights that were used a step ago the memory. So one step of the
program is looked at with the profiler, which tells where the tensors of every operation lie and what it
allocates (``touches``). The same step comes again and again: so it is gone through twice here. The first time
fills the cache, the second tells what each operation finds in it.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from operator import itemgetter
from pathlib import Path
from typing import Any

from joulemap.frameworks.torch.inputs import tensors_of
from joulemap.frameworks.torch.launched import PREFIX
from joulemap.frameworks.torch.touches import FILE, of_kernel

PAGE = 128 * 1024
"""Memory is in the cache or not by pages of so many bytes."""

Span = tuple[int, int]
"""Where memory begins, and how many bytes of it."""

Operands = tuple[tuple[tuple[int, ...], str], ...]
"""Shape and type of every tensor that an operation was given, in order; none for kernels of inductor's own,
which have the same in every call."""

_BEGINS, _ALLOCATED, _ENDS = range(3)

SAME = "="
Cold = dict[tuple[str, Operands], str]
"""By operation and operands, a letter for each of these: 1 where it is mostly not in the cache, else 0, and =
where it is mostly the same memory as what is before it."""


class Cache:
    """The pages of memory that were touched last, as many as fit; the latest at the end."""

    def __init__(self, size: int) -> None:
        self._most = size // PAGE
        self._recent: OrderedDict[int, None] = OrderedDict()

    def holds(self, begin: int, size: int) -> bool:
        """Whether most of the bytes from an address on are there."""
        pages = _pages(begin, size)
        return not pages or 2 * sum(page in self._recent for page in pages) > len(pages)

    def touch(self, spans: Iterable[Span]) -> None:
        """Read or write several together, each from its first byte to its last: so their ends are what is
        left of much."""
        ranges = [_pages(*span) for span in spans]
        part = min(self._most / max(sum(map(len, ranges)), 1), 1.0)
        ends = [pages[len(pages) - ceil(part * len(pages)) :] for pages in ranges]
        together = [(number / len(pages), page) for pages in ends for number, page in enumerate(pages, 1)]
        for _, page in sorted(together, key=itemgetter(0)):
            self._recent[page] = None
            self._recent.move_to_end(page)
        while len(self._recent) > self._most:
            self._recent.popitem(last=False)


def _pages(begin: int, size: int) -> range:
    return range(begin // PAGE, (begin + size - 1) // PAGE + 1) if size else range(0)


def read_cold(folder: Path) -> Cold:
    """What the steps that were looked at say; nothing where nobody looked."""
    calls: dict[tuple[str, Operands], list[str]] = {}
    for path in sorted(folder.rglob(FILE)):
        try:
            said = json.loads(path.read_text())
        except (OSError, ValueError):  # the program ended meanwhile
            continue
        for key, found in _seen(said):
            calls.setdefault(key, []).append(found)
    alike = {key: found for key, found in calls.items() if len(set(map(len, found))) == 1}
    return {key: "".join(map(_mostly, zip(*found, strict=True))) for key, found in alike.items()}


def found_cold(cold: Cold, op: str, phase: str, shapes: str, types: str) -> str:
    """The letters of an operation that was called with these, as its signature has them; nothing where nobody
    has looked at it."""
    if op.startswith(PREFIX):
        return cold.get((of_kernel(op.removeprefix(PREFIX), phase == "backward"), ()), "")
    return cold.get((op, tensors_of(shapes, types)), "") if cold else ""


def _mostly(letters: Sequence[str]) -> str:
    """What more than half of them are; else it is in the cache."""
    return next((one for one in (SAME, "1") if 2 * letters.count(one) > len(letters)), "0")


@dataclass(frozen=True)
class _Open:
    """An operation that goes on: what those that it has called have touched, and what was allocated in it and
    in none of these."""

    touched: set[Span] = field(default_factory=set)
    results: list[Span] = field(default_factory=list)


def _seen(said: Mapping[str, Any]) -> Iterator[tuple[tuple[str, Operands], str]]:
    """What every operation was given, and a letter for where each of that came from. An operation may call
    others: it finds what is there when it begins. When it ends, it has touched what it was given, but for
    what those have, and what was allocated for its result. (What is allocated in none is written by an
    operation that it is given to.)"""
    cache, operations = Cache(said["size"]), said["operations"]
    begins = [(one[1], _BEGINS, one) for one in operations]
    ends = [(one[2], _ENDS, one) for one in operations]
    allocations = [(when, _ALLOCATED, span) for when, *span in said["allocations"]]
    moments = sorted([*begins, *ends, *allocations], key=itemgetter(0))
    for counts in (False, True):
        opened: dict[int, _Open] = {}
        for _, what, one in moments:
            if what == _BEGINS:
                opened[id(one)] = _Open()
                if counts:
                    yield _key(one[0], one[3]), "".join(_letter(cache, *given) for given in one[3])
            elif what == _ENDS:
                ended, given = opened.pop(id(one)), [(where, size) for where, size, *_ in one[3] if where]
                cache.touch([*(span for span in given if span not in ended.touched), *ended.results])
                for around in opened.values():
                    around.touched.update(given)
            elif opened:
                opened[next(reversed(opened))].results.append(one)


def _key(name: str, given: Sequence[Any]) -> tuple[str, Operands]:
    generated = name.startswith(PREFIX)
    operands = () if generated else tuple((tuple(shape), word) for _, _, shape, word, _ in given)
    return name.removeprefix("aten::"), operands


def _letter(cache: Cache, where: int, size: int, _shape: Any, _word: str, same: bool) -> str:
    if same:
        return SAME
    return str(int(bool(where) and not cache.holds(where, size)))
