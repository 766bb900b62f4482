"""What tensors hold in a step that is looked at, and replays that are given the same."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._python_dispatch import _get_current_dispatch_mode as current_mode  # noqa: E402

from joulemap.calibration.operation import Operation  # noqa: E402
from joulemap.frameworks.adapter import TracerBusy  # noqa: E402
from joulemap.frameworks.torch import values as tasted  # noqa: E402
from joulemap.frameworks.torch.raw import read_raw  # noqa: E402
from joulemap.frameworks.torch.rebuild import Call  # noqa: E402
from joulemap.frameworks.torch.replay import _held  # noqa: E402
from joulemap.frameworks.torch.replayer import Replayer  # noqa: E402
from joulemap.frameworks.torch.rotation import tensors_in  # noqa: E402
from joulemap.frameworks.torch.values import PIECE, PIECES, Taster, Values, read_values, values_of  # noqa: E402
from joulemap.replaying import Replays  # noqa: E402
from tests.torch_live import attached, session  # noqa: E402

CPU = torch.device("cpu")


def fails(error: Exception) -> None:
    raise error


@contextmanager
def looked_at(failed: Callable[[Exception], object] = fails) -> Iterator[Taster]:
    taster = Taster("cpu", failed)
    taster.begin()
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
    with looked_at() as taster:
        again = steps()
    assert all(torch.equal(one, other) for one, other in zip(plain, again, strict=True))
    values = seen(taster, tmp_path)
    bias, inputs, weights = held(values, "addmm")
    assert bias is None  # it is small
    count = PIECE // 4
    for part, piece in enumerate(inputs.view(PIECES, count)):
        assert torch.equal(piece, x.flatten()[part * x.numel() // PIECES :][:count])
    assert torch.equal(weights[:count], model.weight.detach().flatten()[:count])  # transposed: as it lies
    assert torch.equal(held(values, "threshold_backward")[1][:count], plain[0].flatten()[:count])


def test_calls_that_are_alike_are_looked_at_now_and_then(tmp_path: Path) -> None:
    with looked_at() as taster:
        for number in range(20):
            torch.full((512, 1024), float(number)) * 2
    [pieces] = held(seen(taster, tmp_path), "mul")
    assert pieces.view(-1, PIECES * PIECE // 4)[:, 0].tolist() == [0, 1, 3, 7, 15]


def test_what_is_cast_is_what_a_copy_writes(tmp_path: Path) -> None:
    x = torch.randn(600, 1024)
    with looked_at() as taster:
        x.bfloat16().float()
    values = seen(taster, tmp_path)
    [(wide, narrow)] = [
        one for (op, given), one in values.items() if op == "copy_" and given[0][1] == "float"
    ]
    low = torch.frombuffer(bytearray(wide), dtype=torch.int32) & 0xFFFF
    assert not low.any()
    assert len(narrow) == PIECES * PIECE == len(wide)


def test_of_a_list_the_largest_is_looked_at(tmp_path: Path) -> None:
    some = [torch.ones(3), torch.full((1024, 600), 2.0), torch.ones(1024, 512)]
    with looked_at() as taster:
        torch._foreach_add_(some, 1.0)
    assert [one is not None for one in held(seen(taster, tmp_path), "_foreach_add_")] == [False, True, False]


def test_what_is_no_memory_is_not_looked_at(tmp_path: Path) -> None:
    x = torch.randn(600, 1024)
    with looked_at() as taster:
        torch.vmap(lambda row: row * 2)(x)
        x.relu().to_sparse() * 3
    [relu] = held(seen(taster, tmp_path), "relu")
    assert len(relu) == PIECES * PIECE // 4


def test_no_more_is_kept_than_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasted, "MOST", 3 * PIECES * PIECE)
    with looked_at() as taster:
        for size in range(10):
            torch.ones(512 + size, 1024) * 2
    assert len(seen(taster, tmp_path)) == 3


def test_what_fails_is_said_once_and_the_program_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(_: object) -> None:
        raise ValueError("odd")

    said: list[Exception] = []
    monkeypatch.setattr(tasted, "operands", breaks)
    with looked_at(said.append) as taster:
        assert (torch.ones(1024, 1024) + 1 + 1).sum() == 3 * 1024 * 1024
    assert [str(one) for one in said] == ["odd"]
    assert seen(taster, tmp_path) == {}


class Theirs(TorchDispatchMode):  # type: ignore[misc]
    """A mode of the program's own."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func._schema.name)
        return func(*args, **(kwargs or {}))


def test_modes_of_the_program_stay(tmp_path: Path) -> None:
    outer, inner, x = Theirs(), Theirs(), torch.ones(1024, 1024)
    with outer:
        taster = Taster("cpu", fails)
        taster.begin()
        with inner:
            x * 2
            taster.end()
            assert current_mode() is inner
            x * 3
        assert current_mode() is outer
    assert current_mode() is None
    assert inner.seen.count("aten::mul") == 2 == outer.seen.count("aten::mul")
    assert len(held(seen(taster, tmp_path), "mul")) == 1


def test_another_operation_with_the_same_operands_tells_what_it_was_given() -> None:
    given = (((2, 3), "float"),)
    values: Values = {("outer", given): (b"1",)}
    assert values_of(values, "inner", given) == (b"1",)
    assert values_of(values, "inner", (((2, 4), "float"),)) == ()
    assert values_of({("none", ()): (b"1",)}, "inner", ()) == ()


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


def test_a_step_is_looked_at_by_the_adapter(tmp_path: Path) -> None:
    model, x = torch.nn.Linear(512, 1024), torch.randn(600, 512)
    with attached(tmp_path) as (adapter, _):
        with session(adapter, tmp_path):
            with pytest.raises(TracerBusy):
                adapter.taste(tmp_path / "values")
            model(x)
        assert adapter.taste(tmp_path / "values")
        model(x)
        adapter.stop()
        assert adapter.taste(tmp_path / "dropped")
        model(x)
        adapter.drop()
        assert current_mode() is None
    [found] = [one for one in read_raw(tmp_path).values if one.op == "addmm"]
    assert [bool(one) for one in found.pieces] == [False, True, True]
    assert not (tmp_path / "dropped").exists()


def test_compiled_programs_are_not_looked_at(tmp_path: Path) -> None:
    """They would be compiled anew for it."""
    double = torch.compile(lambda x: x * 2, backend="eager")
    with attached(tmp_path) as (adapter, _):
        double(torch.ones(3))
        assert not adapter.taste(tmp_path / "values")
