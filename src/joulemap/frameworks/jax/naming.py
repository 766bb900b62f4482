"""Qualified names and phases for the instructions of JAX's compiled programs, and what fusions consist of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from joulemap.frameworks.imported import UNNAMED
from joulemap.frameworks.jax import origins
from joulemap.frameworks.jax.names import is_name_stack, read_stack
from joulemap.frameworks.jax.work import works
from joulemap.frameworks.xplane.hlo import Instruction, Module
from joulemap.program import SEPARATOR, FusedPart, Fusion

RUNS_OTHERS = ("while", "call", "conditional", "async-start", "async-done")
"""Instructions that run others, and wait for them."""

_FUSION, _LIBRARY = "fusion", "custom-call"
_SAME_AS_PRODUCT = "transpose"
_PRODUCT = "dot_general"


@dataclass(frozen=True, slots=True)
class Named:
    """A qualified name, the operation's type, and the phase."""

    name: str
    op: str
    phase: str

    @property
    def layer(self) -> tuple[str, str]:
        """What is around the operation, and the phase."""
        return self.name.rpartition(SEPARATOR)[0], self.phase


@dataclass(frozen=True, slots=True)
class Part:
    """What a layer has done of an instruction, as a share of it."""

    named: Named
    share: float


class Naming:
    """Names the instructions of some programs."""

    def __init__(self, modules: Mapping[int, Module]) -> None:
        self._modules = modules
        self._parts: dict[tuple[int, str], tuple[Part, ...]] = {}
        self._used: dict[int, Module] = {}

    def parts(self, program: int, instruction: str) -> tuple[Part, ...]:
        """Who has done what of an instruction: one part, or several of a fusion; the shares add up to 1."""
        key = (program, instruction)
        if key not in self._parts:
            self._parts[key] = self._found(*key)
        return self._parts[key]

    def module(self, program: int) -> Module | None:
        """A compiled program."""
        return self._modules.get(program)

    def runs_others(self, program: int, instruction: str) -> bool:
        """Whether an instruction only runs others: a loop, a branch, a call."""
        module = self._modules.get(program)
        found = module.instruction(instruction) if module else None
        return found is not None and found.opcode in RUNS_OTHERS

    def is_instruction(self, name: str) -> bool:
        """Whether a name is that of an instruction of any program."""
        return any(module.instruction(name) is not None for module in self._used.values())

    def edges(self) -> Iterator[tuple[str, str]]:
        """The dataflow between qualified names, in the programs that were asked about. What feeds a fusion
        feeds all its parts."""
        for number, module in self._used.items():
            for source, target in module.edges():
                for before in self.parts(number, source):
                    for after in self.parts(number, target):
                        yield before.named.name, after.named.name

    def fusions(self) -> Iterator[Fusion]:
        """The fusions that were asked about and have several parts."""
        for (program, name), parts in self._parts.items():
            module = self._modules.get(program)
            instruction = module.instruction(name) if module else None
            if module is not None and instruction is not None and len(parts) > 1:
                whole = _whole(module, instruction)
                fused = tuple(FusedPart(one.named.name, one.named.phase, one.share) for one in parts)
                yield Fusion(whole.name, whole.op, whole.phase, fused)

    def _found(self, program: int, name: str) -> tuple[Part, ...]:
        module = self._modules.get(program)
        instruction = module.instruction(name) if module else None
        if module is None or instruction is None:
            return (Part(Named(f"{UNNAMED}/hlo/{name}", name, "other"), 1.0),)
        self._used[program] = module
        parts = _split(module, instruction) if instruction.opcode == _FUSION else ()
        return parts or (Part(_whole(module, instruction), 1.0),)


def _whole(module: Module, instruction: Instruction) -> Named:
    """An instruction that is not split goes where its result is computed."""
    named = _named(module, module.source(instruction.name) or instruction)
    return named or _in_loop(module, instruction) or _unnamed(instruction)


def _in_loop(module: Module, instruction: Instruction) -> Named | None:
    """What XLA made up inside a loop or a branch is part of it; None for what is in none that has a name."""
    caller = module.caller(instruction)
    while caller is not None:
        around = _named(module, caller)
        if around is not None:
            return Named(
                SEPARATOR.join((around.layer[0], instruction.opcode)), instruction.opcode, around.phase
            )
        caller = module.caller(caller)
    return None


def _unnamed(instruction: Instruction) -> Named:
    """XLA made it up: a copy, a constant."""
    return Named(f"{UNNAMED}/{instruction.opcode}", instruction.opcode, "other")


def _split(module: Module, fusion: Instruction) -> tuple[Part, ...]:
    """The layers of a fusion's inside by their work, each under the name of its greatest operation."""
    done: dict[tuple[str, str], int] = {}
    greatest: dict[tuple[str, str], tuple[int, Named]] = {}
    for computation in module.called(fusion):
        for instruction, work in works(computation):
            named = _named(module, instruction)
            if named is None:
                continue
            layer = named.layer
            done[layer] = done.get(layer, 0) + work
            if work > greatest.get(layer, (0, named))[0]:
                greatest[layer] = work, named
    total = sum(done.values())
    return tuple(Part(greatest[layer][1], work / total) for layer, work in done.items())


def _named(module: Module, instruction: Instruction) -> Named | None:
    """None where nothing says where it came from."""
    says = module.reshaped(instruction) or instruction
    if not is_name_stack(says.op_name):
        return None
    stack, calls = read_stack(says.op_name), module.calls(says)
    operation = _operation(stack.operation, instruction.opcode)
    op = operation if instruction.opcode in (_FUSION, _LIBRARY) else instruction.opcode
    made_by = origins.origin(calls)
    if made_by is not None and (made_by.bucket == origins.OPTIMIZER or not stack.scopes):
        layers: Sequence[str] = tuple(filter(None, made_by))
        phase = _phase(made_by.bucket, stack.phase)
    else:
        layers, phase = stack.scopes or origins.functions(calls, stack.function), stack.phase
    return Named(SEPARATOR.join([*layers, operation]), op, phase)


def _phase(bucket: str, phase: str) -> str:
    if bucket == origins.OPTIMIZER:
        return "optimizer"
    return "other" if bucket == origins.METRICS else phase


def _operation(operation: str, opcode: str) -> str:
    """A product of matrices may carry the name of the transposition that it made needless."""
    if operation == _SAME_AS_PRODUCT and opcode in ("dot", _LIBRARY):
        return _PRODUCT
    return operation
