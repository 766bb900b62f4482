"""What a GPU's cache holds of an operation's operands in a program, and that they are as warm when it is
executed again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="needs PyTorch")

from joulemap.calibration.operation import Operation  # noqa: E402
from joulemap.frameworks.torch import caches, repeating  # noqa: E402
from joulemap.frameworks.torch.caches import FIRST, STEPS, Cache, Look, cold_of, read_cold  # noqa: E402
from joulemap.frameworks.torch.rebuild import Call, rebuilt  # noqa: E402
from joulemap.frameworks.torch.repeating import Repeater, Turns, operands  # noqa: E402
from joulemap.frameworks.torch.replayer import Replayer  # noqa: E402
from joulemap.frameworks.torch.rotation import copies, tensors_in, with_tensors  # noqa: E402
from joulemap.recorder.look import LookingOn  # noqa: E402
from joulemap.recorder.settings import Settings  # noqa: E402

CPU = torch.device("cpu")
WIDE = 32
SIZE = 4 * WIDE * WIDE
"""Of the weights of a layer, in bytes."""


@given(st.lists(st.integers(1, 7), max_size=60), st.integers(1, 30))
def test_a_cache_holds_what_was_touched_last(touched: list[int], size: int) -> None:
    """Storages of as many bytes as their address says."""
    cache, order = Cache(size), list[int]()
    for address in touched:
        since = order[order.index(address) :] if address in order else [size, 1]
        assert cache.holds(address, address) == (sum(since) <= size)
        cache.touch(address, address)
        order = [*(other for other in order if other != address), address]


def chain() -> Any:
    """Layers whose weights are large against what goes through them."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(WIDE, WIDE), torch.nn.Tanh(), torch.nn.Linear(WIDE, WIDE)]
    return torch.nn.Sequential(*layers)


def steps(model: Any, count: int, look: Look | None = None) -> list[Any]:
    """Some of training; the last is looked at, after one that fills the cache."""
    optimizer, x = torch.optim.SGD(model.parameters(), lr=0.1), torch.ones(2, WIDE)
    for number in range(count):
        if look is not None:
            look.counts = number == count - 1
        with torch.enable_grad() if look is None else look.mode():
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
    return [one.detach().clone() for one in model.parameters()]


def test_weights_come_from_memory_and_what_was_just_computed_from_the_cache(tmp_path: Path) -> None:
    look = Look(Cache(round(1.5 * SIZE)), "cpu")
    seen = steps(chain(), 3, look)
    look.write(tmp_path)
    cold = read_cold(tmp_path)
    weight, through = ((WIDE, WIDE), "float"), ((2, WIDE), "float")
    assert cold["addmm", (((WIDE,), "float"), through, weight)][1:] == "01"
    assert cold["tanh", (through,)] == "0"
    assert cold["tanh_backward", (through, through)][0] == "0"
    assert all(torch.equal(a, b) for a, b in zip(seen, steps(chain(), 3), strict=True))
    everything = Look(Cache(100 * SIZE), "cpu")
    steps(chain(), 3, everything)
    everything.write(tmp_path)
    assert set("".join(read_cold(tmp_path).values())) == {"0"}


def test_what_is_elsewhere_or_only_looked_at_otherwise_touches_nothing() -> None:
    x, held = torch.ones(WIDE, WIDE), Cache(2 * SIZE)
    look = Look(held, "cpu")
    with look.mode():
        x.view(-1).t()
        assert not held._recent
        x + 1
    assert len(held._recent) == 2
    on_gpu = Look(Cache(SIZE))
    on_gpu.counts = True
    with on_gpu.mode():
        x + 1
    assert not on_gpu._seen


def test_without_gradients_operations_are_seen_that_others_are_made_of() -> None:
    look = Look(Cache(SIZE), "cpu")
    look.counts = True
    with torch.inference_mode(), look.mode():
        result = chain()(torch.ones(2, WIDE))
    with torch.inference_mode():
        assert torch.equal(result, chain()(torch.ones(2, WIDE)))
    assert {op for op, _ in look._seen} >= {"addmm", "tanh"}


def test_what_calls_another_with_the_same_operands_stands_for_it(tmp_path: Path) -> None:
    one, other = [[[2, 3], "float"]], [[[4], "float"]]
    rows = [["outer", one, "1"], ["add", other, "1"], ["mul", other, "0"]]
    (tmp_path / caches.FILE).write_text(json.dumps(rows))
    known = read_cold(tmp_path)
    assert cold_of("inner", (((2, 3), "float"),), known) == "1"
    assert cold_of("mul", (((4,), "float"),), known) == "0"
    assert cold_of("div", (((4,), "float"),), known) == ""
    assert read_cold(tmp_path / "none") == {}


class Heard:
    """Steps of whoever comes next."""

    def __init__(self) -> None:
        self.depth = self.begun = 0
        self.others: list[str] = []

    def begin(self, label: str) -> None:
        self.depth += 1
        self.begun += self.depth == 1

    def end(self) -> None:
        self.depth -= 1

    def cancel(self) -> None:
        self.depth -= 1

    def is_open(self) -> bool:
        return self.depth > 0

    def noted(self, label: str) -> bool:
        return True

    def rename(self, label: str) -> None:
        self.others.append(label)

    def compiled(self) -> None:
        self.others.append("compiled")


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine's processor for a GPU."""
    monkeypatch.setattr(caches, "new_look", lambda: Look(Cache(SIZE), "cpu"))


def looked_at(listener: Any, count: int, x: Any) -> list[int]:
    """How many modes there are in each of some steps, one inside of another."""
    modes = []
    for _ in range(count):
        listener.begin("train")
        listener.begin("inner")
        x + 1
        modes.append(len(torch.utils._python_dispatch._get_current_dispatch_mode_stack()))
        listener.end()
        listener.end()
    return modes


@pytest.mark.usefixtures("on_cpu")
def test_two_steps_are_looked_at_and_no_more(tmp_path: Path) -> None:
    heard, warnings = Heard(), list[str]()
    listener = LookingOn(tmp_path / "torch", heard, warnings.append)
    assert not listener.noted("train")
    modes = looked_at(listener, FIRST + STEPS + 2, torch.ones(4))
    assert modes == [*[0] * FIRST, *[1] * STEPS, 0, 0]
    assert set(read_cold(tmp_path / "torch").values()) == {"0"}
    assert heard.begun == FIRST + STEPS + 2
    assert listener.noted("train")
    listener.rename("test")
    listener.compiled()
    assert heard.others == ["test", "compiled"]
    assert not warnings


@pytest.mark.usefixtures("on_cpu")
def test_a_program_with_a_mode_of_its_own_keeps_it(tmp_path: Path) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

    warnings: list[str] = []
    listener = LookingOn(tmp_path, Heard(), warnings.append)
    looked_at(listener, FIRST, torch.ones(4))
    listener.begin("train")
    theirs = TorchDispatchMode()
    theirs.__enter__()
    listener.end()
    assert _get_current_dispatch_mode() is theirs
    theirs.__exit__(None, None, None)
    (warning,) = warnings
    assert warning.endswith("RuntimeError: the program has entered a mode of its own in a step")
    assert not (tmp_path / caches.FILE).exists()
    assert torch.equal(torch.ones(4) + 1, torch.full((4,), 2.0))
    left = _get_current_dispatch_mode()
    left.__exit__(None, None, None)


def test_there_is_no_look_without_a_gpu_nor_into_compiled_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch._dynamo.utils as dynamo

    listener = LookingOn(tmp_path, Heard(), pytest.fail)
    assert looked_at(listener, FIRST + 1, torch.ones(4)) == [0] * (FIRST + 1)
    assert listener.noted("train")
    monkeypatch.setattr(caches.gpus, "in_use", lambda: True)
    monkeypatch.setattr(caches, "cache_bytes", lambda _: 100)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(dynamo, "counters", {"frames": {}})
    assert caches.new_look() is not None
    monkeypatch.setattr(dynamo, "counters", {"frames": {"ok": 1}})
    assert caches.new_look() is None


MM = Operation("mm", "[[32, 32], [32, 32]]", "[[32, 1], [32, 1]]", '["float", "float"]', "[null, null]")
COLD = Operation(*(getattr(MM, one) for one in ("op", "shapes", "strides", "types", "scalars")), cold="01")


def test_an_operation_is_another_where_it_finds_other_caches() -> None:
    assert Operation.from_key(MM.key) == MM != COLD == Operation.from_key(COLD.key)
    assert len(json.loads(MM.key)) == 5
    row = {name: getattr(COLD, name) for name in ("op", "shapes", "strides", "types", "scalars", "cold")}
    assert Operation.of(row) == COLD
    assert Operation.of({**row, "cold": None}) == MM
    assert (Call.of(MM.key).cold, Call.of(COLD.key).cold) == ("", "01")


def test_operands_that_are_in_the_cache_are_the_same_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("joulemap.frameworks.torch.rotation.cache_bytes", lambda _: 2 * SIZE)
    first = rebuilt(Call.of(COLD.key), CPU)
    assert (copies(first, CPU), copies(first, CPU, "01"), copies(first, CPU, "00")) == (3, 6, 1)
    made = [tensors_in(one) for one in Replayer(Call.of(COLD.key), CPU).copies]
    assert len({id(one[0]) for one in made}) == 1
    assert len({one[1].data_ptr() for one in made}) == len(made) == 6
    assert len({one[0].data_ptr() for one in map(tensors_in, Replayer(Call.of(MM.key), CPU).copies)}) == 3


def test_tensors_take_the_place_of_others_wherever_they_are() -> None:
    a, b, c = (torch.full((2,), float(number)) for number in range(3))
    size = torch.Size((1, 2))
    found = with_tensors([a, (b, [c, 5]), size], {id(a): c, id(c): a})
    assert found[0] is c
    assert found[1][0] is b
    assert found[1][1][0] is a
    assert found[2] is size


def test_what_comes_from_memory_is_not_what_was_just_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeating, "cache_bytes", lambda _: SIZE)
    x, weight = torch.rand(2, WIDE), torch.rand(WIDE, WIDE).t()
    key = "mm", operands((x, weight))
    turns, used = Turns({key: "01"}), []
    call = repeating.partial(torch.mm, x, weight)
    for _ in range(6):
        other = turns.next(key, call)
        assert torch.equal(other(), x @ weight)
        used.append(other.args)
    assert all(given[0] is x and given[1] is not weight for given in used)
    assert all(given[1].stride() == weight.stride() for given in used)
    assert [given[1].data_ptr() for given in used[:3]] == [given[1].data_ptr() for given in used[3:]]
    assert len({given[1].data_ptr() for given in used}) == 3
    assert turns.next(("mm", operands((x, x.t()))), call) is call
    assert Turns({key: "00"}).next(key, call) is call


def test_a_repeater_executes_again_with_operands_as_cold_as_the_programs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(repeating, "cache_bytes", lambda _: SIZE)
    x, weight = torch.rand(2, WIDE), torch.rand(WIDE, WIDE)
    given = operands((x, weight))
    repeater = Repeater("cpu", {"mm": {given: 0}}, {0: 0.0}, {("mm", given): "01"})
    plainly = x @ weight
    repeater.install()
    try:
        repeater.target, repeater.more = 0, 3
        assert torch.equal(x @ weight, plainly)
        assert repeater.take_counts() == ({0: 1}, {0: 3})
        (held,) = repeater._turns._copies.values()
        assert [len(one) for one in held] == [1] * 3
    finally:
        repeater.remove()
    assert not repeater._turns._copies


def test_whether_to_look_is_told_to_the_program() -> None:
    for caches_too in (True, False):
        assert Settings.from_json(Settings("raw", caches=caches_too).to_json()).caches is caches_too


@pytest.mark.gpu
def test_a_gpu_has_its_cache_looked_at(tmp_path: Path) -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(4096, 4096, device="cuda") for _ in range(8)))
    x, heard = torch.ones(8, 4096, device="cuda"), Heard()
    listener = LookingOn(tmp_path, heard, pytest.fail)
    for _ in range(FIRST + STEPS):
        listener.begin("predict")
        with torch.no_grad():
            model(x)
        listener.end()
    (cold,) = {cold for (op, _), cold in read_cold(tmp_path).items() if op == "addmm"}
    assert cold[1:] == "01"
