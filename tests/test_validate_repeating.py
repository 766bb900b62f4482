"""Operations executed again in place: the program's results stay what they were, to the bit."""

from __future__ import annotations

import signal
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

from joulemap.frameworks.torch.again import Refused, Thread  # noqa: E402
from joulemap.frameworks.torch.repeating import (  # noqa: E402
    Repeater,
    draws,
    operands,
    overloads,
)
from joulemap.frameworks.torch.repeating_modules import ModuleRepeater  # noqa: E402
from tests.repeated import trained  # noqa: E402


def everything(target: int = 0) -> Any:
    """Whatever the operands: all calls are of one target."""

    class Whatever(dict[Any, int]):
        def get(self, key: Any, default: Any = None) -> Any:
            return target

    return Whatever({(): target})


def repeating(choose: dict[str, Any], device: str = "cpu") -> Repeater:
    """One execution of a target takes a second more than its number says."""
    targets = {target for of_operation in choose.values() for target in of_operation.values()}
    return Repeater(device, choose, {target: target + 1.0 for target in targets}, {}, Thread())


OPERATIONS = [
    *("mm", "addmm", "gelu", "gelu_backward", "native_layer_norm", "native_layer_norm_backward"),
    *("add", "mul", "div", "sum", "pow", "mean"),
]


@pytest.fixture
def repeater() -> Any:
    made = repeating({op: everything(number) for number, op in enumerate(OPERATIONS)})
    made.install()
    yield made
    made.remove()


def test_results_are_the_same_to_the_bit_and_executions_are_counted(repeater: Repeater) -> None:
    repeater.remove()
    plain = trained()
    repeater.install()
    assert repeater.refused == {}
    for number, op in enumerate(OPERATIONS):
        repeater.target, repeater.more = number, 3
        assert all(map(torch.equal, plain, trained())), op
        seen, extra = repeater.take_counts()
        assert extra == {number: 3 * seen[number]}
        assert seen[number] >= 3
    assert repeater.take_counts() == ({}, {})


def test_an_operation_inside_of_itself_is_one_execution(repeater: Repeater) -> None:
    """mul with a number calls mul with a tensor."""
    repeater.target, repeater.more = OPERATIONS.index("mul"), 4
    torch.ops.aten.mul.Scalar(torch.ones(3), 2.0)
    seen, extra = repeater.take_counts()
    assert seen[repeater.target] == 1
    assert extra == {repeater.target: 4}


def test_only_what_was_called_with_the_same_operands_is_repeated() -> None:
    square = (((4, 4), "float"), ((4, 4), "float"))
    made = repeating({"mm": {square: 7}})
    made.install()
    made.target, made.more = 7, 2
    torch.mm(torch.ones(4, 4), torch.ones(4, 4))
    torch.mm(torch.ones(4, 5), torch.ones(5, 4))
    torch.mm(torch.ones(4, 4).double(), torch.ones(4, 4).double())
    torch.mm(torch.ones(4, 4, device="meta"), torch.ones(4, 4, device="meta"))
    assert made.take_counts() == ({7: 1}, {7: 2})
    made.remove()
    torch.mm(torch.ones(4, 4), torch.ones(4, 4))
    assert made.take_counts() == ({}, {})


def test_operands_are_told_as_the_profiler_tells_them() -> None:
    given = (torch.ones(2, 3), 1.0, [torch.ones(4)], None, torch.ones(2, dtype=torch.int64))
    assert operands(given) == (((2, 3), "float"), ((4,), ""), ((2,), "long int"))


@pytest.mark.parametrize(
    ("op", "why"),
    [
        ("mul_", "writes into"),
        ("_foreach_add_", "writes into"),
        ("view", "returns a view"),
        ("native_dropout", "random"),
        ("linear", "made of other operations"),
        ("no_such_thing", "no operation"),
        ("mine::no_such_thing", "no operation"),
    ],
)
def test_what_must_not_be_executed_again_is_refused_with_the_reason(op: str, why: str) -> None:
    with pytest.raises(Refused, match=why):
        overloads(op)
    made = repeating({op: everything(3)})
    made.install()
    assert why in made.refused[3]


def test_what_is_not_one_of_aten_s_is_executed_once() -> None:
    """Its schema says that it is pure, but nobody knows what else it does."""
    library = torch.library.Library("joulemap_repeated", "DEF")
    library.define("relu(Tensor x) -> Tensor")
    library.impl("relu", torch.neg, "CPU")
    made = repeating({"joulemap_repeated::relu": everything(3)})
    made.install()
    assert "not one of aten's" in made.refused[3]
    library._destroy()


def test_further_executions_leave_running_statistics_alone() -> None:
    made = repeating({"native_batch_norm": everything(0), "native_batch_norm_backward": everything(1)})
    made.install()
    made.more = 2
    plain, norm, x = torch.nn.BatchNorm1d(4), torch.nn.BatchNorm1d(4), torch.rand(8, 4)
    plain(x).square().sum().backward()
    made.take_counts()
    for made.target in (0, 1):
        norm.zero_grad()
        norm.reset_running_stats()
        norm(x).square().sum().backward()
        assert made.take_counts()[1] == {made.target: 2}
        assert torch.equal(norm.running_mean, plain.running_mean)
        assert torch.equal(norm.running_var, plain.running_var)
        assert torch.equal(norm.weight.grad, plain.weight.grad)
    made.target = 0
    norm.eval()(x)
    assert made.take_counts()[1] == {0: 2}
    assert made.refused == {}
    made.remove()


def test_calls_that_draw_random_numbers_are_refused_while_others_of_the_operation_are_not() -> None:
    made = repeating({ATTENTION: everything(1)})
    made.install()
    made.target, made.more = 1, 2
    query = torch.rand(1, 1, 4, 8)
    torch.nn.functional.scaled_dot_product_attention(query, query, query)
    assert made.take_counts()[1].get(1) == 2
    made.remove()
    schema = torch.ops.aten._scaled_dot_product_flash_attention.default._schema
    assert draws(schema, (query, query, query, 0.1), {})
    assert not draws(schema, (query, query, query), {})


ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"


def test_numbers_in_the_place_of_tensors_come_back_as_what_they_were() -> None:
    """A number weighs less than a tensor where types are mixed: float16 times 0.1 stays float16."""
    tensors = [torch.tensor(2.5, dtype=torch.float16), torch.tensor(3), torch.rand(3).double(), torch.ones(2)]
    functions = (torch.add, torch.sub, torch.mul, torch.div, torch.remainder, torch.fmod, torch.pow, torch.eq)
    names = [one.__name__ for one in functions]

    def results() -> list[Any]:
        torch.manual_seed(0)
        return [function(one, number) for function in functions for one in tensors for number in (2, 0.1)]

    plain = results()
    made = repeating({name: everything(number) for number, name in enumerate(names)})
    made.install()
    again = results()
    made.remove()
    assert [one.dtype for one in plain] == [one.dtype for one in again]
    assert all(map(torch.equal, plain, again))


def test_what_fails_in_a_repetition_is_not_the_programs() -> None:
    made = repeating({"mm": everything()})
    made.more = 3

    def fails() -> None:
        raise torch.OutOfMemoryError("full")

    made.again(0, ("mm", ()), fails, None)
    assert "could not be executed again" in made.refused[0]
    assert made.take_counts() == ({}, {})


def test_a_timeout_that_comes_in_a_repetition_is_the_programs() -> None:
    class Late(RuntimeError):
        """Raised by the handler of a signal."""

    def late(*_: Any) -> None:
        raise Late

    class Long(torch.nn.Module):  # type: ignore[misc]
        calls = 0

        def forward(self, x: Any) -> Any:
            type(self).calls += 1
            if self.calls > 1:
                signal.raise_signal(signal.SIGUSR1)
            return x * 2

    def repeats(*_: Any) -> None:
        signal.raise_signal(signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, late)
    made = repeating({"mm": everything()})
    modules = ModuleRepeater({"0": 0}, made.thread)
    try:
        made.install()
        made.target, made.more = 0, 2
        made.wait = repeats  # type: ignore[method-assign]
        with pytest.raises(Late):
            torch.ones(2, 2).mm(torch.ones(2, 2))
        modules.install()
        modules.target, modules.more = 0, 1
        with pytest.raises(Late):
            torch.nn.Sequential(Long())(torch.ones(2))
    finally:
        made.remove()
        modules.remove()
        signal.signal(signal.SIGUSR1, before)
    assert made.refused == modules.refused == {}
    assert not made.thread.inside


@pytest.fixture
def idled(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """For how long a GPU was made to wait; what is computed here is computed on one."""
    seconds: list[float] = []
    monkeypatch.setattr("joulemap.frameworks.torch.again.idle", lambda each_s, _: seconds.append(each_s))
    monkeypatch.setattr(Repeater, "_is_here", lambda *_: True)
    return seconds


def test_with_ease_a_gpu_waits_after_each_execution(idled: list[float]) -> None:
    made, x = repeating({"mm": everything(0), "gelu": everything(1)}, "cuda"), torch.rand(4, 4)
    made.install()
    try:
        made.target, made.more = 0, 3
        torch.mm(x, x)
        assert idled == []
        made.ease = 2.0
        torch.nn.functional.gelu(torch.mm(torch.mm(x, x), x))
        assert idled == [2.0] * 8 + [4.0]
        assert made.take_counts() == ({0: 3, 1: 1}, {0: 9})
        made.ease = 0.0
        torch.mm(x, x)
    finally:
        made.remove()
    assert idled == [2.0] * 8 + [4.0]


def test_a_gpu_waits_once_for_an_operation_inside_of_itself(idled: list[float]) -> None:
    made = repeating({"mul": everything(0)}, "cuda")
    made.install()
    try:
        made.ease = 1.0
        torch.ops.aten.mul.Scalar(torch.ones(3), 2.0)
    finally:
        made.remove()
    assert idled == [1.0]


def test_a_cpu_never_waits(idled: list[float]) -> None:
    made = repeating({"mm": everything(0)})
    made.install()
    try:
        made.target, made.more, made.ease = 0, 2, 1.0
        torch.mm(torch.rand(4, 4), torch.rand(4, 4))
    finally:
        made.remove()
    assert made.take_counts() == ({0: 1}, {0: 2})
    assert idled == []


def test_what_runs_in_a_module_that_is_called_again_is_no_target(idled: list[float]) -> None:
    model, x = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU()), torch.rand(8, 4)
    made = repeating({"gelu": everything(1)}, "cuda")
    modules = ModuleRepeater({"1": 0}, made.thread)
    for one in (made, modules):
        one.install()
        one.target, one.more, one.ease = 0, 5, 1.0
    try:
        plain, again = model(x), model(x)
    finally:
        for one in (made, modules):
            one.remove()
    assert torch.equal(plain, again)
    assert modules.take_counts() == ({0: 2}, {0: 5})
    assert made.take_counts() == ({1: 2}, {})
    assert idled == [2.0] * 7  # the GPU waits there, too
    assert not made.thread.inside
    assert not made.thread.again
    idled.clear()
    made.install()
    modules.install()
    made.ease, made.target, modules.target = 0.0, -1, 0
    try:
        model(x)
    finally:
        modules.remove()
        made.remove()
    assert idled == []
