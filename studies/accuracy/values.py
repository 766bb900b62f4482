"""What values change: ``python -m studies.accuracy.values``.

Operations are replayed with normal values, and with values that came from a narrower type: half of the bits
of each are zero then. Programs that compute in bfloat16 and keep sums in float32 have such.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from math import prod
from typing import Any

from joulemap.calibration.cost import Cost
from joulemap.calibration.operation import Operation
from joulemap.frameworks.torch.call import Call
from joulemap.frameworks.torch.replayer import Replayer
from joulemap.units import fmt
from studies.accuracy import alone
from studies.page import markdown

ROWS, COLUMNS = 8192, 2048
NORMAL, NARROW = "normal", "from bfloat16"
HELD = 16 * 1024
"""Values of each operand, which come again and again."""


def calls() -> Iterator[Operation]:
    """What is replayed: matrices of 64 MiB, as float32."""
    whole, row = [ROWS, COLUMNS], [ROWS, 1]
    for op, shapes, scalars in (
        ("aten::pow", [whole, []], [None, 2]),
        ("aten::mul", [whole, row], [None, None]),
        ("aten::add", [whole, whole, []], [None, None, 1]),
        ("aten::mean", [whole, [], []], [None, [-1], True]),
    ):
        types = json.dumps(["float" if shape else "Scalar" for shape in shapes])
        strides = json.dumps([[shape[1], 1] if shape else [] for shape in shapes])
        yield Operation(op, json.dumps(shapes), strides, types, json.dumps(scalars))


def replay(device: str) -> Iterator[dict[str, Any]]:
    """Every operation with both."""
    import torch

    for how in (NORMAL, NARROW):
        for operation in calls():
            shapes = [shape for shape in json.loads(operation.shapes) if shape]
            held = [_values(how, min(prod(shape), HELD)) for shape in shapes]
            replayer = Replayer(Call.of(operation.key), torch.device(device), held)
            yield alone.replayed(f"{how} {operation.key}", replayer, device)


def _values(how: str, count: int) -> bytes:
    import torch

    values = torch.randn(count)
    return bytes((values.bfloat16().float() if how == NARROW else values).numpy().tobytes())


def rows(found: dict[str, Cost]) -> list[list[str]]:
    """By operation: what an execution takes with either."""
    said = []
    for operation in calls():
        normal, narrow = (found.get(f"{how} {operation.key}") for how in (NORMAL, NARROW))
        if normal is not None and narrow is not None:
            energies = [fmt(one.energy_j, "J") for one in (normal, narrow)]
            said.append([operation.op[6:], *energies, f"× {narrow.energy_j / normal.energy_j:.2f}"])
    return said


def main() -> None:
    """Measure, and print a table."""
    found = alone.studied("studies.accuracy.values", main.__doc__, replay)
    if found is not None:
        sys.stdout.write(markdown(("operation", NORMAL, NARROW, "energy"), rows(found)))


if __name__ == "__main__":
    main()
