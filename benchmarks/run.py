"""``make bench``: speed and memory against the limits we promise, as ratios measured in the same run.

The yardstick is one ``numpy.argsort`` of two million random int64 on the same machine at the same time, so
that a slow or busy machine does not change the verdict.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

import monitor
from joulemap.accounting import attribute
from joulemap.frameworks.kineto import trace_of
from joulemap.recording import Recording, RecordingInfo, RecordingWriter
from joulemap.traces import EventTrace, PowerTrace
from synthetic import flat_events, kineto_columns, nested_events, power_over

RESULTS = Path(__file__).parent / "results"
MILLION = 1_000_000


@dataclass(frozen=True)
class Result:
    """One line: what was measured, the figure, and the limit it must stay under (None: for information)."""

    what: str
    figure: float
    unit: str
    limit: float | None
    detail: str

    @property
    def passed(self) -> bool:
        return self.limit is None or self.figure <= self.limit


def seconds(work: Callable[[], object], repeats: int = 5) -> float:
    """The best of some repeats: what the work takes when nothing disturbs it."""
    best = float("inf")
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - begin)
    return best


def peak_bytes(work: Callable[[], object]) -> int:
    """The most memory that was allocated at once beyond what was there."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def against_argsort(work: Callable[[], object], repeats: int = 5) -> tuple[float, float]:
    """Seconds of the work, and the ratio to one argsort of two million random int64, taken in turns so
    that both meet the same machine."""
    numbers = np.random.default_rng(0).integers(0, 1 << 62, 2 * MILLION)
    took = argsort = float("inf")
    for _ in range(repeats):
        argsort = min(argsort, seconds(lambda: np.argsort(numbers), 1))
        took = min(took, seconds(work, 1))
    return took, took / argsort


def accounting() -> list[Result]:
    """Time and memory for a million events on fifty thousand intervals."""
    cases: list[tuple[str, EventTrace, str, float]] = [
        ("flat events", flat_events(MILLION), "GPU:0", 4),
        ("flat events, shuffled", flat_events(MILLION, shuffled=True), "GPU:0", 4),
        ("nested events with worker rows", nested_events(MILLION), "CPU:0", 8),
    ]
    results = []
    for name, events, device, limit in cases:
        power = power_over(events, 50_000, device)

        def work(events: EventTrace = events, power: PowerTrace = power) -> None:
            attribute(events, power)

        took, ratio = against_argsort(work)
        results.append(Result(f"account 1 M {name}", ratio, "x argsort", limit, f"{took:.3f} s"))
        peak = peak_bytes(work) / len(events)
        results.append(Result(f"memory, 1 M {name}", peak, "B/event", 200, "peak"))
    return results


def growth() -> list[Result]:
    """Time for ten million events against a hundred times that for a hundred thousand, in turns."""
    work, took = [], [float("inf")] * 2
    for count in (MILLION // 10, 10 * MILLION):
        events = flat_events(count)
        work.append(partial(attribute, events, power_over(events, count // 20, "GPU:0")))
    for _ in range(3):
        took = [
            min(best, seconds(one, repeats)) for best, one, repeats in zip(took, work, (5, 1), strict=True)
        ]
    detail = f"{took[0]:.3f} s to {took[1]:.2f} s"
    return [Result("growth, 100 k to 10 M events", took[1] / (100 * took[0]), "x linear", 1.3, detail)]


def recording() -> list[Result]:
    """Writing and loading ten million events."""
    events = flat_events(10 * MILLION)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bench.joulemap"

        def write() -> None:
            with RecordingWriter.create(path, RecordingInfo(), overwrite=True) as writer:
                writer.put_events(events)

        wrote, write_ratio = against_argsort(write, 1)
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        loaded, load_ratio = against_argsort(lambda: Recording.open(path).events(), 2)
    return [
        Result("write 10 M events", write_ratio, "x argsort", None, f"{wrote:.2f} s, {size / 1e6:.0f} MB"),
        Result("load 10 M events", load_ratio, "x argsort", None, f"{loaded:.2f} s"),
    ]


def kineto() -> list[Result]:
    """A million of PyTorch's events, from the profiler's columns to named rows."""
    columns = kineto_columns(MILLION)
    took, ratio = against_argsort(lambda: trace_of(columns), 2)
    peak = peak_bytes(lambda: trace_of(columns)) / len(columns)
    return [
        Result("name 1 M events of PyTorch", took, "s", 10, f"{ratio:.1f} x argsort"),
        Result("memory, 1 M events of PyTorch", peak, "B/event", None, "peak"),
    ]


def imports() -> list[Result]:
    """What ``import joulemap`` adds to starting the interpreter."""

    def start(code: str) -> float:
        return seconds(lambda: subprocess.run([sys.executable, "-c", code], check=True), 10)

    extra = (start("import joulemap") - start("pass")) * 1000
    return [Result("import joulemap", extra, "ms", 100, "beyond the interpreter")]


def monitoring() -> list[Result]:
    """What the metering process costs beside a busy machine; with a sensor that blocks, which must not
    disturb the period of the others, only for information."""
    cases: list[tuple[str, str, float | None]] = [
        ("monitor, RAPL-like files", "rapl_like", 3),
        ("monitor, RAPL-like files and a GPU", "rapl_and_gpu_like", None),
    ]
    return [_monitoring(what, meters, limit) for what, meters, limit in cases]


def _monitoring(what: str, meters: str, limit: float | None) -> Result:
    """The middle of three runs."""
    runs = sorted((monitor.measure(6.0, meters=meters) for _ in range(3)), key=lambda run: run.core_percent)
    cost = runs[1]
    period = f"period p50 {cost.period_p50_ms:.2f} ms, p99 {cost.period_p99_ms:.2f} ms"
    late = f"late p50 {cost.late_p50_ms:.2f} ms, p99 {cost.late_p99_ms:.2f} ms"
    detail = f"{period}, {late}, {cost.missed} of {cost.reads} missed"
    return Result(what, cost.core_percent, "% of a core", limit, detail)


def main() -> int:
    """Measure, print, keep, and say whether every limit holds."""
    results = accounting() + growth() + recording() + kineto() + imports() + monitoring()
    table = Table(box=None, header_style="bold")
    for column in ("what", "figure", "limit", "", "detail"):
        table.add_column(column, justify="right" if column in ("figure", "limit") else "left")
    for result in results:
        limit = "" if result.limit is None else f"{result.limit:g} {result.unit}"
        verdict = "" if result.limit is None else "[green]holds" if result.passed else "[red]EXCEEDED"
        table.add_row(result.what, f"{result.figure:.2f} {result.unit}", limit, verdict, result.detail)
    Console(width=130).print(table)
    RESULTS.mkdir(exist_ok=True)
    content = {
        "machine": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "results": [asdict(result) | {"passed": result.passed} for result in results],
    }
    (RESULTS / "accounting.json").write_text(json.dumps(content, indent=1) + "\n")
    return 0 if all(result.passed for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
