"""What it changes that operands take turns: ``python -m studies.accuracy.rotation``.

Operations of several sizes are replayed with operands that take turns, as calibration does, and with the same
ones every time, which stay in the cache if they fit. Says by how much time and energy of one execution
differ. Sums of one tensor, over and over, tell how much that is: what a megabyte takes, by how many it has.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from joulemap.calibration.cost import Cost
from joulemap.calibration.operation import Operation
from joulemap.frameworks.torch.call import Call
from joulemap.frameworks.torch.replayer import Replayer
from joulemap.units import fmt
from studies.accuracy import alone
from studies.page import markdown

SIZES = (1024, 2048, 4096, 8192)
"""Rows and columns: 2 to 128 MB in bfloat16."""
SUMMED = (4, 8, 16, 24, 28, 32, 36, 40, 48, 56, 64, 96, 128)
"""MiB of the tensors that are summed."""
PASSES = 1
TURNS, SAME = "turns", "same"


def calls() -> Iterator[tuple[str, int, Operation]]:
    """What is replayed: square matrices, as bfloat16."""
    for size in SIZES:
        for op, count in (("aten::add", 2), ("aten::gelu", 1), ("aten::mm", 2)):
            shapes, strides = [[size, size]] * count, [[size, 1]] * count
            types = ["c10::BFloat16"] * count
            yield op, size, Operation(op, json.dumps(shapes), json.dumps(strides), json.dumps(types), "")


def sums() -> Iterator[tuple[int, Operation]]:
    """What is replayed with the same operand only."""
    for size in SUMMED:
        shapes, strides = json.dumps([[size, 512 * 1024]]), json.dumps([[512 * 1024, 1]])
        yield size, Operation("aten::sum", shapes, strides, '["c10::BFloat16"]', "")


def replay(device: str) -> Iterator[dict[str, Any]]:
    """Every operation both ways, all others in between; then the sums."""
    import torch

    both = [(how, operation) for _, _, operation in calls() for how in (TURNS, SAME)]
    for how, operation in [*both * PASSES, *((SAME, operation) for _, operation in sums())]:
        kind = Same if how == SAME else Replayer
        replayer = kind(Call.of(operation.key), torch.device(device))
        yield alone.replayed(f"{how} {operation.key}", replayer, device)


class Same(Replayer):
    """With one set of operands only."""

    def _made(self, call: Call, held: Sequence[bytes]) -> list[Callable[[], Any]]:
        return super()._made(call, held)[:1]


def rows(found: dict[str, Cost]) -> list[list[str]]:
    """By operation and size: time and energy with operands that take turns, over those without."""
    said = []
    for op, size, operation in calls():
        turns, same = (found.get(f"{how} {operation.key}") for how in (TURNS, SAME))
        if turns is not None and same is not None:
            time, energy = turns.seconds / same.seconds, turns.energy_j / same.energy_j
            megabytes = size * size * 2 * (2 if op == "aten::gelu" else 3) / 1e6
            said.append([op[6:], f"{megabytes:.0f} MB", f"× {time:.2f}", f"× {energy:.2f}"])
    return said


def rows_of_sums(found: dict[str, Cost]) -> list[list[str]]:
    """By size: what a mebibyte takes."""
    said = []
    for size, operation in sums():
        cost = found.get(f"{SAME} {operation.key}")
        if cost is not None:
            said.append([f"{size} MiB", fmt(cost.seconds / size, "s"), fmt(cost.energy_j / size, "J")])
    return said


def main() -> None:
    """Measure, and print a table."""
    found = alone.studied("studies.accuracy.rotation", main.__doc__, replay)
    if found is not None:
        head = ("operation", "operands and result", "time", "energy")
        sys.stdout.write(markdown(head, rows(found)) + "\n")
        sys.stdout.write(markdown(("summed", "time of a MiB", "energy of a MiB"), rows_of_sums(found)))


if __name__ == "__main__":
    main()
