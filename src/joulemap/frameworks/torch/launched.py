"""Kernels of ``torch.compile``, launched by themselves.

The code that inductor has generated is loaded from its cache, its kernels as they were compiled and tuned. It
is run once, on operands that it makes up itself; what it gives a kernel then is what the kernel is launched
with again, through inductor's own launcher.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from joulemap.frameworks.patches import Patches
from joulemap.frameworks.torch.aside import passing
from joulemap.frameworks.torch.call import Call, NotRebuilt
from joulemap.frameworks.torch.inputs import reach

PREFIX = "inductor::"
"""Of the operation's name; then the kernel, or several with a plus between, as they follow each other."""
BETWEEN = " + "
_SIGNATURE = re.compile(r"^@triton\.jit\ndef triton_\w+\((.*?)\):", re.M | re.S)
_OF_CPP = re.compile(r'^extern "C"\s+void\s+kernel\((.*?)\)', re.M | re.S)
_ANY_SIZE = re.compile(r"\bks\d")
_LOADED = re.compile(r"(\w+) = tl\.load\((\w+) \+ ")
_WRAPPED = re.compile(r"(\w+) = tl\.where\(\w+, \w+, (\w+)\)$", re.M)
_END = re.compile(r'"index out of bounds: 0 <= (.+?) < (.+?)"')
_ADDS = re.compile(r"tl\.atomic_add\((\w+) \+")
_WRITES = re.compile(r"([\w.]+)\.(?:store|atomic_\w+|\w*descriptor_store)\(\s*([\w.]*)")
_CPP_WRITES = re.compile(r"(?:^|,)\s*(?!const\b)[\w:<>]+\s*\*\s*(\w+)")
RESULT = re.compile(r"out_ptr\d+")
"""What inductor calls an operand that its own kernels write into, and nothing else."""
LINE = 128
"""Bytes of a cache's line on a GPU: operands begin where they did in theirs."""


class Launch(NamedTuple):
    """A kernel, and what it was given."""

    kernel: Callable[..., Any]
    operands: Sequence[Any]
    named: Mapping[str, Any]

    def copied(self) -> Launch:
        """The same with tensors of its own."""
        return Launch(self.kernel, copied_together(self.operands), self.named)

    def __call__(self) -> None:
        named = self.named
        if "stream" in named:
            named = {**named, "stream": _stream_of(self.operands)}
        self.kernel(*self.operands, **named)


def is_generated(call: Call) -> bool:
    """Whether it is such a kernel; operations that PyTorch has in that namespace are given something."""
    return call.op.startswith(PREFIX) and not call.types


def launcher(call: Call, fill: Callable[[Any], object] | None = None) -> Callable[[], Callable[[], Any]]:
    """Makes launches of a kernel, each with operands of its own. ``fill`` is given a call with what
    a single kernel will be given, and may write over what that holds."""
    names = call.op.removeprefix(PREFIX).split(BETWEEN)
    gone = [code for code in call.scalars if not Path(code).is_file()]
    if gone:
        raise NotRebuilt(f"its generated code is not in inductor's cache any more ({gone[0]})")
    codes = _different(call.scalars, names)
    if len(codes) != 1:
        raise NotRebuilt(f"torch.compile has made {len(codes)} kernels of that name, and not one")
    seen = _given(codes[0], names)
    if fill is not None and len(names) == 1:
        launch = seen[names[0]]
        fill(partial(launch.kernel, *launch.operands))
    return lambda: partial(_in_turn, [seen[name].copied() for name in names])


def _in_turn(launches: Sequence[Launch]) -> None:
    for launch in launches:
        launch()


def _different(codes: Sequence[str], names: Sequence[str]) -> list[str]:
    """Files with different kernels of these names: graphs that differ may well have the same ones."""
    found: dict[Any, str] = {}
    for number, code in enumerate(codes):
        text = Path(code).read_text()
        sources = tuple(source_of(text, name) for name in names)
        found.setdefault(sources if all(sources) else number, code)
    return list(found.values())


class Around:
    """Stands in for a kernel: what it is called with goes to ``around``, which calls it."""

    def __init__(self, kernel: Any, around: Callable[[Launch], Any]) -> None:
        self._kernel, self._around = kernel, around

    @passing
    def __call__(self, *operands: Any, **named: Any) -> Any:
        return self._around(Launch(self._kernel, operands, named))

    @passing
    def run(self, *operands: Any, **named: Any) -> Any:
        """As Triton's kernels are launched."""
        return self._around(Launch(self._kernel.run, operands, named))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)


class _Enough(Exception):
    """All kernels are seen: what the generated code would do afterwards tells nothing."""


def _given(code: str, names: Sequence[str]) -> dict[str, Launch]:
    """What kernels are given when the generated code runs once. A copy is kept, from before they write."""
    from torch._inductor.codecache import PyCodeCache

    sources = {name: source_of(Path(code).read_text(), name) for name in names}
    if any(map(is_of_any_size, sources.values())):
        raise NotRebuilt("torch.compile has made it for tensors of any size, and theirs is not recorded")
    module = PyCodeCache.load_by_key_path(Path(code).stem, code)
    seen: dict[str, Launch] = {}
    if all(hasattr(module, name) for name in names):
        with suppress(_Enough), _spied(module, names, seen):
            _run(module)
    missing = [name for name in names if name not in seen]
    if missing:
        raise NotRebuilt(f"the generated code does not call {missing[0]}")
    for name, launch in seen.items():
        _point_about(launch.operands, sources[name])
    return seen


@contextmanager
def _spied(module: ModuleType, names: Sequence[str], seen: dict[str, Launch]) -> Iterator[None]:
    patches = Patches()

    def note(name: str, launch: Launch) -> Any:
        if name not in seen:
            seen[name] = launch.copied()
        if len(seen) == len(set(names)):
            raise _Enough
        return launch.kernel(*launch.operands, **launch.named)

    for name in set(names):
        patches.put(module, name, Around(getattr(module, name), partial(note, name)))
    try:
        yield
    finally:
        patches.restore()


def _run(module: ModuleType) -> None:
    """Once, on random operands. In older versions a benchmark makes them, whose timing is left out."""
    from torch._inductor import utils

    if hasattr(module, "get_args"):
        operands = module.get_args()
        _let_through(operands)
        module.call(operands)
        return
    timing = utils.print_performance
    utils.print_performance = lambda function, **_: function()
    try:
        module.benchmark_compiled_module()
    finally:
        utils.print_performance = timing


def _let_through(operands: Sequence[Any]) -> None:
    """Inductor makes up masks that let nothing through, and a backward pass of zeros after a dropout."""
    import torch

    for one in operands:
        if isinstance(one, torch.Tensor) and one.dtype == torch.bool:
            one.as_strided((reach(one.shape, one.stride()),), (1,)).random_(0, 2)


def source_of(code: str, name: str) -> str:
    """What is compiled for a kernel; empty where the code does not say."""
    found = re.search(rf"^{name} = async_compile\.\w+\([^\n]*'''\n(.*?)^'''", code, re.M | re.S)
    return found[1] if found else ""


def is_of_any_size(source: str) -> bool:
    """Whether sizes are given to the kernel: generated code runs by itself with those that were first met."""
    sizes = [name for name in parameters(source) if "numel" in name]
    return _ANY_SIZE.search(source) is not None or any(f" {name} = " not in source for name in sizes)


def _point_about(operands: Sequence[Any], source: str) -> None:
    """Inductor makes up indices that are all zero: what all is added to one row takes far longer."""
    import torch

    given = dict(zip(parameters(source), operands, strict=False))
    for name, end in _ends(given, source).items():
        one = given[name]
        is_index = isinstance(one, torch.Tensor) and one.dtype in (torch.int32, torch.int64)
        if is_index and not one.any():
            one.as_strided((reach(one.shape, one.stride()),), (1,)).random_(0, end)


def _ends(given: Mapping[str, Any], source: str) -> dict[str, int]:
    """How far indices may go, by the operand that they are in. One too far would break a GPU's context: so
    either the kernel itself asserts that of all of them as they are, or it adds to something of that size."""
    loaded, wrapped = dict(_LOADED.findall(source)), dict(_WRAPPED.findall(source))
    ends: dict[str, int] = {}
    for index, end in _END.findall(source):
        name = loaded.get(wrapped.get(index, index), "")
        if name not in given or not end.isdigit():
            return {}
        ends[name] = min(int(end), ends.get(name, int(end)))
    added = [given[name] for name in _ADDS.findall(source) if name in given]
    sizes = [size for one in added for size in one.shape if size > 1]
    if sizes and not ends:
        return {name: min(sizes) for name in given if name.startswith("in_ptr")}
    return ends


def parameters(source: str) -> list[str]:
    """Of a kernel that inductor has written, in Triton or C++; none of others."""
    triton, cpp = _SIGNATURE.search(source), _OF_CPP.search(source)
    if triton:
        return [one.partition(":")[0].strip() for one in triton[1].split(",")]
    return [one.split()[-1].lstrip("*") for one in cpp[1].split(",") if one.strip()] if cpp else []


def written(source: str) -> set[str]:
    """The operands that a kernel writes into or adds to, by name: pointers in C++ that are not constant, and
    what Triton stores into. Templates (of attention) have more of these than their result, and a descriptor
    of memory is none of the operands."""
    cpp = _OF_CPP.search(source)
    if cpp:
        return set(_CPP_WRITES.findall(cpp[1]))
    return {name if owner == "tl" else f"{owner}.{name}" for owner, name in _WRITES.findall(source)}


def copied_together(operands: Sequence[Any]) -> list[Any]:
    """Operands of their own, which lie in memory as these do: what a kernel writes over is what it reads, and
    what overlaps still does. Code is made for where in a line of 16 bytes an operand begins."""
    import torch

    tensors = {id(one): one for one in operands if isinstance(one, torch.Tensor) and one.numel()}
    copies = {key: copy for some in _overlapping(tensors.values()) for key, copy in _copies(some)}
    return [copies.get(id(one), one) for one in operands]


def _overlapping(tensors: Iterable[Any]) -> list[list[Any]]:
    """Those whose memory overlaps, together."""
    groups: list[list[Any]] = []
    until = 0
    for one in sorted(tensors, key=bytes_of):
        begin, end = bytes_of(one)
        if not groups or begin >= until or one.device != groups[-1][0].device:
            groups.append([])
        groups[-1].append(one)
        until = end if len(groups[-1]) == 1 else max(until, end)
    return groups


def bytes_of(tensor: Any) -> tuple[int, int]:
    """Where in memory a tensor begins and ends."""
    begin = int(tensor.data_ptr())
    return begin, begin + reach(tensor.shape, tensor.stride()) * int(tensor.element_size())


def _copies(tensors: Sequence[Any]) -> Iterator[tuple[int, Any]]:
    """Of tensors that share their memory, by identity."""
    import torch

    first = tensors[0]
    begin, end = bytes_of(first)[0], max(bytes_of(one)[1] for one in tensors)
    lead = begin % LINE
    memory = torch.empty(lead + end - begin, dtype=torch.uint8, device=first.device)
    whole = torch.empty(0, dtype=torch.uint8, device=first.device)
    since = begin - first.untyped_storage().data_ptr()
    memory[lead:].copy_(whole.set_(first.untyped_storage(), since, (end - begin,), (1,)))
    for one in tensors:
        offset = (bytes_of(one)[0] - begin + lead) // one.element_size()
        own = torch.empty(0, dtype=one.dtype, device=one.device)
        yield id(one), own.set_(memory.untyped_storage(), offset, one.shape, one.stride())


def _stream_of(operands: Sequence[Any]) -> int:
    """The stream that is current now, which in a CUDA graph is another one than before."""
    import torch

    device = next((one.device.index for one in operands if isinstance(one, torch.Tensor)), None)
    return int(torch._C._cuda_getCurrentRawStream(torch.cuda.current_device() if device is None else device))
