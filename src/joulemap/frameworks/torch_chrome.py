"""torch.profiler's JSON (``export_chrome_trace``, ``tensorboard_trace_handler``), as Kineto columns."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from joulemap.errors import InputError
from joulemap.frameworks.chrome import BROKEN, LAST_NS, Event, arguments, nanoseconds
from joulemap.frameworks.kineto import KinetoColumns
from joulemap.frameworks.kineto_names import GPU_CATEGORIES, GPU_RANGES, MODULE_CLASS
from joulemap.labels import Labels

CATEGORIES = frozenset(
    ("cpu_op", "user_annotation", "cuda_runtime", "cuda_driver", "overhead", *GPU_CATEGORIES)
)
_ON_GPU = frozenset(GPU_CATEGORIES)
_BROKEN = "broken"
_NO_PROCESS = -1  # of the profiler's own overhead
_WHY_LEFT_OUT = {
    GPU_RANGES: "ranges drawn a second time on the GPU",
    "python_function": "Python frames other than modules",
    "Trace": "marks of the profiler itself",
    _BROKEN: "events without a name, time or thread, or with broken numbers",
}


class TorchEvents:
    """Collects the events of one export; ``columns`` hands them over on the epoch clock."""

    def __init__(self) -> None:
        self._left_out: Counter[str] = Counter()
        self._negative = 0
        self._names: dict[str, int] = {}
        self._categories: dict[str, int] = {}
        self._lanes: dict[tuple[Any, Any, bool], int] = {}
        self._rows = array("q")

    def collect(self, events: Iterable[Event]) -> None:
        """Keep of each event only the numbers that the reading needs."""
        for event in events:
            if event.get("ph") != "X":
                continue
            category = str(event.get("cat", ""))
            if category in CATEGORIES or (
                category == "python_function" and str(event.get("name")).startswith(MODULE_CLASS)
            ):
                self._keep(event, category)
            else:
                self._left_out[category] += 1

    def _keep(self, event: Event, category: str) -> None:
        args = arguments(event)
        whole_rows = len(self._rows)
        try:
            device, lane = -1, (event["pid"], event["tid"], False)
            if category in _ON_GPU:
                device = int(args["device"] if "device" in args else event["pid"])
                lane = ("", args.get("stream", event["tid"]), True)
            self._rows.extend((
                self._names.setdefault(str(event["name"]), len(self._names)),
                self._categories.setdefault(category, len(self._categories)),
                nanoseconds(event["ts"]),
                nanoseconds(event.get("dur", 0)),
                device,
                self._lanes.setdefault(lane, len(self._lanes)),
                int(args.get("External id") or args.get("external id") or 0),
                int(args.get("correlation", 0)),
                int(args.get("Sequence number", -1)),
                int(args.get("Fwd thread id", 0)),
            ))  # fmt: skip
        except BROKEN:
            del self._rows[whole_rows:]
            self._left_out[_BROKEN] += 1

    def columns(self, header: Mapping[str, Any]) -> KinetoColumns:
        """The events with ``baseTimeNanoseconds`` added, which may stand after them in the file."""
        rows = np.frombuffer(self._rows, np.int64).reshape(-1, 10)
        possible = (np.abs(rows[:, 2:4]) < LAST_NS).all(axis=1)
        self._left_out[_BROKEN] += int((~possible).sum())
        rows = rows[possible]
        name, category, start, length, device, lane, op_id, correlation, sequence, thread = (
            np.ascontiguousarray(column) for column in rows.T
        )
        start += self._base_ns(header)
        self._negative = int((length < 0).sum())
        return KinetoColumns(
            name=Labels(name.astype(np.int32), tuple(self._names)),
            category=Labels(category.astype(np.int32), tuple(self._categories)),
            start_ns=start,
            end_ns=start + np.maximum(length, 0),
            device=device,
            lane=Labels(lane.astype(np.int32), self._lane_words()),
            op_id=op_id,
            correlation=correlation,
            sequence=sequence,
            forward_thread=thread,
        )

    def _base_ns(self, header: Mapping[str, Any]) -> int:
        base = header.get("baseTimeNanoseconds", 0)
        if not isinstance(base, int) or not 0 <= base < LAST_NS:
            raise InputError(f"The trace's baseTimeNanoseconds is {base!r}.", "It must be epoch nanoseconds.")
        return base

    def notes(self) -> list[str]:
        """What was left out, and why; complete once the columns were made."""
        notes = []
        for category, count in (+self._left_out).most_common():
            why = _WHY_LEFT_OUT.get(category, f"events of category {category!r}")
            notes.append(f"Left out: {why} ({count:,}).")
        if self._negative:
            notes.append(f"Events with negative durations count as calls of 0 s ({self._negative:,}).")
        return notes

    def _lane_words(self) -> tuple[str, ...]:
        """``thread 453``, with the process where there are several, and ``stream 7``."""
        threads = [process for process, _, on_gpu in self._lanes if not on_gpu]
        several = len(set(threads) - {_NO_PROCESS}) > 1
        words = []
        for process, number, on_gpu in self._lanes:
            word = f"{'stream' if on_gpu else 'thread'} {number}"
            words.append(f"process {process} {word}" if several and not on_gpu else word)
        return tuple(words)
