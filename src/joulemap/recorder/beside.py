"""Steps of threads that lie beside the one that is open: it alone is known, and they are passed over."""

from __future__ import annotations

import threading
from collections import Counter

from joulemap.units import fmt_seconds

_MUCH = 0.1
"""The part of the time in which steps that are passed over are worth a word."""


class _Thread(threading.local):
    """The step of this thread that is passed over: how deep it is in it, since when, and its label."""

    depth = 0
    since_ns = 0
    label = ""


class Beside:
    """Counts them, and their time."""

    def __init__(self, now_ns: int) -> None:
        self._thread = _Thread()
        self._begun_ns = now_ns
        self._counts: Counter[str] = Counter()
        self._took_ns = 0

    def begins(self, label: str, now_ns: int) -> None:
        """This thread begins one, or is in it already."""
        thread = self._thread
        if not thread.depth:
            thread.since_ns, thread.label = now_ns, label
        thread.depth += 1

    def ends(self, now_ns: int) -> None:
        """It ends what it has begun, if it was passed over."""
        thread = self._thread
        if thread.depth == 1:
            self._counts[thread.label] += 1
            self._took_ns += now_ns - thread.since_ns
        self.cancels()

    def cancels(self) -> None:
        """That was no step."""
        self._thread.depth = max(self._thread.depth - 1, 0)

    def warning(self, now_ns: int) -> str:
        """What a reader of the recording has to know of them; nothing where they were few."""
        if self._took_ns <= _MUCH * (now_ns - self._begun_ns):
            return ""
        labels = " and ".join(f"{count:,} of {label!r}" for label, count in self._counts.most_common(3))
        return (
            "Steps of several threads lay beside each other, and joulemap knows one at a time. At least "
            f"{labels}, of {fmt_seconds(self._took_ns / 1e9)} together, were passed over: what they took is "
            "in the steps of the other threads and between these. Where each matters, record them in turns, "
            "or in processes of their own."
        )
