"""Modules called again in place: what must not be done twice is not, and results stay what they were."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

from joulemap.frameworks.torch.again import Thread  # noqa: E402
from joulemap.frameworks.torch.graphs import calls_compiled  # noqa: E402
from joulemap.frameworks.torch.repeating_modules import ModuleRepeater  # noqa: E402
from tests.repeated import trained  # noqa: E402


class Cache:
    """Something that a module may keep things in."""


class Remembers(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        self.last = x.sum()
        return x


class Writes(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.count = torch.zeros(1)

    def forward(self, x: Any) -> Any:
        self.count.add_(1)
        return x + self.count


class InPlaceInside(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return (x * 2).add_(1).relu_()


class Given(torch.nn.Module):
    def forward(self, x: Any, cache: Any = None) -> Any:
        return x * 2


class Attends(torch.nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = dropout

    def forward(self, x: Any) -> Any:
        query = x.view(1, 1, 8, 4)
        return torch.nn.functional.scaled_dot_product_attention(query, query, query, dropout_p=self.dropout)


def hooked() -> Any:
    module = torch.nn.Linear(4, 4)
    module.register_forward_hook(lambda *_: None)
    return module


@pytest.mark.parametrize(
    ("module", "given", "why"),
    [
        (torch.nn.Linear(4, 4), (), ""),
        (InPlaceInside(), (), ""),
        (Given(), ([1, None],), ""),
        (torch.nn.Dropout(0.5).eval(), (), ""),
        (torch.nn.BatchNorm1d(4).eval(), (), ""),
        (Attends(), (), ""),
        (Attends(0.5), (), "random"),
        (torch.nn.Dropout(0.5), (), "random"),
        (torch.nn.BatchNorm1d(4), (), ""),
        (Remembers(), (), "of its own"),
        (Writes(), (), "there before"),
        (Given(), (Cache(),), "given a Cache"),
        (hooked(), (), "hooks"),
    ],
)
def test_a_module_is_watched_before_it_is_ever_called_again(module: Any, given: Any, why: str) -> None:
    model = torch.nn.ModuleDict({"part": module})
    model.forward = lambda x: model["part"](x, *given)
    x, made = torch.rand(8, 4), ModuleRepeater({"part": 0}, Thread())
    made.install()
    try:
        model(x)
        made.target, made.more = 0, 3
        torch.manual_seed(0)
        again = model(x)
    finally:
        made.remove()
    assert made.take_counts() == ({0: 2}, {} if why else {0: 3})
    assert bool(why) == bool(made.refused)
    if why:
        assert why in made.refused[0]
    else:
        torch.manual_seed(0)
        assert torch.equal(again, model(x))
    assert torch.nn.Module._call_impl.__module__.startswith("torch.")


class Stubborn(torch.nn.Module):
    """Writes into what everybody has, whatever is said to that."""

    def __init__(self, everybodys: Any) -> None:
        super().__init__()
        self.everybodys = [everybodys]

    def forward(self, x: Any) -> Any:
        try:
            self.everybodys[0].add_(1)
        except Exception:  # noqa: BLE001
            return x
        return x + torch.rand(())


def test_what_must_not_be_done_twice_is_not() -> None:
    count, x = torch.zeros(()), torch.ones(3)
    model, made = torch.nn.Sequential(Stubborn(count)), ModuleRepeater({"0": 0}, Thread())
    before = torch.get_rng_state()
    made.install()
    try:
        model(x)
    finally:
        made.remove()
    assert count == 1
    assert made.refused == {0: "it writes into a tensor that was there before"}
    after = torch.get_rng_state()
    torch.set_rng_state(before)
    torch.rand(())
    assert torch.equal(after, torch.get_rng_state())
    assert not made._thread.inside


def test_the_programs_own_calls_are_not_watched() -> None:
    """With somebody between it and its operations, a bilinear layer would not cast what it computes with."""
    torch.manual_seed(0)
    model, x = torch.nn.Sequential(torch.nn.Bilinear(8, 8, 4)), torch.rand(5, 8)
    model.forward = lambda x: model[0](x, x)

    def result() -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return model(x)

    plain, made = result(), ModuleRepeater({"0": 0}, Thread())
    made.install()
    try:
        made.target, made.more = 0, 1
        assert all(torch.equal(plain, result()) for _ in range(2))
    finally:
        made.remove()
    assert made.take_counts() == ({0: 2}, {0: 1})


@pytest.mark.parametrize("autocast", [False, True])
def test_modules_that_are_called_again_leave_training_as_it_is(autocast: bool) -> None:
    plain, made = trained(autocast=autocast), ModuleRepeater({"2": 0, "2/up": 1, "nowhere": 2}, Thread())
    made.install()
    for target in (0, 1):
        made.target, made.more = target, 2
        assert all(map(torch.equal, plain, trained(autocast=autocast)))
        seen, extra = made.take_counts()
        assert seen[target] == 3
        assert extra[target] == 2 * (seen[target] - (target == 0))
    made.remove()
    assert made.refused == {}


def test_a_module_that_is_called_again_writes_its_statistics_into_copies() -> None:
    plain, model = (torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)) for _ in range(2))
    model.load_state_dict(plain.state_dict())
    x, made = torch.rand(8, 4), ModuleRepeater({"1": 0}, Thread())
    expected = [plain(x) for _ in range(3)]
    made.install()
    try:
        made.target, made.more = 0, 5
        assert all(map(torch.equal, expected, [model(x) for _ in range(3)]))
    finally:
        made.remove()
    assert made.take_counts() == ({0: 3}, {0: 10})
    assert model[1].num_batches_tracked == 3
    assert all(map(torch.equal, plain.buffers(), model.buffers()))


class Seen(torch.utils._python_dispatch.TorchDispatchMode):
    """How many weights are cast."""

    def __init__(self) -> None:
        super().__init__()
        self.casts = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cast = func is torch.ops.aten._to_copy.default and args[0].shape == (16, 16)
        self.casts += cast and isinstance(args[0], torch.nn.Parameter)
        return func(*args, **(kwargs or {}))


class Layers(torch.nn.Module):
    """A layer that is called several times, as ALBERT's are, by a part of this one."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.stack = torch.nn.Sequential(*[torch.nn.Linear(16, 16)] * times)

    def forward(self, x: Any) -> Any:
        return self.stack(x)


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize(
    ("target", "times", "casts"),
    [("stack", 1, 1 + 3), ("stack/0", 1, 1 + 3), ("stack/0", 4, 1 + 3), ("stack", 2, 1), ("stack", 4, 1)],
)
def test_a_module_that_is_called_again_casts_its_weights_as_often_as_in_the_program(
    target: str, times: int, casts: int, grad: bool
) -> None:
    """Once in each of its own calls (3 are added) where it did so in the program's: not in its second call
    inside of one autocast, and not where that would be several times."""
    model, x, made = Layers(times), torch.rand(4, 16), ModuleRepeater({target: 0}, Thread())
    made.install()
    seen = []
    try:
        for more in (0, 3, 3):
            made.target, made.more = 0, more
            with torch.set_grad_enabled(grad), torch.autocast("cpu", torch.bfloat16), Seen() as looks:
                result = model(x)
            seen.append(looks.casts)
    finally:
        made.remove()
    assert seen[1:] == [casts, casts]
    assert not made.refused
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(result, model(x))


def test_hooks_of_the_programs_own_hear_nothing_of_what_tells_whether_weights_were_cast() -> None:
    """Checkpointing counts tensors that are kept for the backward pass, and others do things with them."""
    model, x, made = torch.nn.Sequential(torch.nn.Linear(8, 8)), torch.rand(4, 8), repeater({"0": 0})
    shapes: list[Any] = []
    made.install()
    try:
        with torch.autocast("cpu", torch.bfloat16), heard(shapes):
            model(x)
        plain = list(shapes)
        made.target, made.more = 0, 2
        with torch.autocast("cpu", torch.bfloat16), heard(shapes):
            model(x)
    finally:
        made.remove()
    assert shapes == plain * 2
    assert made.extra[0] == 2


def heard(shapes: list[Any]) -> Any:
    return torch.autograd.graph.saved_tensors_hooks(
        lambda one: shapes.append(one.shape) or one, lambda one: one
    )


def repeater(targets: dict[str, int]) -> ModuleRepeater:
    return ModuleRepeater(targets, Thread())


@pytest.mark.parametrize("more", [0, 2])
def test_a_checkpointed_module_may_be_called_again_from_its_first_call_on(more: int) -> None:
    parts = torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 8)
    model, x, made = torch.nn.Sequential(*parts), torch.rand(4, 8), repeater({"0": 0})
    made.target, made.more = 0, more
    made.install()
    try:
        for _ in range(2):
            with torch.autocast("cpu", torch.bfloat16):
                again = torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False)
            again.float().sum().backward()
    finally:
        made.remove()
    assert not made.refused


def test_a_module_is_called_again_in_training_after_it_was_in_inference_mode() -> None:
    model, x, made = torch.nn.Sequential(torch.nn.Linear(8, 8)), torch.rand(4, 8), repeater({"0": 0})
    made.target, made.more = 0, 2
    made.install()
    try:
        model(x)
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
            model(x)
        with torch.autocast("cpu", torch.bfloat16):
            model(x).sum().backward()
    finally:
        made.remove()
    assert not made.refused
    assert made.extra[0] == 4


class HoldsNothing(torch.nn.Module):
    """With a weight that is not anywhere yet, before one that is."""

    def __init__(self) -> None:
        super().__init__()
        self.later = torch.nn.Parameter(torch.empty(2, device="meta"))
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        return self.linear(x)


class Fails(torch.nn.Module):
    """The fourth time that it is called: twice by the program, and once to be watched."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = [0]

    def forward(self, x: Any) -> Any:
        self.calls[0] += 1
        if self.calls[0] == 4:
            raise ValueError("four")
        return x


@pytest.mark.parametrize(("module", "why"), [(HoldsNothing(), ""), (Fails(), "ValueError")])
def test_what_goes_wrong_when_a_module_is_called_again_is_not_the_programs(module: Any, why: str) -> None:
    model, x, made = torch.nn.Sequential(module), torch.rand(4, 8), repeater({"0": 0})
    made.target, made.more = 0, 1
    made.install()
    try:
        for _ in range(2):
            with torch.autocast("cpu", torch.bfloat16):
                model(x)
    finally:
        made.remove()
    assert why in made.refused.get(0, "")
    assert bool(why) == bool(made.refused)


def graphs_of(model: Any, x: Any, targets: dict[str, int]) -> tuple[int, dict[int, str]]:
    """How many graphs are made of a model while its modules are targets; and what was refused."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    repeater = ModuleRepeater(targets, Thread())
    repeater.install()
    try:
        repeater.more = 2
        for repeater.target in (-1, *targets.values()):
            model(x)
    finally:
        repeater.remove()
        torch._dynamo.reset()
    assert not repeater.extra
    return counters["stats"]["unique_graphs"], repeater.refused


class Broken(torch.nn.Module):
    """Has a graph broken in the middle: the compiler meets its modules as they are called."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        torch._dynamo.graph_break()
        return self.second(x)


def test_what_a_compiled_function_calls_is_left_to_the_compiler() -> None:
    pytest.importorskip("torch._dynamo.utils")
    x, model = torch.rand(2, 4), torch.compile(Broken().requires_grad_(False), backend="eager")
    plain, _ = graphs_of(model, x, {})
    assert plain == 2
    assert graphs_of(model, x, {"first": 0, "second": 1}) == (plain, {})


def test_a_module_that_calls_a_compiled_function_is_refused_and_the_function_stays_compiled() -> None:
    """In a mode of the dispatcher the compiler would give it up for good."""
    pytest.importorskip("torch._dynamo.utils")
    ran = []

    def counting(graph: Any, _: Any) -> Any:
        return lambda *args: (ran.append(1), graph.forward(*args))[1]

    torch._dynamo.reset()
    twice = torch.compile(lambda x: 2 * x, backend=counting)

    class Calls(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return twice(x)

    model, x = torch.nn.Sequential(Calls(), InPlaceInside()), torch.rand(2, 4)
    repeater = ModuleRepeater({"0": 0, "1": 1}, Thread())
    repeater.install()
    try:
        for repeater.target in (-1, 0, 1):
            repeater.more = 2
            model(x)
    finally:
        repeater.remove()
    assert list(repeater.refused) == [0]
    assert "calls something that is compiled" in repeater.refused[0]
    assert repeater.extra == {1: 2}
    model(x)
    assert len(ran) == 4
    torch._dynamo.reset()


def test_where_pytorch_does_not_tell_whatever_was_compiled_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo import eval_frame, utils

    with calls_compiled() as compiled:
        torch.relu(torch.rand(2))
    assert not compiled()
    monkeypatch.delattr(eval_frame, "_callback_from_stance")
    for seen in ({}, {"ok": 1}):
        monkeypatch.setitem(utils.counters, "frames", seen)
        with calls_compiled() as compiled:
            torch.relu(torch.rand(2))
        assert compiled() == bool(seen)


def test_a_module_that_is_compiled_is_refused() -> None:
    pytest.importorskip("torch._dynamo.utils")
    x, model = torch.rand(2, 4), torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU())
    model[0] = torch.compile(model[0], backend="eager")
    plain, _ = graphs_of(model, x, {})
    made, refused = graphs_of(model, x, {"0": 0, "Sequential": 1})
    assert made == plain
    assert "compiled" in refused[0]
