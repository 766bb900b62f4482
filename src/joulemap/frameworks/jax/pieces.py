"""Events cut into the parts that different layers have in them: in time, by their shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from joulemap.accounting.fusions import ends
from joulemap.frameworks.jax.naming import Named, Part
from joulemap.labels import Labels
from joulemap.traces import Int64


@dataclass(frozen=True, eq=False)
class Pieces:
    """A row for every part of every event: the event's row, its part's name, and its time."""

    row: Int64
    name: Labels
    op: Labels
    phase: Labels
    start_ns: Int64
    end_ns: Int64


def cut(start_ns: Int64, end_ns: Int64, place: Int64, table: Sequence[Sequence[Part]]) -> Pieces:
    """``table[place[i]]`` are the parts of event i. They follow each other without a gap."""
    counts = np.array([len(parts) for parts in table] or [0], np.int64)
    first = np.cumsum(counts) - counts
    borders = [ends([part.share for part in parts]) for parts in table]
    until = np.concatenate([np.zeros(0), *borders])
    since = np.concatenate([np.zeros(0), *(np.concatenate(([0.0], one[:-1])) for one in borders)])
    row = np.repeat(np.arange(len(place)), counts[place])
    within = np.arange(len(row)) - np.repeat(np.cumsum(counts[place]) - counts[place], counts[place])
    part = first[place][row] + within
    long_ns = (end_ns - start_ns)[row]
    named = [one.named for parts in table for one in parts]
    return Pieces(
        row,
        _column(part, [one.name for one in named]),
        _column(part, [one.op for one in named]),
        _column(part, [one.phase for one in named]),
        start_ns[row] + np.round(since[part] * long_ns).astype(np.int64),
        start_ns[row] + np.round(until[part] * long_ns).astype(np.int64),
    )


def whole(name: str, op: str) -> tuple[Part]:
    """What is no part of the program's own work, as its only part."""
    return (Part(Named(name, op, "other"), 1.0),)


def _column(part: Int64, words: list[str]) -> Labels:
    return Labels(part.astype(np.int32), tuple(map(str, range(len(words))))).mapped(words)
