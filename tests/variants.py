"""Recordings of small programs whose energy is known, to be compared: a few layers, a few steps, one GPU."""

import numpy as np

from joulemap.devices import Domain
from joulemap.recording import RecordingInfo, RecordingWriter
from joulemap.traces import EventTrace, PowerTrace, Steps

from .recordings import T0, unsynced

OPERATIONS = (("attention/MatMul", 4_000_000, 500.0), ("output/MatMul", 6_000_000, 400.0))


def write_variant(
    path,
    seed,
    *,
    layers=3,
    layer="layer_{}",
    steps=12,
    factor=1.0,
    runs_differ=0.01,
    adapter=False,
    traced=None,
):
    """Each step runs every layer and waits. ``factor`` is what the second layer's output draws more of, and
    ``runs_differ`` how much a run's power differs from that of another. Of ``traced`` steps the events are
    known; all of them by default."""
    rng = np.random.default_rng(seed)
    level = rng.normal(1.0, runs_differ)
    names, edges, joules, step_of, borders = [], [T0], [], [], [T0]

    def spend(name, nanoseconds, power_w, step):
        edges.append(edges[-1] + int(nanoseconds * rng.normal(1.0, 0.03)))
        joules.append((edges[-1] - edges[-2]) / 1e9 * power_w * level)
        names.append(name)
        step_of.append(step)

    for step in range(steps):
        for number in range(layers):
            for operation, nanoseconds, power_w in OPERATIONS:
                more = factor if number == 1 and operation.startswith("output") else 1.0
                name = f"bert/encoder/{layer.format(number)}/{operation}"
                spend(name, nanoseconds, power_w * more, step)
        if adapter:
            spend("bert/adapter/Add", 2_000_000, 300.0, step)
        spend("", 5_000_000, 100.0, step)
        borders.append(edges[-1])
    known = steps if traced is None else traced
    runs = np.array([bool(name) and step < known for name, step in zip(names, step_of, strict=True)])
    events = EventTrace.from_columns(
        name=np.array(names)[runs],
        device="GPU:0",
        start_ns=np.array(edges[:-1])[runs],
        end_ns=np.array(edges[1:])[runs],
        phase="forward",
        step=np.array(step_of)[runs],
    )
    info = RecordingInfo(command=["train.py"], window_ns=(T0, edges[-1]))
    with unsynced(), RecordingWriter.create(path, info) as writer:
        writer.put_events(events)
        writer.put_steps(
            Steps.from_columns(
                start_ns=borders[:-1], end_ns=borders[1:], traced=[step < known for step in range(steps)]
            )
        )
        writer.put_power(PowerTrace(Domain("GPU:0", "GPU:0", update_period_s=0.001), edges, joules))
    return path
