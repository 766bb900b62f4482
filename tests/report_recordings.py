"""Recordings for the tests of the report: one whose every name and number is known, and one of any size."""

import itertools

import numpy as np

from joulemap.calls.table import Calls, Sites
from joulemap.devices import Domain
from joulemap.labels import Labels
from joulemap.program import Program
from joulemap.recording import RecordingInfo, RecordingWriter
from joulemap.traces import EventTrace, PowerTrace, Steps

from .recordings import T0, unsynced

EVIL = "<script>alert(1)</script>"
TAG = "<img src=x onerror=alert(1)>"
MS = 1_000_000
SMALL = {
    "net/embed/Gather": ("forward", 10),
    "net/encoder/layer_0/MatMul": ("forward", 30),
    "net/encoder/layer_0/Relu": ("forward", 5),
    "net/encoder/layer_1/MatMul": ("forward", 25),
    f"net/{EVIL}/{TAG}": ("forward", 10),
    "net/encoder/layer_1/MatMul_1": ("backward", 40),
    "net/encoder/layer_0/MatMul_1": ("backward", 45),
    "adam/Apply": ("optimizer", 15),
}
FLOW = [
    ("net/embed/Gather", "net/encoder/layer_0/MatMul"),
    ("net/encoder/layer_0/MatMul", "net/encoder/layer_0/Relu"),
    ("net/encoder/layer_0/Relu", "net/encoder/layer_1/MatMul"),
    ("net/encoder/layer_1/MatMul", f"net/{EVIL}/{TAG}"),
    ("net/encoder/layer_1/MatMul_1", "net/encoder/layer_0/MatMul_1"),
    ("net/encoder/layer_0/MatMul_1", "adam/Apply"),
]
GPU = Domain("GPU:0", "GPU:0", sensor="test counter", update_period_s=0.01)


@unsynced()
def write(path, info, events, power, steps=None, program=None):
    writer = RecordingWriter.create(path, info)
    writer.append_events(events)
    for trace in power:
        writer.append_power(trace)
    if steps is not None:
        writer.append_steps(steps)
    if program is not None:
        writer.put_program(program)
    writer.finish()
    return path


def write_small(path, watts=200, operations=SMALL):
    """Ten steps of 200 ms: every operation once, in milliseconds as in ``SMALL``, then waiting."""
    start, end, names, phases = [], [], [], []
    for step in range(10):
        at = T0 + 200 * MS * step
        for name, (phase, length_ms) in operations.items():
            names.append(name)
            phases.append(phase)
            start.append(at)
            at += length_ms * MS
            end.append(at)
    step_starts = T0 + 200 * MS * np.arange(10)
    edges = T0 + 10 * MS * np.arange(201)
    power = PowerTrace(GPU, edges, np.full(200, watts * 0.01))
    info = RecordingInfo(
        command=["python", "train.py"],
        host={"name": "here", "gpu": "Test GPU"},
        versions={"torch": "2"},
        created_ns=T0,
        window_ns=(T0, T0 + 2000 * MS),
        domains=[GPU],
        warnings=["A warning with <b>markup</b>."],
    )
    events = EventTrace.from_columns(
        name=names,
        device="GPU:0",
        start_ns=start,
        end_ns=end,
        phase=phases,
        step=np.repeat(np.arange(10), len(operations)),
    )
    steps = Steps.from_columns(start_ns=step_starts, end_ns=step_starts + 200 * MS, label="train")
    program = Program.of(dict.fromkeys(operations, "op"), FLOW)
    return write(path, info, events, [power], steps, program)


def write_partly_traced(path):
    """Ten steps of 100 ms of which two are traced; one operation runs in the first of these alone. The
    program starts up before them, in time that stands for itself."""
    borders = T0 + 100 * MS * np.arange(1, 12)
    names = ["(start-up)", "net/MatMul", "net/Rare", "net/MatMul"]
    start = T0 + MS * np.array([0, 100, 150, 600])
    length = MS * np.array([100, 50, 30, 60])
    events = EventTrace.from_columns(
        name=names, device="GPU:0", start_ns=start, end_ns=start + length, step=[-1, 0, 0, 5]
    )
    power = PowerTrace(GPU, T0 + 10 * MS * np.arange(111), np.full(110, 2.0))
    traced = [step in (0, 5) for step in range(10)]
    steps = Steps.from_columns(start_ns=borders[:-1], end_ns=borders[1:], traced=traced)
    info = RecordingInfo(window_ns=(T0, int(borders[-1])), domains=[GPU])
    program = Program.of(dict.fromkeys(names[:3], "op"), [("net/MatMul", "net/Rare")])
    return write(path, info, events, [power], steps, program)


def add_calls(path):
    """A call of a library that lasts for a second, and two inside it."""
    sites = Sites.from_columns(
        site=[0, 1],
        file="train.py",
        line=[7, 9],
        column=[5, 5],
        end_line=[7, 9],
        end_column=[20, 20],
        text=["model.fit", "tf.matmul"],
        function="main",
    )
    calls = Calls.from_columns(
        sites,
        call=[0, 1, 2],
        parent=[-1, 0, 0],
        site=[0, 1, 1],
        api=["fit", "matmul", "matmul"],
        thread=[1, 1, 1],
        start_ns=[T0, T0 + 100 * MS, T0 + 300 * MS],
        end_ns=[T0 + 1000 * MS, T0 + 200 * MS, T0 + 400 * MS],
    )
    with unsynced():
        writer = RecordingWriter.attach(path)
        writer.put_calls(calls)
        writer.finish()
    return path


def write_large(path, count=1_000_000, layers=64, operations=80, readings=200_000):
    """A deep transformer with thousands of operations, and a quick meter with one peak."""
    names = [
        f"model/encoder/layer_{layer}/{block}/op_{number}"
        for layer in range(layers)
        for block in ("attention/self", "attention/output", "intermediate", "output")
        for number in range(operations // 4)
    ]
    start = T0 + 100_000 * np.arange(count)
    code = (np.arange(count) % len(names)).astype(np.int32)
    events = EventTrace.from_columns(
        name=Labels(code, tuple(names)),
        device="GPU:0",
        start_ns=start,
        end_ns=start + 60_000 + 1000 * (code % 30),
        phase=Labels((np.arange(count) // len(names) % 2).astype(np.int32), ("forward", "backward")),
        step=np.arange(count) // (2 * len(names)),
    )
    step_ns = 100_000 * 2 * len(names)
    step_starts = T0 + step_ns * np.arange(-(-count // (2 * len(names))))
    span = int(events.end_ns[-1]) - T0
    edges = T0 + span * np.arange(readings + 1) // readings
    watts = 300 + 50 * np.sin(np.arange(readings) / 500)
    watts[readings // 3] = 700
    power = PowerTrace(GPU, edges, watts * np.diff(edges) / 1e9)
    program = Program.of(dict.fromkeys(names, "op"), itertools.pairwise(names))
    info = RecordingInfo(created_ns=T0, window_ns=(T0, T0 + span), domains=[GPU])
    steps = Steps.from_columns(start_ns=step_starts, end_ns=step_starts + step_ns)
    return write(path, info, events, [power], steps, program)
