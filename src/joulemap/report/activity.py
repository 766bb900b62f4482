"""When each module and each phase was active, as rows of bits over the recording."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joulemap.program import SEPARATOR, split
from joulemap.traces import EventTrace

BINS = 8192
"""Stretches that the time is cut into; at the width of a screen, some eight of them a pixel."""

MOST = 400
"""Modules of which the page holds when they were active: those with the most energy."""


def activity(events: EventTrace, span_ns: tuple[int, int], modules: list[str]) -> dict[str, Any]:
    """Bits in base64, most significant first: by phase, and by module in the order given."""
    bits = _Bins(events, span_ns)
    phase_row = np.arange(len(events.phase.words))
    phases = bits.rows(phase_row[events.phase.codes], len(events.phase.words))
    return {
        "bins": BINS,
        "phases": {
            word: _text(row) for word, row in zip(events.phase.words, phases, strict=True) if row.any()
        },
        "modules": {
            path: _text(row) for path, row in zip(modules, _of_modules(events, bits, modules), strict=True)
        },
    }


class _Bins:
    """The first and the last bin that each event touches."""

    def __init__(self, events: EventTrace, span_ns: tuple[int, int]) -> None:
        begin, length = span_ns[0], max(span_ns[1] - span_ns[0], 1)
        self._first = np.clip((events.start_ns - begin) * BINS // length, 0, BINS - 1)
        last = np.clip((events.end_ns - 1 - begin) * BINS // length, 0, BINS - 1)
        self._behind = np.maximum(last, self._first) + 1

    def rows(self, row: NDArray[np.int64], count: int) -> NDArray[np.bool_]:
        """Which bins the events of each row touch; an event in row -1 is in none."""
        here = row >= 0
        width = BINS + 1
        begins = np.bincount(row[here] * width + self._first[here], minlength=count * width)
        ends = np.bincount(row[here] * width + self._behind[here], minlength=count * width)
        running = np.cumsum((begins - ends).reshape(count, width), axis=1)
        return np.asarray(running[:, :BINS] > 0)


def _of_modules(events: EventTrace, bits: _Bins, modules: list[str]) -> NDArray[np.bool_]:
    """Events belong to every module around them, so each depth is counted by itself."""
    number = {path: row for row, path in enumerate(modules)}
    parts = [split(word) for word in events.name.words]
    active = np.zeros((len(modules), BINS), bool)
    for depth in range(1, max((len(split(path)) for path in modules), default=0) + 1):
        row = np.array(
            [number.get(SEPARATOR.join(part[:depth]), -1) if len(part) >= depth else -1 for part in parts]
        )
        if (row >= 0).any():
            active |= bits.rows(row[events.name.codes], len(modules))
    return active


def _text(row: NDArray[np.bool_]) -> str:
    return base64.b64encode(np.packbits(row).tobytes()).decode()
