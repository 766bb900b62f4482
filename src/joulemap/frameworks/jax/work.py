"""How much there is to do in an instruction, to weigh the parts of a fusion against each other."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from joulemap.frameworks.xplane.hlo import Computation, Instruction

NO_WORK = frozenset({"parameter", "constant", "bitcast", "tuple", "get-tuple-element", "after-all", "iota"})
_BY_OPERAND = {
    "reduce": 0,
    "reduce-window": 0,
    "sort": 0,
    "select-and-scatter": 0,
    "dynamic-update-slice": 1,
    "scatter": 2,
}
"""Operations whose work shows in what goes into them: of a scatter the updates, however small its table."""


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
    elif instruction.opcode in _BY_OPERAND and len(operands) > _BY_OPERAND[instruction.opcode]:
        elements = prod(operands[_BY_OPERAND[instruction.opcode]].dimensions)
    return max(elements, 1)
