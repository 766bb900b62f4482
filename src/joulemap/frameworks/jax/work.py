"""How much there is to do in an instruction, to weigh the parts of a fusion against each other."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from joulemap.frameworks.xplane.hlo import Computation, Instruction

NO_WORK = frozenset({"parameter", "constant", "bitcast", "tuple", "get-tuple-element", "after-all", "iota"})
_REDUCING = frozenset({"reduce", "reduce-window", "sort", "scatter"})


def works(computation: Computation) -> list[tuple[Instruction, int]]:
    """The instructions of a fusion that do something, and how much."""
    by_number = {one.number: one for one in computation.instructions}
    return [
        (one, work(one, [by_number[operand] for operand in one.operands if operand in by_number]))
        for one in computation.instructions
        if one.opcode not in NO_WORK
    ]


def work(instruction: Instruction, operands: Sequence[Instruction]) -> int:
    """Floating-point operations; an element that is moved counts as one. 1 where nothing is known."""
    elements = prod(instruction.dimensions)
    if instruction.opcode == "dot" and operands:
        left = operands[0].dimensions
        elements *= 2 * prod(left[place] for place in instruction.contracted if place < len(left))
    elif instruction.opcode == "convolution":
        elements *= 2 * prod(instruction.window)
    elif instruction.opcode in _REDUCING and operands:
        elements = prod(operands[0].dimensions)
    return max(elements, 1)
