"""Names for kernels of CUDA graphs, which XLA calls command buffers.

A graph is launched as a whole, and its kernels say only of which graph they are. But they run in the order in
which the compiled program has its instructions, and kernels that XLA wrote bear the names of fusions (without
their numbers: fusions that are alike share a kernel). So the two sequences are laid side by side. Between two
fusions, kernels of libraries belong to the library calls there, if there are as many.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from joulemap.frameworks.xplane.hlo import Instruction

_NUMBERS = re.compile(r"(?:_\d+)+_*$")
_NOT_IN_NAMES = re.compile(r"[^0-9A-Za-z_]")
_SMALL = re.compile(r"Memset|Memcpy|MemcpyD2D", re.IGNORECASE)
_LIBRARY_CALL = "custom-call"
_NO_KERNEL = frozenset({"parameter", "constant", "bitcast", "tuple", "get-tuple-element"})


@dataclass
class _Gap:
    """Kernels of libraries since the last fusion, and sets and copies that go with what comes after them."""

    kernels: list[int] = field(default_factory=list)
    small: list[int] = field(default_factory=list)


class Schedule:
    """A compiled program's instructions, in order."""

    def __init__(self, instructions: Sequence[Instruction]) -> None:
        self._instructions = [one for one in instructions if one.opcode not in _NO_KERNEL]
        self._bases = [_base(one.name) for one in self._instructions]
        self._known = {
            base
            for base, one in zip(self._bases, self._instructions, strict=True)
            if one.opcode != _LIBRARY_CALL
        }

    def restored(self, kernels: Sequence[str], since: int = 0) -> tuple[list[str], int]:
        """The instruction of each kernel of a launch, empty where that cannot be told; and where in the
        program the next launch goes on."""
        found = [""] * len(kernels)
        gap, at = _Gap(), since
        for number, kernel in enumerate(kernels):
            base = _base(kernel)
            if _SMALL.match(kernel):
                gap.small.append(number)
                continue
            if base not in self._known:
                gap.kernels.append(number)
                continue
            place = self._next(base, at)
            if place is None:
                continue
            self._fill(found, gap, range(at, place), place)
            found[number] = self._instructions[place].name
            gap, at = _Gap(), place + 1
        self._fill(found, gap, range(at, len(self._bases)), None, open_ended=True)
        return found, at

    def _next(self, base: str, since: int) -> int | None:
        try:
            return self._bases.index(base, since)
        except ValueError:
            return None

    def _fill(
        self, found: list[str], gap: _Gap, between: range, fusion: int | None, open_ended: bool = False
    ) -> None:
        """Give library kernels their calls; sets and copies go with the kernel that follows them."""
        calls = [place for place in between if self._instructions[place].opcode == _LIBRARY_CALL]
        if open_ended:
            calls = calls[: len(gap.kernels)]
        if len(calls) == len(gap.kernels):
            for number, place in zip(gap.kernels, calls, strict=True):
                found[number] = self._instructions[place].name
        elif len(calls) == 1:
            for number in gap.kernels:
                found[number] = self._instructions[calls[0]].name
        for number in gap.small:
            after = next((kernel for kernel in gap.kernels if kernel > number), None)
            if after is not None:
                found[number] = found[after]
            elif fusion is not None:
                found[number] = self._instructions[fusion].name


def _base(name: str) -> str:
    """``loop_add_fusion`` of the instruction ``loop_add_fusion.12`` and the kernel ``loop_add_fusion_3``."""
    return _NUMBERS.sub("", _NOT_IN_NAMES.sub("_", name))
