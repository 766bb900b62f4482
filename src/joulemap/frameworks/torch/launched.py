"""Kernels of ``torch.compile``, launched by themselves.

The code that inductor has generated is loaded from its cache, its kernels as they were compiled and tuned. It
is run once, on operands that it makes up itself; what it gives a kernel then is what the kernel is launched
with again, through inductor's own launcher.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from joulemap.frameworks.torch.rebuild import Call, NotRebuilt

PREFIX = "inductor::"
"""Of the operation's name; then the kernel, or several with a plus between, as they follow each other."""
BETWEEN = " + "


class Launch(NamedTuple):
    """A kernel, and what it was given."""

    kernel: Callable[..., Any]
    operands: Sequence[Any]
    named: Mapping[str, Any]

    def copied(self) -> Launch:
        """The same with tensors of its own."""
        return Launch(self.kernel, [_copied(one) for one in self.operands], self.named)

    def __call__(self) -> None:
        named = self.named
        if "stream" in named:
            named = {**named, "stream": _stream_of(self.operands)}
        self.kernel(*self.operands, **named)


def is_generated(call: Call) -> bool:
    """Whether it is such a kernel; operations that PyTorch has in that namespace are given something."""
    return call.op.startswith(PREFIX) and not call.types


def launcher(call: Call) -> Callable[[], Callable[[], Any]]:
    """Makes launches of a kernel, each with operands of its own."""
    names = call.op.removeprefix(PREFIX).split(BETWEEN)
    if len(call.scalars) != 1:
        raise NotRebuilt(f"torch.compile has made {len(call.scalars)} kernels of that name, and not one")
    [code] = call.scalars
    if not Path(code).is_file():
        raise NotRebuilt(f"its generated code is not in inductor's cache any more ({code})")
    seen = _given(code, names)
    missing = [name for name in names if name not in seen]
    if missing:
        raise NotRebuilt(f"the generated code does not call {missing[0]}")
    return lambda: partial(_in_turn, [seen[name].copied() for name in names])


def _in_turn(launches: Sequence[Launch]) -> None:
    for launch in launches:
        launch()


class _Spy:
    """Stands in for a kernel, and notes what it is given first."""

    def __init__(self, kernel: Any, note: Callable[[Launch], Any]) -> None:
        self._kernel, self._note = kernel, note

    def __call__(self, *operands: Any, **named: Any) -> Any:
        self._note(Launch(self._kernel, operands, named).copied())
        return self._kernel(*operands, **named)

    def run(self, *operands: Any, **named: Any) -> Any:
        """As Triton's kernels are launched."""
        self._note(Launch(self._kernel.run, operands, named).copied())
        return self._kernel.run(*operands, **named)


def _given(code: str, names: Sequence[str]) -> dict[str, Launch]:
    """What kernels are given when the generated code runs once. A copy is kept, from before they write."""
    from torch._inductor.codecache import PyCodeCache

    module = PyCodeCache.load_by_key_path(Path(code).stem, code)
    seen: dict[str, Launch] = {}
    with _spied(module, names, seen):
        _run(module)
    return seen


@contextmanager
def _spied(module: ModuleType, names: Sequence[str], seen: dict[str, Launch]) -> Iterator[None]:
    kernels = {name: getattr(module, name) for name in names if hasattr(module, name)}
    for name, kernel in kernels.items():
        setattr(module, name, _Spy(kernel, partial(seen.setdefault, name)))
    try:
        yield
    finally:
        for name, kernel in kernels.items():
            setattr(module, name, kernel)


def _run(module: ModuleType) -> None:
    """Once, on random operands. Before torch 2.13 a benchmark makes them, whose timing is left out."""
    from torch._inductor import utils

    if hasattr(module, "get_args"):
        module.call(module.get_args())
        return
    timing = utils.print_performance
    utils.print_performance = lambda function, **_: function()
    try:
        module.benchmark_compiled_module()
    finally:
        utils.print_performance = timing


def _copied(operand: Any) -> Any:
    import torch

    if not isinstance(operand, torch.Tensor):
        return operand
    copy = torch.empty_strided(operand.shape, operand.stride(), dtype=operand.dtype, device=operand.device)
    return copy.copy_(operand)


def _stream_of(operands: Sequence[Any]) -> int:
    """The stream that is current now, which in a CUDA graph is another one than before."""
    import torch

    device = next(one.device.index for one in operands if isinstance(one, torch.Tensor))
    return int(torch._C._cuda_getCurrentRawStream(device))
