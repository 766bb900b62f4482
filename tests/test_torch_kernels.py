"""Kernels of ours in PyTorch's dispatcher, where a compiler looks on."""

from __future__ import annotations

import functools
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

from joulemap.frameworks.torch.aside import compiler_looks  # noqa: E402
from joulemap.frameworks.torch.kernels import Kernels  # noqa: E402
from joulemap.frameworks.torch.repeating import below  # noqa: E402


@pytest.fixture
def kernels() -> Any:
    made = Kernels()
    yield made
    assert made.remove()
    torch._dynamo.reset()


def test_the_compiler_of_what_runs_between_graphs_does_not_look_at_them(kernels: Kernels) -> None:
    looks = compiler_looks()

    looked: list[tuple[str, bool]] = []

    ready = below(torch.ops.aten.mm.default)

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        looked.append(("kernel", looks()))
        return ready(keys, args, kwargs)()

    @functools.partial(torch.compiler.disable, recursive=False)
    def between_graphs(x: Any) -> Any:
        looked.append(("before", looks()))
        x = torch.mm(x, x)
        looked.append(("after", looks()))
        return x

    @torch.compile(backend="eager")  # type: ignore[untyped-decorator]
    def compiled(x: Any) -> Any:
        return between_graphs(x.sin()).cos()

    kernels.put(torch.ops.aten.mm.default, kernel)
    compiled(torch.rand(4, 4))
    assert looked == [("before", True), ("kernel", False), ("after", True)]
