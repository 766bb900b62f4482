"""From the records that a program has left to the table of its calls, when it has ended."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joulemap.calls.store import OPEN, SLOT, SLOTS, WORDS
from joulemap.calls.table import GATES, OUTCOMES, Calls, Sites
from joulemap.labels import Labels

_SLOT = np.dtype(
    [
        *((name, "<i8") for name in ("parent", "thread", "start_ns", "argument_bytes", "object_bytes")),
        *((name, "<i4") for name in ("site", "api", "shapes")),
        ("outcome", "<u2"),
        ("unused", "<u2"),
        ("end_ns", "<i8"),
    ]
)
_SITE = ("site", "file", "line", "column", "end_line", "end_column", "text", "function")


def read_calls(folder: Path, ended_ns: int) -> Calls | None:
    """The calls of a program, or None where none were metered; what was open lasted until ``ended_ns``."""
    if not (folder / SLOTS).is_file():
        return None
    slots, call = _begun(folder / SLOTS)
    words = _Words.read(folder / WORDS)
    known = np.isin(slots["site"], list(words.sites))
    slots, call = slots[known], call[known]
    still_open = slots["outcome"] == OPEN
    end_ns = np.where(still_open, np.maximum(ended_ns, slots["start_ns"]), slots["end_ns"])
    gates = words.gate_columns(call)
    return Calls.from_columns(
        words.site_table(),
        call=call,
        parent=slots["parent"],
        site=slots["site"],
        api=_labels(slots["api"], words.named["api"]),
        thread=slots["thread"],
        start_ns=slots["start_ns"],
        end_ns=np.maximum(end_ns, slots["start_ns"]),
        outcome=Labels(np.minimum(slots["outcome"], len(OUTCOMES) - 1).astype(np.int32), OUTCOMES),
        argument_bytes=slots["argument_bytes"],
        object_bytes=slots["object_bytes"],
        shapes=_labels(slots["shapes"], words.named["shapes"]),
        gate_start_ns=gates[:, 0],
        gate_outcome=Labels(gates[:, 1].astype(np.int32), GATES),
        tail_end_ns=gates[:, 2],
    )


def _begun(path: Path) -> tuple[NDArray[np.void], NDArray[np.int64]]:
    """The slots whose call began, and their numbers; a page is longer than what was written on it."""
    whole = path.stat().st_size // SLOT.size
    slots = np.fromfile(path, _SLOT, count=whole)
    begun = np.flatnonzero(slots["start_ns"] > 0)
    return slots[begun], begun.astype(np.int64)


def _labels(numbers: NDArray[np.int32], words: dict[int, str]) -> Labels:
    """Numbers as the words they stand for; empty where the line was lost."""
    used, codes = np.unique(numbers, return_inverse=True)
    return Labels.of([words.get(number, "") for number in used.tolist()])[codes]


class _Words:
    """What the slots refer to."""

    def __init__(self) -> None:
        self.sites: dict[int, list[Any]] = {}
        self.named: dict[str, dict[int, str]] = {"api": {}, "shapes": {}}
        self._gates: dict[int, tuple[int, int, int]] = {}

    @classmethod
    def read(cls, path: Path) -> _Words:
        words = cls()
        for what, content in _lines(path):
            if what == "site":
                words.sites[int(content[0])] = content
            elif what == "gate":
                call, start_ns, outcome, end_ns = content
                words._gates[int(call)] = (int(start_ns), GATES.index(outcome), int(end_ns))
            elif what in words.named:
                words.named[what][int(content[0])] = str(content[1])
        return words

    def site_table(self) -> Sites:
        columns = zip(*self.sites.values(), strict=True) if self.sites else ([] for _ in _SITE)
        return Sites.from_columns(**dict(zip(_SITE, map(list, columns), strict=True)))

    def gate_columns(self, call: NDArray[np.int64]) -> NDArray[np.int64]:
        """When the wait began, how it ended, and when the tail ended, for each call; zeros where none was."""
        columns = np.zeros((len(call), 3), np.int64)
        place = {number: row for row, number in enumerate(call.tolist())} if self._gates else {}
        for number, gate in self._gates.items():
            if number in place:
                columns[place[number]] = gate
        return columns


def _lines(path: Path) -> Iterator[tuple[str, Any]]:
    with suppress(FileNotFoundError):
        for line in path.read_text(errors="replace").splitlines():
            with suppress(ValueError, TypeError):
                what, content = json.loads(line)
                yield str(what), content
