"""A recording whose operations were calibrated, and whose meter is far too slow for them."""

import json
from typing import Any

import numpy as np
import pyarrow as pa

from joulemap.calibration.book import Calibration
from joulemap.calibration.cost import Cost
from joulemap.calibration.operation import Operation
from joulemap.calibration.recorded import CALIBRATION, SIGNATURES
from joulemap.devices import Domain
from joulemap.program import Program
from joulemap.recording import RecordingInfo, RecordingWriter
from joulemap.traces import EventTrace, PowerTrace, Steps

from .recordings import T0, unsynced

MS = 1_000_000
STEPS = 4
CALIBRATED_J = {"net/MatMul": 8.0, "net/Add": 4.0}
"""Of a step; 2 J are for waiting. What was measured of a step is just that."""
TIME_BASED_J = {"net/MatMul": 2.8, "net/Add": 5.6}
"""Of the same 14 J: 20 and 40 of 100 ms; 5.6 J are for waiting."""
_CALL = {"phase": "forward", "strides": "", "types": '["float"]', "scalars": "", "calls": STEPS}


def called(op: str, shape: list[int], calls: int = 1, **more: str) -> dict[str, Any]:
    """A row of a recording's signatures."""
    row = {"name": f"net/{op}", "op": op, "phase": "forward", "shapes": json.dumps([shape]), "strides": ""}
    return {**row, "types": '["float"]', "scalars": "", "calls": calls, **more}


def write_calibrated(path, factor=1.0, provenance="measured"):
    """Four steps of 100 ms, each one update of the meter. ``factor`` is what the MatMul costs more of."""
    costs_j = CALIBRATED_J | {"net/MatMul": factor * CALIBRATED_J["net/MatMul"]}
    signatures = [
        {"name": name, "op": name.removeprefix("net/"), "shapes": json.dumps([[8]]), **_CALL}
        for name in costs_j
    ]
    lasts_s = dict(zip(costs_j, (0.02, 0.04), strict=True))
    costs = {
        Operation.of(row): Cost(costs_j[row["name"]], lasts_s[row["name"]], 0.01, 2) for row in signatures
    }
    edges = T0 + 100 * MS * np.arange(STEPS + 1)
    start = (edges[:-1, None] + MS * np.array([0, 20])).ravel()
    events = EventTrace.from_columns(
        name=[*costs_j] * STEPS,
        device="GPU:0",
        start_ns=start,
        end_ns=start + MS * np.tile([20, 40], STEPS),
        phase="forward",
        step=np.repeat(np.arange(STEPS), 2),
    )
    info = RecordingInfo(
        command=["train.py"],
        window_ns=(T0, int(edges[-1])),
        extra={CALIBRATION: Calibration("GPU:0", 50.0, costs).to_json()},
    )
    step_j = sum(costs_j.values()) + 2.0
    with unsynced(), RecordingWriter.create(path, info) as writer:
        writer.put_events(events)
        writer.put_steps(Steps.from_columns(start_ns=edges[:-1], end_ns=edges[1:]))
        domain = Domain("GPU:0", "GPU:0", update_period_s=0.1, provenance=provenance)
        writer.put_power(PowerTrace(domain, edges, [step_j] * STEPS))
        writer.put_program(Program.of(dict.fromkeys(costs_j, "op"), [("net/MatMul", "net/Add")]))
        writer.put_table(SIGNATURES, pa.Table.from_pylist(signatures))
    return path
