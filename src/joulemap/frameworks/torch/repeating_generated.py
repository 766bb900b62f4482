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
from joulemap.frameworks.torch.inputs import reach
from joulemap.frameworks.torch.launched import (
    BETWEEN,
    PREFIX,
    RESULT,
    Launch,
    bytes_of,
    is_of_any_size,
    parameters,
    source_of,
    written,
)
from joulemap.frameworks.torch.repeating import safely_operands
from joulemap.frameworks.torch.rotation import tensors_in, with_tensors
from joulemap.frameworks.torch.stand_ins import generated_modules, put_kernel, put_libraries

Kernel = tuple[str, str]
"""The name of a kernel, with ``PREFIX``, and the file of the generated code that calls it."""

IN_PLACE = "it writes into what it is given"
MORE = "it writes into more than its results"
OTHERWISE = "it is not called as its generated code says"
KEPT = 8
"""Memory for so many results is kept: one name may stand for calls of several sizes, which take turns."""
_SIGNATURE_ENDS = re.compile(r"^def triton_\w+\(.*\):$|^extern \"C\"\s+void\s+kernel\([^)]*\)", re.M)
_OUT = re.compile(rf"(in_)?{RESULT.pattern}")


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
        self._own: dict[Hashable, Any] = {}
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
            places = _results(name, here)
        except Refused as why:
            self.refused[target] = str(why)
            return
        for module in here:
            around = partial(self._launched, target, (op, module.__file__), places)
            put_kernel(self._patches, module, name, around)

    def _launched(self, target: int, what: Kernel, places: Sequence[int], launch: Launch) -> Any:
        """A call of a kernel, whose results are in these places."""
        call = partial(launch.kernel, *launch.operands, **launch.named)
        if max(places) >= len(launch.operands):
            self.refused[target] = OTHERWISE
            return call()
        return self._counted(target, what, call, [launch.operands[place] for place in places])

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
            if target == self.target and target not in self.refused:
                self.again(target, what, partial(self._elsewhere, call, results), device)
            self.wait(target, device)
            return found
        finally:
            self.thread.inside = False

    def _elsewhere(self, call: partial[Any], results: Sequence[Any]) -> Any:
        """The same call, which writes its results into memory of our own; nothing else that it is given may
        share theirs."""
        given = [one for one in tensors_in(call) if all(one is not other for other in results)]
        twice = len(tensors_in(call)) != len(given) + len(results)
        if twice or any(_overlap(one, other) for one in given for other in results):
            raise Refused(IN_PLACE)
        own = [self._memory_like(place, one) for place, one in enumerate(results)]
        return with_tensors(call, {id(one): other for one, other in zip(results, own, strict=True)})

    def _memory_like(self, place: int, tensor: Any) -> Any:
        """Nothing is read of it before it is written."""
        like = place, tensor.shape, tensor.stride(), tensor.dtype, tensor.device
        if like not in self._own:
            if len(self._own) >= KEPT:
                self._own.clear()
            self._own[like] = tensor.new_empty(reach(tensor.shape, tensor.stride())).as_strided(*like[1:3])
        return self._own[like]

    def forget(self) -> None:
        super().forget()
        self._own.clear()

    def remove(self) -> None:
        """Leave the modules as they were."""
        self.target = -1
        self.forget()
        self._patches.restore()


def _results(name: str, modules: Sequence[Any]) -> list[int]:
    if BETWEEN in name:
        raise Refused("it is several kernels, and the profiler does not see where one ends")
    if not modules:
        raise Refused("its generated code is not loaded")
    try:
        source = source_of(Path(modules[0].__file__).read_text(), name)
    except OSError as error:
        raise Refused("its generated code is not in inductor's cache any more") from error
    if is_of_any_size(source):
        raise Refused("torch.compile has made it for tensors of any size")
    return written_by(source)


def written_by(source: str) -> list[int]:
    """The places of the operands that a kernel writes into; ``Refused`` where it reads one of these, or adds
    to it, before it has written there: then further executions would compute something else."""
    names = parameters(source)
    if not names:
        raise Refused("its source is not in its generated code")
    results = {name: place for place, name in enumerate(names) if _OUT.fullmatch(name)}
    if not results or written(source) - results.keys():
        raise Refused(MORE)
    if not all(_writes_first(source, name) for name in results):
        raise Refused(IN_PLACE)
    return list(results.values())


def _writes_first(source: str, name: str) -> bool:
    """Whether the first that a kernel does with an operand is to write into it, in Triton or C++."""
    body = _SIGNATURE_ENDS.split(source)[-1]
    first = next((line for line in body.splitlines() if re.search(rf"\b{name}\b", line)), "")
    found = re.search(rf"\bstore\({name}\b|^\s*{name}\[[^][]*\] = ", first)
    return not first or (found is not None and len(re.findall(rf"\b{name}\b", first)) == 1)


def _overlap(one: Any, other: Any) -> bool:
    (begin, end), (since, until) = bytes_of(one), bytes_of(other)
    return begin < until and since < end and one.device == other.device


def _captures(device: Any) -> bool:
    return device.type != "cpu" and (gpus.captures() or gpus.keeps_graphs())
