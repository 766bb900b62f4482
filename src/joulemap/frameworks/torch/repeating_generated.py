"""What graphs of ``torch.compile`` call, executed again in place: kernels of inductor's own, and operations
of libraries that write into memory which the graph has found for them.

Something of ours stands in their place meanwhile. Further executions write into memory of their own: what the
program reads afterwards is what its own execution has written, to the bit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from joulemap.frameworks.patches import Patches
from joulemap.frameworks.torch import gpus
from joulemap.frameworks.torch.again import Again, Refused, Thread, device_of
from joulemap.frameworks.torch.caches import Operands
from joulemap.frameworks.torch.launched import (
    BETWEEN,
    PREFIX,
    Launch,
    bytes_of,
    parameters,
    source_of,
)
from joulemap.frameworks.torch.repeating import safely_operands
from joulemap.frameworks.torch.rotation import copied, tensors_in, with_tensors
from joulemap.frameworks.torch.stand_ins import generated_modules, put_kernel, put_libraries

Kernel = tuple[str, str]
"""The name of a kernel, with ``PREFIX``, and the file of the generated code that calls it."""

IN_PLACE = "it writes into what it is given"
_OUT = re.compile(r"(in_)?out_ptr\d+")
_ADDS = re.compile(r"\batomic_add\(")


class GeneratedRepeater(Again):
    """Stands in the modules of generated code, for ``kernels`` and for operations of libraries, by what they
    are given, with the memory for their result (``choose``)."""

    def __init__(
        self,
        device: str,
        kernels: Mapping[Kernel, int],
        choose: Mapping[str, Mapping[Operands, int]],
        each_s: Mapping[int, float],
        cold: Mapping[Hashable, str],
        thread: Thread,
    ) -> None:
        super().__init__(device, each_s, cold, thread)
        self._kernels, self._choose = kernels, choose
        self._own: dict[Any, Any] = {}
        self._patches = Patches()

    def install(self) -> None:
        """Stand in every module that is there; kernels that cannot be executed again are refused."""
        modules = generated_modules()
        for (op, file), target in self._kernels.items():
            self._join(op, target, [one for one in modules if one.__file__ == file])
        for module in modules if self._choose else ():
            put_libraries(self._patches, module, self._library)

    def _join(self, op: str, target: int, modules: Sequence[Any]) -> None:
        name = op.removeprefix(PREFIX)
        here = [one for one in modules if hasattr(one, name)]
        try:
            written = _written(name, here)
        except Refused as why:
            self.refused[target] = str(why)
            return
        for module in here:
            around = partial(self._launched, target, (op, module.__file__), written)
            put_kernel(self._patches, module, name, around)

    def _launched(self, target: int, what: Kernel, written: Sequence[int], launch: Launch) -> Any:
        """A call of a kernel."""
        call = partial(launch.kernel, *launch.operands, **launch.named)
        results = [launch.operands[place] for place in written]
        return self._counted(target, what, call, results)

    def _library(self, op: str, function: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """A call of an operation; one that finds memory for its result itself passes the dispatcher."""
        call, out = partial(function, *args, **named), named.get("out")
        given = safely_operands((*args, *named.values())) if out is not None else ()
        target = self._choose.get(op, {}).get(given, -1)
        return call() if target < 0 else self._counted(target, (op, given), call, [out])

    def _counted(self, target: int, what: Hashable, call: partial[Any], results: Sequence[Any]) -> Any:
        device = device_of(results)
        if self.thread.inside or device is None or device.type != self.device or _captures(device):
            return call()
        self.seen[target] += 1
        self.thread.inside = True
        try:
            found = call()
            if target == self.target and self._may(target, call, results):
                self.again(target, what, self._elsewhere(call, results), device)
            self.wait(target, device)
            return found
        finally:
            self.thread.inside = False

    def _may(self, target: int, call: partial[Any], results: Sequence[Any]) -> bool:
        """Whether nothing that a call is given shares memory with its results."""
        given = [one for one in tensors_in(call) if all(one is not other for other in results)]
        twice = len(tensors_in(call)) != len(given) + len(results)
        if twice or any(_overlap(one, other) for one in given for other in results):
            self.refused[target] = IN_PLACE
        return target not in self.refused

    def _elsewhere(self, call: partial[Any], results: Sequence[Any]) -> Any:
        """The same call, which writes its results into memory of our own."""
        own = [self._memory_like(place, one) for place, one in enumerate(results)]
        return with_tensors(call, {id(one): other for one, other in zip(results, own, strict=True)})

    def _memory_like(self, place: int, tensor: Any) -> Any:
        key = place, tensor.shape, tensor.stride(), tensor.dtype, tensor.device
        if key not in self._own:
            self._own[key] = copied(tensor)
        return self._own[key]

    def forget(self) -> None:
        super().forget()
        self._own.clear()

    def remove(self) -> None:
        """Leave the modules as they were."""
        self.target = -1
        self.forget()
        self._patches.restore()


def _written(name: str, modules: Sequence[Any]) -> list[int]:
    if BETWEEN in name:
        raise Refused("it is several kernels, and the profiler does not see where one ends")
    if not modules:
        raise Refused("its generated code is not loaded")
    return written_by(source_of(Path(modules[0].__file__).read_text(), name))


def written_by(source: str) -> list[int]:
    """The places of the operands that a kernel writes into; ``Refused`` where it reads one of these, or adds
    to what is there: then further executions would compute something else."""
    names = parameters(source)
    if not names:
        raise Refused("its source is not in its generated code")
    written = [(place, name) for place, name in enumerate(names) if _OUT.fullmatch(name)]
    reads = [name for _, name in written if name.startswith("in_") and _reads(source, name)]
    if reads or _ADDS.search(source):
        raise Refused(IN_PLACE)
    return [place for place, _ in written]


def _reads(source: str, name: str) -> bool:
    """C++ has other ways to read than Triton: there what may be read counts as read."""
    return "tl.load" not in source or f"tl.load({name} " in source


def _overlap(one: Any, other: Any) -> bool:
    (begin, end), (since, until) = bytes_of(one), bytes_of(other)
    return begin < until and since < end and one.device == other.device


def _captures(device: Any) -> bool:
    return device.type != "cpu" and gpus.captures()
