"""Which operands come from memory in a program: told by the profiler, with a CPU in the place of a GPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="needs PyTorch")

from joulemap.frameworks.torch.caches import PAGE, Cache, found_cold, read_cold  # noqa: E402
from joulemap.frameworks.torch.touches import FILE, of_kernel, write_touches  # noqa: E402

WIDE = 1024
SIZE = 4 * WIDE * WIDE
"""Of the weights of a layer, in bytes: 32 pages."""


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 9)), max_size=40), st.integers(1, 12))
def test_a_cache_holds_what_was_touched_last(touched: list[tuple[int, int]], most: int) -> None:
    """Page by page; of what is larger than the cache, its end."""
    cache, order = Cache(most * PAGE), list[int]()
    for first, many in touched:
        pages = range(first, first + many)
        held = sum(page in order[-most:] for page in pages)
        assert cache.holds(first * PAGE, many * PAGE) == (2 * held > many)
        cache.touch([(first * PAGE, many * PAGE)])
        for page in pages:
            order = [*(other for other in order if other != page), page]


def test_little_of_much_is_not_all_of_it() -> None:
    cache = Cache(10 * PAGE)
    cache.touch([(5 * PAGE, 8)])
    assert cache.holds(5 * PAGE, 100)
    assert not cache.holds(5 * PAGE, 4 * PAGE)
    assert not cache.holds(0, 1000 * PAGE)
    nothing = Cache(PAGE - 1)
    nothing.touch([(0, 100 * PAGE)])
    assert not nothing.holds(99 * PAGE, 1)


def test_what_is_touched_together_leaves_together() -> None:
    """A result as large as what it is made of: half of each is left, and not all of the last one."""
    cache = Cache(10 * PAGE)
    cache.touch([(0, 10 * PAGE), (100 * PAGE, 10 * PAGE), (300 * PAGE, 0)])
    held = [page for page in (*range(10), *range(100, 110)) if cache.holds(page * PAGE, PAGE)]
    assert held == [*range(5, 10), *range(105, 110)]
    assert cache.holds(300 * PAGE, 0)


def chain() -> Any:
    """Layers whose weights are large against what goes through them."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(WIDE, WIDE), torch.nn.Tanh(), torch.nn.Linear(WIDE, WIDE)]
    return torch.nn.Sequential(*layers)


def seen(folder: Path, size: int, step: Callable[[], Any], device: str = "cpu") -> dict[Any, str]:
    """What the profiler says of a step, for a cache of that size."""
    session = torch.autograd.profiler.profile(use_kineto=True, record_shapes=True, profile_memory=True)
    with session:
        step()
    write_touches(session.kineto_results.experimental_event_tree(), folder, device, size)
    return read_cold(folder)


def test_weights_come_from_memory_and_what_was_just_computed_from_the_cache(tmp_path: Path) -> None:
    model, x = chain(), torch.ones(2, WIDE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    step()
    cold = seen(tmp_path, round(1.5 * SIZE), step)
    weight, through = ((WIDE, WIDE), "float"), ((2, WIDE), "float")
    key = (((WIDE,), "float"), through, weight)
    assert cold["addmm", key][1:] == "01"
    assert cold["tanh", (through,)] == "0"
    assert cold["linear", (through, weight, ((WIDE,), "float"))][:2] == "01"
    assert set("".join(seen(tmp_path, 100 * SIZE, step).values())) == {"0"}


def test_weights_that_no_cache_holds_leave_what_was_just_computed_there(tmp_path: Path) -> None:
    """An operation that calls another has touched nothing after that: what this has made was touched last."""
    model, x = torch.nn.Sequential(*(torch.nn.Linear(WIDE, WIDE) for _ in range(8))), torch.ones(32, WIDE)

    def step() -> None:
        with torch.inference_mode():
            model(x)

    step()
    cold = seen(tmp_path, round(0.8 * SIZE), step)
    through, weight, bias = ((32, WIDE), "float"), ((WIDE, WIDE), "float"), ((WIDE,), "float")
    assert cold["addmm", (bias, through, weight)][1:] == "01"
    assert cold["linear", (through, weight, bias)][:2] == "01"


@pytest.mark.parametrize("way", [torch.no_grad, torch.inference_mode])
def test_what_is_computed_without_gradients_is_seen_as_well(tmp_path: Path, way: Callable[[], Any]) -> None:
    model, x = chain(), torch.ones(2, WIDE)

    def step() -> None:
        with way(), torch.autocast("cpu", torch.bfloat16):
            model(x)

    step()
    cold = seen(tmp_path, 2 * SIZE, step)
    half = "c10::BFloat16"
    weight, through = ((WIDE, WIDE), half), ((2, WIDE), half)
    assert cold["addmm", (((WIDE,), half), through, weight)] == "000"  # casts have just been made
    assert cold["copy_", (weight, ((WIDE, WIDE), "float"))][1] == "1"


def test_views_and_what_is_elsewhere_touch_nothing(tmp_path: Path) -> None:
    x, two = torch.ones(WIDE, WIDE), torch.tensor(2.0, dtype=torch.float64)

    def step() -> None:
        x.view(-1).t()
        torch.empty_like(x)
        torch.stack([x, x])
        x.mul(0.5) + two

    cold = seen(tmp_path, 10 * SIZE, step)
    here = ((WIDE, WIDE), "float")
    assert not {"view", "t", "empty_like"} & {op for op, _ in cold}
    assert ("mul", (here,)) in cold
    assert ("add", (here,)) in cold
    assert ("cat", (((WIDE, WIDE), ""),) * 2) in cold or ("stack", (((WIDE, WIDE), ""),) * 2) in cold
    assert not seen(tmp_path, 10 * SIZE, step, "cuda")


def test_what_is_given_twice_is_the_same(tmp_path: Path) -> None:
    """A square, gradients that an optimizer multiplies by themselves, and halves of one tensor, which differ;
    what is written to would not be the same afterwards."""
    x, y, z = (torch.ones(WIDE, WIDE) for _ in range(3))

    def step() -> None:
        torch.mul(x, x)
        torch._foreach_addcmul_([y, x], [z, y], [z, y], 0.5)
        torch.addcmul(x, y, z)
        torch.add(*x.chunk(2))
        z.mul_(z)

    cold = seen(tmp_path, 0, step)
    here, half = ((WIDE, WIDE), "float"), ((WIDE // 2, WIDE), "float")
    assert cold["mul", (here, here)] == "1="
    assert cold["_foreach_addcmul_", (((WIDE, WIDE), ""),) * 6] == "1111=="
    assert cold["addcmul", (here,) * 3] == "111"
    assert cold["add", (half, half)] == "11"
    assert cold["mul_", (here, here)] == "11"


def launched(name: str, *operands: Any) -> None:
    """What inductor's launcher says of a kernel of Triton's."""
    with torch._C._profiler._RecordFunctionFast(name, operands, {"grid": "(1,)"}):
        pass


class Doubled(torch.autograd.Function):
    """Kernels of one name in both passes, which differ."""

    @staticmethod
    def forward(_: Any, x: Any, weight: Any) -> Any:
        out = torch.empty_like(x)
        launched("triton_poi_fused_add_0", x, weight, out, x.numel())
        return out

    @staticmethod
    def backward(_: Any, gradient: Any) -> Any:
        out = torch.empty_like(gradient)
        launched("triton_poi_fused_add_0", gradient, out)
        launched("triton_red_fused_sum_1", out)
        return out, None


def test_kernels_of_torch_compile_say_what_they_are_given_as_operations_do(tmp_path: Path) -> None:
    """Weights come from memory, what was computed before from the cache, and fresh memory for a result may be
    either; the passes are told apart."""
    weights = [torch.ones(WIDE, WIDE) for _ in range(4)]
    x = torch.ones(2, WIDE, requires_grad=True)

    def step() -> None:
        through = x.relu()
        for weight in weights:
            through = Doubled.apply(through, weight)
        through.sum().backward()

    step()
    cold = seen(tmp_path, round(1.5 * SIZE), step)
    kernels = {op: letters for (op, operands), letters in cold.items() if not operands}
    forward, backward = (of_kernel("triton_poi_fused_add_0", one) for one in (False, True))
    assert kernels.keys() == {forward, backward, of_kernel("triton_red_fused_sum_1", True)}
    assert kernels[forward][:2] == "01"
    assert kernels[backward][0] == "0"
    assert len(kernels[forward]) == 3
    here = "inductor::triton_poi_fused_add_0"
    assert found_cold(cold, here, "forward", "[]", "[]") == kernels[forward]
    assert found_cold(cold, here, "backward", "[]", "[]") == kernels[backward]
    assert found_cold({}, here, "backward", "[]", "[]") == ""


def test_of_different_kernels_of_one_name_nothing_is_said(tmp_path: Path) -> None:
    """Two graphs of one pass: neither can be replayed, since nobody knows which of them ran."""
    here = [0, 8, [2], "float", False]
    name = of_kernel("triton_poi_fused_add_0", False)
    operations = [[name, 1, 2, [[PAGE, PAGE, [4], "float", False]]], [name, 3, 4, [here, here]]]
    said = {"size": 0, "operations": operations, "allocations": []}
    (tmp_path / FILE).write_text(json.dumps(said))
    assert read_cold(tmp_path) == {}


def test_most_calls_decide_over_all_looks(tmp_path: Path) -> None:
    """One look finds it in the cache, two do not; one was not written to its end."""
    for number, size in enumerate((10 * PAGE, 0, 0, 0)):
        folder = tmp_path / str(number)
        folder.mkdir()
        operation = ["aten::relu", 1, 2, [[PAGE, PAGE, [4], "float", False], [0, 8, [2], "float", False]]]
        said = json.dumps({"size": size, "operations": [operation], "allocations": []})
        (folder / FILE).write_text(said[: -5 if number == 3 else None])
    assert read_cold(tmp_path) == {("relu", (((4,), "float"), ((2,), "float"))): "10"}
