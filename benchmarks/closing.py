"""What the end of a session of PyTorch takes for an event, and reading it when the program has ended.

    python benchmarks/closing.py                    300,000 events
    python benchmarks/closing.py --events 1000000   ten times as many as a step of a large program has

With shapes, strides and dataflow, as the 1st, 4th, 16th, … session of each kind of step has them, and
without. A session has one to five steps.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from joulemap.frameworks.torch import profiler
from joulemap.frameworks.torch.raw import read_raw
from switch import Switch

EVENTS_OF_LAYER = 47
FIRST = "with shapes and dataflow", "without"
"""Sessions in their order: the second of a kind of step has neither."""
MOST_US = 20.0, 10.0
"""Of an event, until it is a named row."""


def closing(events: int) -> Iterator[tuple[int, float, float, float]]:
    """Of one session after the other: its events, seconds until it was closed, of these ours, and seconds
    until they were rows."""
    step = _training(layers=events // EVENTS_OF_LAYER)
    step()
    with tempfile.TemporaryDirectory() as made:
        switch = Switch("torch", Path(made), overhead=0.0)
        for number in range(len(FIRST)):
            with switch.on(), _timed(profiler, "write_events") as wrote_s:
                switch.sessions.start()
                step()
            [spent] = switch.sessions_spent()[number:]
            begin_s = time.perf_counter()
            seen = len(read_raw(Path(made) / "torch" / str(number)).events)
            yield seen, spent.stop_s, sum(wrote_s), time.perf_counter() - begin_s


def _training(layers: int) -> Callable[[], object]:
    """A step of many small operations."""
    torch.set_num_threads(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(layers)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    given = torch.randn(2, 4)

    def step() -> None:
        optimizer.zero_grad()
        model(given).sum().backward()
        optimizer.step()

    return step


@contextmanager
def _timed(owner: Any, name: str) -> Iterator[list[float]]:
    """What each call of a function takes."""
    function: Callable[..., Any] = getattr(owner, name)
    took_s: list[float] = []

    def runs(*given: Any) -> Any:
        begin_s = time.perf_counter()
        result = function(*given)
        took_s.append(time.perf_counter() - begin_s)
        return result

    with patch.object(owner, name, runs):
        yield took_s


def main() -> int:
    """Measure, and print; 1 where joulemap takes longer than it may."""
    parser = argparse.ArgumentParser(description="What the end of a session of PyTorch takes.")
    parser.add_argument("--events", type=int, default=300_000)
    exceeded = 0
    sessions = closing(parser.parse_args().events)
    for said, most_us, (seen, whole_s, wrote_s, read_s) in zip(FIRST, MOST_US, sessions, strict=True):
        row_us = 1e6 * read_s / seen
        exceeded += row_us > most_us
        print(f"{seen:,} events, {said}: closed in {whole_s:.2f} s, of which joulemap {wrote_s:.2f} s;")
        print(f"    named rows in {read_s:.2f} s, {row_us:.1f} µs an event, at most {most_us:g}")
    return int(exceeded > 0)


if __name__ == "__main__":
    raise SystemExit(main())
