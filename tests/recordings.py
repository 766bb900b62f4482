"""Small recordings for the tests: what is in them, how to write them, how to compare them."""

import dataclasses
import os
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from joulemap.devices import Domain
from joulemap.labels import Labels
from joulemap.processes import ProcessShares
from joulemap.program import Program
from joulemap.recording import RecordingInfo, RecordingWriter
from joulemap.traces import ClockAnchor, EventTrace, PowerTrace, Steps

REPOSITORY = Path(__file__).parents[1]
T0 = 1_790_000_000_000_000_000
ODD_NAMES = ("bert/encoder/layer_0/MatMul", "", "/", "naïve/Größe/層/🔥", 'quote"\\\n\ttab', "a" * 3000)
DOMAINS = (
    Domain("package-0", "CPU", sensor="rapl", update_period_s=0.001),
    Domain("GPU 0/1", "GPU:0", sensor="nvml", provenance="estimated"),
    Domain("GPU-0-1", "GPU:1", parent="GPU 0/1"),
    Domain("..", "CPU:1"),
    Domain("größe/層", "CPU:2"),
)


def some_events(rows=20, seed=0, lanes=True, names=ODD_NAMES):
    rng = np.random.default_rng(seed)
    start = T0 + np.cumsum(rng.integers(0, 1000, rows))
    return EventTrace.from_columns(
        name=Labels(rng.integers(0, len(names), rows, dtype=np.int32), tuple(names)),
        device=Labels(rng.integers(0, 2, rows, dtype=np.int32), ("CPU:0", "GPU:0")),
        start_ns=start,
        end_ns=start + rng.integers(0, 5000, rows),
        lane=rng.integers(0, 3, rows) if lanes else None,
        phase=Labels(rng.integers(0, 2, rows, dtype=np.int32), ("forward", "backward")),
        step=rng.integers(-1, 3, rows),
        signature=Labels(rng.integers(0, 3, rows, dtype=np.int32), ("", '["mm"]', '["größe"]')),
    )


def some_power(domain=DOMAINS[0], rows=10, start_ns=T0, seed=0):
    rng = np.random.default_rng(seed)
    edges = start_ns + np.concatenate(([0], np.cumsum(rng.integers(1, 1000, rows))))
    return PowerTrace(domain, edges, rng.random(rows), gap=rng.random(rows) < 0.2)


def some_steps(rows=4, start_ns=T0):
    start = start_ns + 1000 * np.arange(rows)
    labels = ["train", "test"] * rows
    return Steps.from_columns(start_ns=start, end_ns=start + 900, traced=start % 3 > 0, label=labels[:rows])


def some_shares(domain="package-0", rows=5, start_ns=T0):
    share = np.linspace(0, 1, rows)
    return ProcessShares.from_columns(domain, start_ns + 10 * np.arange(rows + 1), share, share / 3)


SOME_PROGRAM = Program.of({"a/MatMul": "MatMul", "b/層": "Relu"}, [("a/MatMul", "b/層")])
SOME_INFO = RecordingInfo(
    command=["python", "train.py", "\udcff"],
    source="run",
    host={"name": "node1", "cores": 8},
    versions={"joulemap": "0.1"},
    created_ns=T0,
    window_ns=(T0, T0 + 10**9),
    domains=[DOMAINS[0]],
    anchors=[ClockAnchor("gpu", 1, T0, 1001, T0 + 1000)],
    rank=1,
    world_size=4,
    warnings=["slow meter"],
)


def plain(value):
    """A trace as lists and strings, to be compared."""
    if isinstance(value, Labels):
        return list(value)
    if isinstance(value, np.ndarray):
        return [str(item) for item in value.tolist()]
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, (EventTrace, PowerTrace, Steps, ProcessShares)):
        names = [field.name for field in dataclasses.fields(value)]
        return {name: plain(getattr(value, name)) for name in names}
    return value


TABLES = ("events", "power", "steps", "shares", "program")


def everything(recording):
    """All that a recording holds, table by table."""
    return {name: plain(getattr(recording, name)()) for name in TABLES}


@contextmanager
def unsynced():
    """Do not wait for the disk, where it is not the machine that goes down."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@unsynced()
def write_open(path, parts=3):
    """A recording whose writer is gone, with its tables still open."""
    writer = RecordingWriter.create(path, SOME_INFO)
    writer.append_events(some_events())
    for part in range(1, parts):
        writer.append_events(some_events(5, seed=part))
    for domain in DOMAINS[:2]:
        start = T0
        for part in range(parts):
            trace = some_power(domain, 4, start, seed=part)
            writer.append_power(trace)
            start = int(trace.edges_ns[-1])
    for part in range(parts):
        writer.append_steps(some_steps(2, T0 + 10_000 * part))
    writer.append_shares(some_shares())
    writer.put_program(SOME_PROGRAM)
    writer.close()
    writer._release()
    return path


@unsynced()
def write_sealed(path):
    write_open(path)
    RecordingWriter.attach(path).finish()
    return path


def flip(path, position, mask=0x10):
    content = bytearray(path.read_bytes())
    content[position] ^= mask
    path.write_bytes(content)
