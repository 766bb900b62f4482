"""What tensors hold in a step that is looked at, and replays that are given the same."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

from torch._C import _dispatch_has_kernel_for_dispatch_key as has_kernel  # noqa: E402

from joulemap.calibration.operation import Operation  # noqa: E402
from joulemap.frameworks.adapter import TracerBusy  # noqa: E402
from joulemap.frameworks.patches import Patches  # noqa: E402
from joulemap.frameworks.torch import kernels, profiler  # noqa: E402
from joulemap.frameworks.torch import values as tasted  # noqa: E402
from joulemap.frameworks.torch.call import Call  # noqa: E402
from joulemap.frameworks.torch.kernels import KEY  # noqa: E402
from joulemap.frameworks.torch.raw import read_raw  # noqa: E402
from joulemap.frameworks.torch.replay import _held  # noqa: E402
from joulemap.frameworks.torch.replayer import Replayer  # noqa: E402
from joulemap.frameworks.torch.rotation import tensors_in  # noqa: E402
from joulemap.frameworks.torch.stand_ins import kernels_of, put_kernel, put_libraries  # noqa: E402
from joulemap.frameworks.torch.values import PIECE, RUN, RUNS, Taster, Values, held_by, read_values  # noqa: E402
from joulemap.replaying import Replays  # noqa: E402
from tests.torch_live import attached, session  # noqa: E402
from tests.torch_oddities import ODDITIES, is_same  # noqa: E402

CPU = torch.device("cpu")


def fails(error: Exception) -> None:
    raise error


@contextmanager
def looked_at(*ops: str, failed: Callable[[Exception], object] = fails) -> Iterator[Taster]:
    taster = Taster("cpu", torch.autograd._profiler_enabled, failed)
    taster.begin(f"aten::{op}" for op in ops)
    try:
        yield taster
    finally:
        taster.end()


def seen(taster: Taster, folder: Path) -> Values:
    taster.write(folder)
    return read_values(folder)


def held(values: Values, op: str) -> list[Any]:
    """Of the only call of an operation: pieces of its tensors, as float32."""
    [pieces] = [one for (name, _), one in values.items() if name == op]
    return [torch.frombuffer(bytearray(one), dtype=torch.float32) if one else None for one in pieces]


def test_pieces_of_large_tensors_are_kept_and_results_are_the_same(tmp_path: Path) -> None:
    model, x = torch.nn.Linear(512, 1024), torch.randn(600, 512)

    def steps() -> list[Any]:
        model.zero_grad()
        y = model(x).relu()
        y.square().sum().backward()
        return [y.detach(), model.weight.grad.clone()]

    plain = steps()
    with looked_at("addmm", "threshold_backward", "relu", "t") as taster:
        again = steps()
    assert all(torch.equal(one, other) for one, other in zip(plain, again, strict=True))
    values = seen(taster, tmp_path)
    bias, inputs, weights = held(values, "addmm")
    assert bias is None  # it is small
    lines = PIECE // 4 // 512
    assert torch.equal(inputs.view(lines, 512), x[(600 - lines) // 2 :][:lines])
    held_weights = model.weight.detach()[(1024 - lines) // 2 :][:lines]
    assert torch.equal(weights.view(lines, 512), held_weights)  # transposed: as it lies
    lines = PIECE // 4 // 1024
    assert torch.equal(
        held(values, "threshold_backward")[1].view(lines, 1024), plain[0][(600 - lines) // 2 :][:lines]
    )


@pytest.mark.parametrize("calls", [1, 3, 4, 8, 9, 16, 23, 32, 49, 98, 400])
def test_calls_that_follow_each_other_are_looked_at_in_a_few_places(calls: int) -> None:
    """Layers have a pattern of up to four calls, of which every part is to be seen."""
    alike = tasted.Alike()
    for number in range(calls):
        alike.look([torch.full((512, 1024), float(number)), None], PIECE)
    chosen = [int(piece[0]) for piece, _ in alike.kept.values()]
    assert chosen == sorted(alike.kept)
    assert min(calls, RUN) <= len(chosen) <= RUN * RUNS
    assert len({number // RUN for number in chosen}) <= RUNS
    assert alike.size == len(chosen) * PIECE
    for pattern in range(1, min(calls, RUN) + 1):
        assert {number % pattern for number in chosen} == set(range(pattern))


@pytest.mark.parametrize("runs", range(2, 60))
def test_they_lie_apart_and_not_at_the_beginning_alone(runs: int) -> None:
    alike = tasted.Alike()
    for _ in range(runs * RUN):
        alike.look([], PIECE)
    first, second = sorted({number // RUN for number in alike.kept})
    assert second >= runs / 4
    assert runs < 3 or second - first >= runs / 7


def test_pieces_come_from_all_over() -> None:
    alike, places = tasted.Alike(), torch.arange(512 * 1024).view(512, 1024).float()
    for _ in range(RUN * RUNS):
        alike.look([places, None], PIECE)
    starts = sorted(int(piece[0]) for piece, _ in alike.kept.values())
    assert all(start % 1024 == 0 for start in starts)  # lines stay lines
    assert len(set(starts)) == RUN * RUNS
    assert starts[0] < 512 * 1024 / 4
    assert starts[-1] > 512 * 1024 / 2
    line = tasted._piece(places.view(1, -1), 0.999, PIECE)
    assert len(line) == PIECE // 4  # a part of one that is longer


def test_what_is_cast_is_seen_where_it_is_read(tmp_path: Path) -> None:
    x = torch.randn(600, 1024)
    with looked_at("copy_", "mul") as taster:
        x.bfloat16().float() * 2
    values = seen(taster, tmp_path)
    [((_op, given), (wide,))] = values.items()  # what writes is not looked at
    low = torch.frombuffer(bytearray(wide), dtype=torch.int32) & 0xFFFF
    assert not low.any()
    narrow = (given[0][0], "c10::BFloat16")
    values["other", given] = (b"",)
    assert held_by(values, "add_", (given[0], narrow)) == (wide, b"")


def test_what_is_written_to_is_seen_as_it_was(tmp_path: Path) -> None:
    here, other = torch.ones(1024, 512), torch.full((1024, 512), 3.0)
    with looked_at("copy_", "_foreach_mul_", "_foreach_lerp_") as taster:
        torch._foreach_mul_([here], 2.0)
        torch._foreach_lerp_([here], [other], 0.5)
        here.copy_(here + 1)  # which returns what it has written to
    assert here.eq(3.5).all()
    values = seen(taster, tmp_path)
    assert {op for op, _ in values} == {"_foreach_mul_", "_foreach_lerp_"}
    assert [float(one[0]) for one in held(values, "_foreach_mul_")] == [1.0]
    assert [float(one[0]) for one in held(values, "_foreach_lerp_")] == [2.0, 3.0]


def test_what_else_writes_and_returns_nothing_is_left_alone() -> None:
    """Such as what tells the allocator of streams."""
    with looked_at("record_stream", "_foreach_mul_"):
        assert has_kernel("aten::_foreach_mul_.Scalar", KEY)
        assert not has_kernel("aten::record_stream", KEY)


def test_optimizers_do_the_same_while_they_are_looked_at(tmp_path: Path) -> None:
    def steps(*looked: str) -> tuple[list[Any], Values]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.Linear(1024, 8))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, foreach=True, amsgrad=True)
        with looked_at(*looked) as taster:
            for _ in range(3):
                optimizer.zero_grad()
                model(torch.randn(64, 512)).square().sum().backward()
                optimizer.step()
        return [one.detach() for one in model.parameters()], seen(taster, tmp_path)

    (plain, nothing), (again, values) = (
        steps(),
        steps("_foreach_lerp_", "_foreach_addcmul_", "_foreach_addcdiv_", "_foreach_maximum_"),
    )
    assert not nothing
    assert all(torch.equal(one, other) for one, other in zip(plain, again, strict=True))
    assert {"_foreach_lerp_", "_foreach_addcmul_", "_foreach_addcdiv_"} <= {op for op, _ in values}


def test_of_a_list_the_largest_is_looked_at(tmp_path: Path) -> None:
    some = [torch.ones(3), torch.full((1024, 600), 2.0), torch.ones(1024, 512)]
    with looked_at("_foreach_add") as taster:
        torch._foreach_add(some, 1.0)
    assert [one is not None for one in held(seen(taster, tmp_path), "_foreach_add")] == [False, True, False]


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")
def test_what_is_no_memory_is_not_looked_at(tmp_path: Path) -> None:
    x = torch.randn(600, 1024)
    with looked_at("mul", "add", "relu") as taster:
        x.relu().to_sparse() * 3
        torch.func.jvp(lambda v: v + x, (x,), (x,))  # of which one tangent is zero, and nowhere
        with torch.profiler.profile():
            x * 2
        x.unsqueeze(0).requires_grad_().expand(3, 600, 1024) * 2
    values = seen(taster, tmp_path)
    assert {op for op, _ in values} == {"relu", "add", "mul"}
    assert len(held(values, "relu")[0]) == PIECE // 4


def test_where_it_is_much_all_have_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasted, "MOST", 3 * PIECE)
    with looked_at("mul") as taster:
        for size in range(10):
            torch.full((512 + size, 1024), float(size)) * 2
    values = seen(taster, tmp_path)
    sizes = [len(pieces) for [pieces] in values.values()]
    assert len(values) == 10
    assert sizes == [PIECE // 4] * 10
    monkeypatch.setattr(tasted, "LEAST_PIECE", PIECE)
    with looked_at("mul") as taster:
        for size in range(10):
            torch.ones(512 + size, 1024) * 2
    assert len(seen(taster, tmp_path / "few")) == 4  # and then no more


def test_threads_look_in_turn(tmp_path: Path) -> None:
    x = torch.randn(512, 1024)

    def computes() -> None:
        for _ in range(200):
            x * 2

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with looked_at("mul") as taster:
            threads = [threading.Thread(target=computes) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        sys.setswitchinterval(interval)
    [alike] = taster._kept.values()
    assert alike._calls == 400
    assert taster._size == alike.size == sum(len(one[0]) * 4 for one in alike.kept.values())


def test_what_fails_is_said_once_and_the_program_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(_: object) -> None:
        raise ValueError("odd")

    said: list[Exception] = []
    monkeypatch.setattr(tasted, "operands", breaks)
    with looked_at("add", failed=said.append) as taster:
        assert (torch.ones(1024, 1024) + 1 + 1).sum() == 3 * 1024 * 1024
    assert [str(one) for one in said] == ["odd"]
    assert seen(taster, tmp_path) == {}


def test_nobody_else_notices(tmp_path: Path) -> None:
    """Autograd takes other ways for some operations where there is a mode of the dispatcher."""
    x = torch.randn(512, 1024)
    x[0, 0] = 0
    mask, value = x > 1, torch.tensor(2.0, requires_grad=True)

    def gradients() -> list[Any]:
        one = x.clone().requires_grad_()
        (one.prod(1).sum() + one.masked_fill(mask, value).square().sum()).backward()
        return [one.grad, value.grad.clone()]

    plain = gradients()
    value.grad = None
    with looked_at("mul", "prod", "masked_fill", "where", "sum", "cumprod", "pow", "div") as taster:
        assert has_kernel("aten::mul.Tensor", KEY)
        again = gradients()
    assert all(torch.equal(one, other) for one, other in zip(plain, again, strict=True))
    assert not has_kernel("aten::mul.Tensor", KEY)
    assert seen(taster, tmp_path)


def test_kernels_are_taken_out_when_no_other_thread_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is on its way to them would fail."""
    monkeypatch.setattr(kernels, "PATIENCE_S", 0.05)
    said, computes = list[str](), [True]

    def spins() -> None:
        while computes:
            pass

    thread = threading.Thread(target=spins)
    taster = Taster("cpu", bool, lambda error: said.append(str(error)))
    taster.begin(["aten::mul"])
    thread.start()
    taster.end()
    assert has_kernel("aten::mul.Tensor", KEY)
    assert len(said) == 1
    torch.ones(1024, 1024) * 2
    assert taster._kept == {}
    computes.clear()
    thread.join()
    taster.end()
    assert not has_kernel("aten::mul.Tensor", KEY)
    assert len(said) == 1


@pytest.fixture(scope="module")
def every_operation() -> list[str]:
    names = torch._C._dispatch_get_all_op_names()
    return sorted({name.split("::")[1].split(".")[0] for name in names if name.startswith("aten::")})


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("odd", ODDITIES, ids=lambda odd: odd.__name__)
def test_programs_that_meet_with_the_dispatcher(odd: Callable[[], Any], every_operation: list[str]) -> None:
    plain = odd()
    with looked_at(*every_operation):
        again = odd()
    assert is_same(plain, again)


def key(op: str, shapes: str, strides: str, types: str, scalars: str = "[]") -> str:
    return Operation(op, shapes, strides, types, scalars).key


def test_replays_hold_what_the_program_held() -> None:
    piece = torch.arange(5, dtype=torch.float32)
    of_one = key("mm", "[[4, 6], [6, 3]]", "[[6, 1], [1, 6]]", '["float", "float"]', "[null, null]")
    call = Replayer(Call.of(of_one), CPU, [b"", piece.numpy().tobytes()]).copies[0]
    free, filled = tensors_in(call)
    assert filled.t().flatten().tolist() == (piece.tolist() * 4)[:18]
    assert not set(free.flatten().tolist()) <= set(piece.tolist())
    of_many = key(
        "_foreach_mul",
        "[[[3], [2, 4]], []]",
        "[[[1], [4, 1]], []]",
        '[["float", "float"], "Scalar"]',
        "[null, 2.0]",
    )
    call = Replayer(Call.of(of_many), CPU, [b"", piece.numpy().tobytes()]).copies[0]
    assert [one.flatten().tolist() for one in tensors_in(call)] == [[0, 1, 2], [0, 1, 2, 3, 4, 0, 1, 2]]


def test_values_reach_the_program_that_replays(tmp_path: Path) -> None:
    plan = Replays(
        "cpu", {"a": 0.5}, 0.1, 60.0, 2, 1.0, 2.0, 0.9, 0.01, values={"a": [b"12", b""], "b": [b"3"]}
    )
    plan.write(tmp_path / "plan.json")
    told = json.loads((tmp_path / "plan.json").read_text())
    assert _held(told["values"], Path(told["held"]).read_bytes()) == {"a": [b"12", b""], "b": [b"3"]}


@pytest.fixture
def a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiler, "_cached", lambda: ("cpu", 1 << 20))


@pytest.mark.usefixtures("a_cache")
def test_a_step_is_looked_at_by_the_adapter(tmp_path: Path) -> None:
    model, x = torch.nn.Linear(512, 1024), torch.randn(600, 512)
    with attached(tmp_path) as (adapter, _):
        with session(adapter, tmp_path):
            with pytest.raises(TracerBusy):
                adapter.look(tmp_path / "values")
            model(x)
        assert not adapter.taste(tmp_path / "values")  # nothing is known yet
        assert adapter.look(tmp_path / "values")
        model(x)
        adapter.stop()
        assert adapter.taste(tmp_path / "values")
        model(x)
        adapter.stop()
        assert adapter.taste(tmp_path / "dropped")
        model(x)
        adapter.drop()
        assert not has_kernel("aten::addmm", KEY)
        assert adapter.taste(tmp_path / "left")
    assert not has_kernel("aten::addmm", KEY)
    [found] = [one for one in read_raw(tmp_path).values if one.op == "addmm"]
    assert [bool(one) for one in found.pieces] == [False, True, True]
    assert not (tmp_path / "dropped").exists()


@pytest.mark.usefixtures("a_cache")
def test_it_is_over_when_something_is_compiled(tmp_path: Path) -> None:
    double, x = torch.compile(lambda x: x * 2, backend="eager"), torch.ones(1024, 1024)
    with attached(tmp_path) as (adapter, _):
        assert adapter.look(tmp_path / "values")
        x * 2
        adapter.stop()
        assert adapter.taste(tmp_path / "values")
        assert has_kernel("aten::mul.Tensor", KEY)
        double(x)
        assert not has_kernel("aten::mul.Tensor", KEY)
        adapter.stop()
        assert adapter.taste(tmp_path / "again")  # what was compiled goes on as it is
        assert torch.equal(double(x), x + x)
        assert has_kernel("aten::mul.Tensor", KEY)
        adapter.stop()
    assert not has_kernel("aten::mul.Tensor", KEY)


def test_an_error_of_the_programs_has_no_frames_of_ours() -> None:
    with looked_at("mm"), pytest.raises(RuntimeError) as caught:
        torch.mm(torch.rand(2, 3), torch.rand(2, 3))
    assert [one.path.name for one in caught.traceback] == [Path(__file__).name]


def test_an_error_in_generated_code_has_no_frames_of_ours() -> None:
    def fails(*_: Any) -> None:
        raise ValueError("theirs")

    code = ModuleType("code")
    libraries = SimpleNamespace(mm=fails)
    vars(code).update(extern_kernels=libraries, cpp_fused_0=fails, triton_0=SimpleNamespace(run=fails))
    patches = Patches()
    put_libraries(patches, code, lambda _, function, *args, **named: function(*args, **named))
    for name in kernels_of(code):
        put_kernel(patches, code, name, lambda launch: launch.kernel(*launch.operands))
    for call in (code.extern_kernels.mm, code.cpp_fused_0, code.triton_0.run):
        with pytest.raises(ValueError, match="theirs") as caught:
            call(1)
        here = {Path(__file__).name}
        assert {one.path.name for one in caught.traceback} == here
    patches.restore()
    assert code.extern_kernels is libraries
