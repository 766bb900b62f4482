"""What call sites cost: at run time, and to make them.

    python benchmarks/calls.py              under a minute

Times are the thread's own processor time, the least of several rounds, with what the plain call takes taken
off. A machine that is busy with other things still makes them longer.
"""

from __future__ import annotations

import builtins
import json
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from joulemap.calls.loader import SiteLoader
from joulemap.calls.rewrite import HOOK, rewrite
from joulemap.calls.runtime import CallMeter, site

RESULT = Path(__file__).parent / "results" / "calls.json"
CALLS, ROUNDS = 20_000, 25
OTHERS_US, MEASURED_US, REWRITE_S = 0.3, 3.0, 2.0

LIBRARY = """
def function(x): return x
def apply(function, x): return function(x)
class Thing:
    def method(self, x): return x
"""
PROGRAM = """
import benched
class Own:
    def method(self, x): return x
own, thing, words = Own(), benched.Thing(), []
def function(x): return x
def own_function(n):
    for _ in n: function(1)
def own_method(n):
    for _ in n: own.method(1)
def built_in_method(n):
    for _ in n: words.count(1)
def own_class(n):
    for _ in n: Own()
def library_function(n):
    for _ in n: benched.function(1)
def library_method(n):
    for _ in n: thing.method(1)
def function_in_a_call(n): benched.apply(library_function, n)
def method_in_a_call(n): benched.apply(library_method, n)
"""
KINDS = {
    "own_function": OTHERS_US,
    "own_method": OTHERS_US,
    "built_in_method": OTHERS_US,
    "own_class": OTHERS_US,
    "library_function": MEASURED_US,
    "library_method": MEASURED_US,
    "function_in_a_call": MEASURED_US,
    "method_in_a_call": MEASURED_US,
}


@dataclass(frozen=True)
class Result:
    """One figure and its limit."""

    name: str
    value: float
    unit: str
    limit: float

    @property
    def passed(self) -> bool:
        return self.value < self.limit


def sites() -> list[Result]:
    """What a site adds to a call."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "benched.py").write_text(LIBRARY)
        sys.path.insert(0, folder)
        meter = CallMeter(Path(folder), ["benched"], time.time_ns() - time.monotonic_ns(), print)
        SiteLoader(meter.places, print).start()
        meter.start()
        rewritten = rewrite(PROGRAM, "program.py")
        meter.places.add("program.py", rewritten.places)
        ours, plain = _names(rewritten.code), _names(compile(PROGRAM, "program.py", "exec"))
        assert vars(builtins)[HOOK] is site
        results = []
        for kind, limit in KINDS.items():
            added_s = _least_s(ours[kind]) - _least_s(plain[kind])
            results.append(Result(kind.replace("_", " "), 1e6 * added_s / CALLS, "µs", limit))
        meter.stop()
    return results


def _names(code: Any) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "program"}
    exec(code, names)  # noqa: S102 - it is ours
    return names


def _least_s(function: Any) -> float:
    times = []
    for _ in range(ROUNDS):
        begin_s = time.thread_time()
        function(range(CALLS))
        times.append(time.thread_time() - begin_s)
    return min(times)


def rewriting() -> Result:
    """Making sites of a megabyte of source: the standard library's."""
    folder = Path(json.__file__).parents[1]
    sources: list[str] = []
    for path in sorted(folder.glob("*.py")):
        text = path.read_text(errors="replace")
        if "__future__" not in text and sum(map(len, sources)) < 1_000_000:
            sources.append(text)
    whole = "\n".join(sources)
    times = []
    for _ in range(3):
        begin_s = time.process_time()
        rewrite(whole, "library.py")
        times.append(time.process_time() - begin_s)
    return Result("rewrite 1 MB of source", min(times) * 1e6 / len(whole), "s", REWRITE_S)


def main() -> None:
    """Measure, show, and keep the table."""
    results = [*sites(), rewriting()]
    table = Table(box=None)
    for title in ("", "added", "limit", ""):
        table.add_column(title, justify="left" if not title else "right")
    for one in results:
        table.add_row(
            one.name, f"{one.value:.2f} {one.unit}", f"{one.limit} {one.unit}", "" if one.passed else "over"
        )
    Console().print(table)
    document = {"python": sys.version.split()[0], "results": [asdict(one) for one in results]}
    RESULT.write_text(json.dumps(document, indent=1) + "\n")
    sys.exit(not all(one.passed for one in results))


if __name__ == "__main__":
    main()
