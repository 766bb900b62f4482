"""Triton's kernels on a CPU, without Triton: what inductor has generated, run by PyTorch's operations.

Only what the kernels in ``tests/data/inductor-cuda-*.txt`` use. Each is called as inductor's launcher is:
``run(*operands, stream=...)``, its grid made of the sizes that it is given.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

DATA = Path(__file__).parent / "data"
INFERENCE, BACKWARD = "inductor-cuda-inference.txt", "inductor-cuda-backward.txt"
"""What torch 2.11 and 2.13 generate for an H200, without most comments: a graph in two parts with a kernel of
C++ between them, what is written over, and an operand that was expanded; and what adds to rows of a gradient,
of a size that only the program knows."""
RUNS_INFERENCE = hasattr(torch._C._dynamo.guards, "assert_alignment")
RUNS_BACKWARD = hasattr(torch._C._dynamo.guards, "copy_if_misaligned")
"""Whether this torch has what that code takes in."""
BLOCK = 64
_AXES = ("x", "y", "z")


class Pointer(NamedTuple):
    """To elements of a tensor's memory, counted from its first."""

    memory: torch.Tensor
    index: torch.Tensor

    def __add__(self, further: Any) -> Pointer:  # type: ignore[override]
        return Pointer(self.memory, self.index + further)


def _pointer(tensor: torch.Tensor) -> Pointer:
    reach = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return Pointer(tensor.as_strided((reach,), (1,)), torch.tensor(0))


def _load(pointer: Pointer, mask: Any = None, other: Any = 0, eviction_policy: str = "") -> torch.Tensor:
    mask = torch.tensor(True) if mask is None else mask
    index, mask = torch.broadcast_tensors(pointer.index, mask)
    return torch.where(mask, pointer.memory[torch.where(mask, index, 0)], other)


def _store(pointer: Pointer, value: torch.Tensor, mask: Any = None, adds: bool = False, **_: Any) -> None:
    mask = torch.tensor(True) if mask is None else mask
    index, value, mask = torch.broadcast_tensors(pointer.index, value, mask)
    pointer.memory.index_put_((index[mask],), value[mask].to(pointer.memory.dtype), accumulate=adds)


def _device_assert(condition: torch.Tensor, why: str) -> None:
    assert bool(condition.all()), why


class Kernel:
    """One of Triton's, with the streams that it was launched on."""

    def __init__(self, name: str, source: str, device_str: str) -> None:
        assert device_str == "cuda"
        self.place = (0, 0, 0)
        self.streams: list[int] = []
        self.calls: list[tuple[list[Any], list[Any]]] = []
        helpers = SimpleNamespace(minimum=torch.minimum, maximum=torch.maximum)
        scope = {"tl": self._language(), "triton_helpers": helpers}
        exec(source.partition("@triton.jit\n")[2], scope)  # noqa: S102 - a kernel is source
        self._function: Callable[..., None] = scope[name]  # type: ignore[assignment]

    def run(self, *operands: Any, stream: int) -> None:
        """Execute it, block by block."""
        self.streams.append(stream)
        before = _values(operands)
        blocks = [name for name in inspect.signature(self._function).parameters if name.endswith("BLOCK")]
        given = inspect.signature(self._function).bind_partial(*operands).arguments
        assert len(given) == len(operands) == len(inspect.signature(self._function).parameters) - len(blocks)
        grid = [-(-given.get(f"{axis}numel", 1) // BLOCK) for axis in _AXES]
        pointers = [_pointer(one) if isinstance(one, torch.Tensor) else one for one in operands]
        for self.place in itertools.product(*map(range, grid)):
            self._function(*pointers, **dict.fromkeys(blocks, BLOCK))
        self.calls.append((before, _values(operands)))

    def _language(self) -> SimpleNamespace:
        return SimpleNamespace(
            program_id=lambda axis: self.place[axis],
            num_programs=lambda _: 1,
            arange=torch.arange,
            full=lambda shape, value, dtype: torch.full(shape, value, dtype=dtype),
            where=torch.where,
            broadcast_to=torch.broadcast_to,
            load=_load,
            store=_store,
            atomic_add=partial(_store, adds=True),
            device_assert=_device_assert,
            constexpr=int,
            int1=torch.bool,
            int32=torch.int32,
            int64=torch.int64,
            float32=torch.float32,
        )


def _values(operands: Sequence[Any]) -> list[Any]:
    return [one.clone() if isinstance(one, torch.Tensor) else one for one in operands]


class Compile:
    """In the place of inductor's ``AsyncCompile``."""

    triton = Kernel

    def cpp_pybinding(self, signature: Sequence[str], source: str) -> Callable[[torch.Tensor], None]:
        """The only one is a product, in place."""
        return _twice

    def wait(self, scope: dict[str, Any]) -> None:
        """All of it is there."""


def _twice(tensor: torch.Tensor) -> None:
    tensor.mul_(2)


def on_cpu(code: str) -> str:
    """Generated code with its memory on the CPU."""
    replaced = {
        "device='cuda:0'": "device='cpu'",
        " = empty_strided_cuda(": " = empty_strided_cpu(",
        "triton_helpers.set_driver_to_gpu()": "",
    }
    for before, after in replaced.items():
        code = code.replace(before, after)
    return code


def without_triton(code: str) -> str:
    """The same where there is no Triton: its kernels import it themselves, but are not imported here."""
    heuristics = "from torch._inductor.runtime.triton_heuristics import start_graph, end_graph\n"
    for line in ("import triton\n", "import triton.language as tl\n", heuristics):
        code = code.replace(line, "")
    return code


class Generated:
    """Code of inductor's for a GPU, in a file of its own, with its memory on the CPU."""

    def __init__(self, folder: Path, data: str, with_triton: bool) -> None:
        if not RUNS_INFERENCE:
            pytest.skip(f"torch {torch.__version__} has not all that the code takes in")
        code = on_cpu((DATA / data).read_text())
        self.file = folder / f"c{folder.name}{int(with_triton)}.py"
        self.file.write_text(code if with_triton else without_triton(code))

    def run(self) -> Any:
        """The program's own call; the module with its kernels."""
        from torch._inductor.codecache import PyCodeCache

        module = PyCodeCache.load_by_key_path(self.file.stem, str(self.file))
        torch.manual_seed(0)
        module.call(module.get_args())
        return module


def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Have a GPU, as far as generated code asks for one. In the list is the stream that is current."""
    stream = [7]
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _: stream[0], raising=False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(torch.cuda, "_DeviceGuard", lambda _: nullcontext())
    return stream
