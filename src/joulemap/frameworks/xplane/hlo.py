"""Compiled programs in a profile: what each instruction of an HLO module came from, and what feeds it.

Only the fields that names, dataflow and the amount of work need are read (``hlo.proto`` of XLA).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from joulemap.frameworks import wire
from joulemap.frameworks.wire import Field
from joulemap.frameworks.xplane.space import METADATA, Space
from joulemap.frameworks.xplane.stacks import Call, Stacks

_PROTO = "Hlo Proto"
_MODULE = 1
_MODULE_NAME, _COMPUTATION, _MODULE_ID, _ENTRY_ID, _SCHEDULE, _STACKS = 1, 3, 5, 6, 7, 17
_INSTRUCTION, _COMPUTATION_ID, _ROOT_ID = 2, 5, 6
_NAME, _OPCODE, _METADATA, _PARAMETER_NUMBER, _ID, _OPERANDS, _CALLED = 1, 2, 7, 9, 35, 36, 38
_SHAPE, _WINDOW, _DOT = 3, 15, 30
_DIMENSIONS, _TUPLE_SHAPES, _WINDOW_DIMENSION, _SIZE, _LEFT_CONTRACTED = 3, 4, 1, 1, 1
_OP_TYPE, _OP_NAME, _STACK = 1, 2, 15
_KEY, _VALUE = 1, 2
_FUSION = "fusion"
_PARAMETER = "parameter"
_PRODUCTS, _SHAPING = ("dot", "convolution"), ("bitcast", "reshape", "transpose", "copy")
_IS_PRODUCT = re.compile(r"/(?:dot|conv)\w*$")


@dataclass(slots=True)
class Instruction:
    """One instruction; ``op_name`` and ``op_type`` are the framework's, empty where XLA made it up.

    ``dimensions`` are those of its result, of the first part where that is a tuple; ``contracted`` are the
    places of the dimensions of its first operand that a product sums over, ``window`` the sizes of what a
    convolution or a windowed reduction looks at. ``stack`` is the number of the Python stack it was made on,
    ``parameter`` that of what is handed to its computation, where it is a parameter.
    """

    name: str = ""
    opcode: str = ""
    op_name: str = ""
    op_type: str = ""
    number: int = 0
    operands: list[int] = field(default_factory=list)
    called: list[int] = field(default_factory=list)
    dimensions: list[int] = field(default_factory=list)
    contracted: list[int] = field(default_factory=list)
    window: list[int] = field(default_factory=list)
    stack: int = 0
    parameter: int = 0


@dataclass(slots=True)
class Computation:
    """Instructions that run together: a program's own, a fusion's inside, a loop's body."""

    number: int = 0
    root: int = 0
    instructions: list[Instruction] = field(default_factory=list)


class Module:
    """A compiled program. ``number`` is what events call ``program_id``."""

    def __init__(self, proto: bytes) -> None:
        self._proto = proto
        self.name, self.number, self._entry = "", 0, 0
        for part in _inside(proto, _MODULE):
            if part.number == _MODULE_NAME:
                self.name = wire.text(proto, part)
            elif part.number == _MODULE_ID:
                self.number = wire.signed(part.value)
            elif part.number == _ENTRY_ID:
                self._entry = part.value

    @cached_property
    def _computations(self) -> dict[int, Computation]:
        """Read when somebody asks: most programs of a profile did not run while it was made."""
        parts = (part for part in _inside(self._proto, _MODULE) if part.number == _COMPUTATION)
        return {one.number: one for one in (_computation(self._proto, part) for part in parts)}

    @cached_property
    def _instructions(self) -> dict[str, Instruction]:
        return {one.name: one for each in self._computations.values() for one in each.instructions}

    @cached_property
    def _stacks(self) -> Stacks:
        parts = [part for part in _inside(self._proto, _MODULE) if part.number == _STACKS]
        return Stacks.read(self._proto, parts[0]) if parts else Stacks()

    def instruction(self, name: str) -> Instruction | None:
        """An instruction by its name."""
        return self._instructions.get(name)

    def called(self, instruction: Instruction) -> list[Computation]:
        """What an instruction runs: a fusion's inside, a loop's body and its condition."""
        return [self._computations[one] for one in instruction.called if one in self._computations]

    @cached_property
    def _callers(self) -> dict[str, Instruction]:
        """For each instruction that is not the program's own, the one that runs the computation it is in."""
        return {
            inner.name: caller
            for caller in self._instructions.values()
            for computation in self.called(caller)
            for inner in computation.instructions
        }

    def caller(self, instruction: Instruction) -> Instruction | None:
        """The loop, branch or call that an instruction is in; None for the program's own."""
        return self._callers.get(instruction.name)

    @cached_property
    def _users(self) -> dict[str, list[Instruction]]:
        users: dict[str, list[Instruction]] = {}
        for computation in self._computations.values():
            names = {one.number: one.name for one in computation.instructions}
            for one in computation.instructions:
                for operand in one.operands:
                    users.setdefault(names.get(operand, ""), []).append(one)
        return users

    def reshaped(self, instruction: Instruction) -> Instruction | None:
        """What gives a product without a name the shape that was asked for: where XLA computes it in another,
        the name stays there. None where nothing does."""
        if instruction.op_name or instruction.opcode not in _PRODUCTS:
            return None
        shaped = (one for one in self._used_by(instruction) if one.opcode in _SHAPING)
        return next((one for one in shaped if _IS_PRODUCT.search(one.op_name)), None)

    def _used_by(self, instruction: Instruction) -> Iterator[Instruction]:
        """What uses an instruction, inside of fusions too."""
        for user in self._users.get(instruction.name, ()):
            yield user
            for computation in self.called(user) if user.opcode == _FUSION else ():
                for one in computation.instructions:
                    if one.opcode == _PARAMETER and user.operands[one.parameter] == instruction.number:
                        yield from self._users.get(one.name, ())

    def calls(self, instruction: Instruction) -> tuple[Call, ...]:
        """The Python functions that were running where an instruction was made, the innermost first."""
        return self._stacks.calls(instruction.stack)

    def scheduled(self) -> list[Instruction]:
        """The program's own instructions in the order they are begun; none where that was not kept."""
        parts = [part for part in _inside(self._proto, _MODULE) if part.number == _SCHEDULE]
        order = _sequences(self._proto, parts[0]).get(self._entry, []) if parts else []
        entry = self._computations.get(self._entry, Computation())
        by_number = {one.number: one for one in entry.instructions}
        return [by_number[number] for number in order if number in by_number]

    @property
    def op_names(self) -> set[str]:
        """The framework's names of everything that was compiled."""
        return {one.op_name for one in self._instructions.values() if one.op_name}

    def source(self, name: str) -> Instruction | None:
        """The instruction that says where one came from: itself; or of a fusion without a name the root
        inside it, or else what most of its inside came from. None where nothing says so."""
        instruction = self._instructions.get(name)
        if instruction is None or instruction.op_name:
            return instruction
        called = self.called(instruction)
        inside = [one for computation in called for one in computation.instructions if one.op_name]
        roots = {computation.root for computation in called}
        at_root = [one for one in inside if one.number in roots]
        if at_root or not inside:
            return at_root[0] if at_root else None
        common, _ = Counter(one.op_name for one in inside).most_common(1)[0]
        return next(one for one in inside if one.op_name == common)

    def edges(self) -> Iterator[tuple[str, str]]:
        """What feeds what, by the names of instructions that say where they came from; through those that
        do not (parameters, tuples, copies) to the nearest that do."""
        fused = {
            called for one in self._instructions.values() if one.opcode == _FUSION for called in one.called
        }
        for computation in self._computations.values():
            if computation.number not in fused:
                yield from self._edges(computation)

    def _edges(self, computation: Computation) -> Iterator[tuple[str, str]]:
        """Instructions come after their operands, so one pass suffices."""
        sources: dict[int, frozenset[str]] = {}
        for one in computation.instructions:
            before = frozenset[str]().union(*(sources.get(operand, ()) for operand in one.operands))
            if self.source(one.name) is None:
                sources[one.number] = before
                continue
            sources[one.number] = frozenset((one.name,))
            yield from ((source, one.name) for source in before)


class Modules:
    """The compiled programs of profiles, each read once though every profile repeats those that are live."""

    def __init__(self) -> None:
        self._known: dict[bytes, Module] = {}

    def of(self, space: Space) -> dict[int, Module]:
        """The programs of one profile by number; all that were live, whether they ran or not."""
        protos = [
            proto
            for plane in space.planes
            if plane.name == METADATA
            for described in plane.described
            if isinstance(proto := described.stats.get(_PROTO), bytes)
        ]
        modules = [self._known.setdefault(proto, Module(proto)) for proto in protos]
        return {module.number: module for module in modules}


def _inside(proto: bytes, number: int) -> Iterator[Field]:
    for part in wire.fields(proto):
        if part.number == number:
            yield from wire.fields(proto, part.value, part.end)


def _computation(proto: bytes, part: Field) -> Computation:
    made = Computation()
    for one in wire.fields(proto, part.value, part.end):
        if one.number == _INSTRUCTION:
            made.instructions.append(_instruction(proto, one))
        elif one.number == _COMPUTATION_ID:
            made.number = one.value
        elif one.number == _ROOT_ID:
            made.root = one.value
    return made


def _instruction(proto: bytes, part: Field) -> Instruction:
    made = Instruction()
    for one in wire.fields(proto, part.value, part.end):
        if one.number == _NAME:
            made.name = wire.text(proto, one)
        elif one.number == _OPCODE:
            made.opcode = wire.text(proto, one)
        elif one.number == _ID:
            made.number = one.value
        elif one.number == _OPERANDS:
            made.operands += wire.numbers(proto, one)
        elif one.number == _CALLED:
            made.called += wire.numbers(proto, one)
        elif one.number == _PARAMETER_NUMBER:
            made.parameter = one.value
        elif one.number == _METADATA:
            _read_metadata(proto, one, made)
        else:
            _read_size(proto, one, made)
    return made


def _read_size(proto: bytes, part: Field, made: Instruction) -> None:
    if part.number == _SHAPE:
        made.dimensions = _dimensions(proto, part)
    elif part.number == _DOT:
        made.contracted = _numbers(proto, part, _LEFT_CONTRACTED)
    elif part.number == _WINDOW:
        made.window = _window(proto, part)


def _dimensions(proto: bytes, shape: Field) -> list[int]:
    parts = list(wire.fields(proto, shape.value, shape.end))
    first = next((part for part in parts if part.number == _TUPLE_SHAPES), None)
    return _numbers(proto, shape, _DIMENSIONS) if first is None else _dimensions(proto, first)


def _numbers(proto: bytes, message: Field, field_number: int) -> list[int]:
    parts = wire.fields(proto, message.value, message.end)
    return [number for part in parts if part.number == field_number for number in wire.numbers(proto, part)]


def _window(proto: bytes, window: Field) -> list[int]:
    dimensions = wire.fields(proto, window.value, window.end)
    return [
        part.value
        for dimension in dimensions
        if dimension.number == _WINDOW_DIMENSION
        for part in wire.fields(proto, dimension.value, dimension.end)
        if part.number == _SIZE
    ]


def _sequences(proto: bytes, schedule: Field) -> dict[int, list[int]]:
    """For each computation, by number, its instructions in order."""
    sequences = {}
    for entry in wire.fields(proto, schedule.value, schedule.end):
        parts = {part.number: part for part in wire.fields(proto, entry.value, entry.end)}
        if _KEY in parts and _VALUE in parts:
            sequences[parts[_KEY].value] = _numbers(proto, parts[_VALUE], 1)
    return sequences


def _read_metadata(proto: bytes, part: Field, made: Instruction) -> None:
    """Names that XLA merged are joined by ``;``: the first stands for all."""
    for one in wire.fields(proto, part.value, part.end):
        if one.number == _OP_TYPE:
            made.op_type = wire.text(proto, one)
        elif one.number == _OP_NAME:
            made.op_name = wire.text(proto, one).partition(";")[0]
        elif one.number == _STACK:
            made.stack = one.value
