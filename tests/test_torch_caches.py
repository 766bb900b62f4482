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
from joulemap.frameworks.torch import caches, repeating, rotation  # noqa: E402
from joulemap.frameworks.torch.caches import PAGE, STEPS, Cache, Look, cold_of, read_cold  # noqa: E402
from joulemap.frameworks.torch.rebuild import Call, rebuilt  # noqa: E402
from joulemap.frameworks.torch.repeating import Repeater, Turns, operands  # noqa: E402
from joulemap.frameworks.torch.replayer import Replayer  # noqa: E402
from joulemap.frameworks.torch.rotation import copies, size_of, tensors_in, with_tensors  # noqa: E402
from joulemap.recorder.inside import Inside  # noqa: E402
from joulemap.recorder.look import LookingOn  # noqa: E402
from joulemap.recorder.settings import Settings  # noqa: E402

CPU = torch.device("cpu")
FIRST = 3
WIDE = 512
SIZE = 4 * WIDE * WIDE
"""Of the weights of a layer, in bytes: sixteen pages."""


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 9)), max_size=40), st.integers(1, 12))
def test_a_cache_holds_what_was_touched_last(touched: list[tuple[int, int]], most: int) -> None:
    """Page by page; of what is larger than the cache, its end."""
    cache, order = Cache(most * PAGE), list[int]()
    for first, many in touched:
        pages = range(first, first + many)
        begin, end = first * PAGE, (first + many) * PAGE
        held = sum(page in order[-most:] for page in pages)
        assert cache.holds(begin, end) == (2 * held > many)
        cache.touch(begin, end)
        for page in pages:
            order = [*(other for other in order if other != page), page]


def test_little_of_much_is_not_all_of_it() -> None:
    cache = Cache(10 * PAGE)
    cache.touch(5 * PAGE, 5 * PAGE + 8)
    assert cache.holds(5 * PAGE, 5 * PAGE + 100)
    assert not cache.holds(5 * PAGE, 9 * PAGE)
    assert not cache.holds(0, 1000 * PAGE)
    whole = torch.zeros(4 * PAGE)
    assert rotation.reach(whole[: 2 * PAGE : 2]) == 2 * PAGE - 1
    assert rotation.reach(torch.zeros(3, 1).expand(3, 100)) == 3
    assert rotation.reach(torch.zeros(0, 3)) == 0


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
    x, held = torch.ones(WIDE, WIDE), Cache(3 * SIZE)
    look = Look(held, "cpu")
    with look.mode():
        x.view(-1).t()
        assert not held._recent
        y = x + 1
    for one in (x, y):
        assert held.holds(one.data_ptr(), one.data_ptr() + SIZE)
    assert len(held._recent) <= 2 * (SIZE // PAGE + 1)
    on_gpu = Look(Cache(SIZE))
    on_gpu.counts = True
    with on_gpu.mode():
        x + 1
    assert not on_gpu._seen


def test_without_gradients_operations_are_seen_that_others_are_made_of() -> None:
    look = Look(Cache(SIZE), "cpu")
    look.counts = True
    with torch.no_grad(), look.mode():
        result = chain()(torch.ones(2, WIDE))
    with torch.no_grad():
        assert torch.equal(result, chain()(torch.ones(2, WIDE)))
    assert {op for op, _ in look._seen} >= {"addmm", "tanh"}


@pytest.mark.parametrize("mixed", [False, True])
def test_inference_is_what_it_is_without_a_look(mixed: bool) -> None:
    """There operations come that are made of others, which must not notice: neither autocast, nor views."""
    layer, x = torch.nn.Linear(8, 8), torch.rand(2, 3, 8)

    def results() -> list[Any]:
        y = layer(x)
        return [
            y,
            torch.cdist(x, x),
            torch.nn.functional.scaled_dot_product_attention(y, y, y),
            torch.nn.functional.layer_norm(x, (8,)),
            torch.nn.functional.silu(y),
            torch.einsum("bij,bkj->bik", x, x),
            torch.nn.functional.cross_entropy(y.flatten(0, 1), torch.zeros(6, dtype=torch.long)),
            layer.weight.reshape(4, 16),
        ]

    look = Look(Cache(SIZE), "cpu")
    look.counts = True
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=mixed):
        plain = results()
        with look.mode():
            seen = results()
        afterwards = results()
    assert {one.dtype for one in plain} == ({torch.float32, torch.bfloat16} if mixed else {torch.float32})
    for one, other in (*zip(plain, seen, strict=True), *zip(plain, afterwards, strict=True)):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
        assert one._is_view() == other._is_view()
    assert seen[-1]._base is layer.weight
    kind = "c10::BFloat16" if mixed else "float"
    assert ("addmm", (((8,), kind), ((6, 8), kind), ((8, 8), kind))) in look._seen
    assert {op for op, _ in look._seen} >= {"bmm", "_cdist_forward", "native_layer_norm", "nll_loss_forward"}


def test_gradients_are_what_they_are_without_a_look() -> None:
    """Some have a formula and a kernel of their own, which differ in the last bits."""

    def gradient() -> Any:
        x = torch.linspace(-3, 3, 1000, dtype=torch.bfloat16, requires_grad=True)
        torch.nn.functional.silu(x).sum().backward()
        return x.grad

    with Look(Cache(SIZE), "cpu").mode():
        seen = gradient()
    assert torch.equal(seen, gradient())


def test_a_copy_is_known_by_the_operation_that_makes_it(tmp_path: Path) -> None:
    look = Look(Cache(100 * SIZE), "cpu")
    look.counts = True
    x = torch.ones(4, 5)
    with look.mode():
        x.to(torch.bfloat16)
        x.mul(0.5)
        x + torch.tensor(2.0, dtype=torch.float64)
    look.write(tmp_path)
    known = read_cold(tmp_path)
    assert known["copy_", (((4, 5), "c10::BFloat16"), ((4, 5), "float"))][1] == "1"
    assert ("mul", (((4, 5), "float"),)) in known
    assert ("add", (((4, 5), "float"),)) in known


def test_what_has_no_memory_ends_the_look_and_not_the_program() -> None:
    look = Look(Cache(SIZE), "meta")
    look.counts = True
    with look.mode():
        assert (torch.ones(3, device="meta") + 1).shape == (3,)
        assert torch.equal(torch.ones(3) + 1, torch.full((3,), 2.0))
    assert look.is_over
    assert not look._seen


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
    listener = LookingOn(tmp_path / "torch", heard, warnings.append, FIRST)
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
def test_steps_that_the_program_marks_are_looked_at(tmp_path: Path) -> None:
    inside = Inside(Settings(str(tmp_path), caches=FIRST))
    inside.start()
    try:
        for _ in range(FIRST + STEPS):
            with inside.step("mine"):
                torch.ones(4) + 1
    finally:
        inside.stop()
    assert (tmp_path / "torch" / caches.FILE).exists()


@pytest.mark.usefixtures("on_cpu")
def test_a_program_with_a_mode_of_its_own_keeps_it(tmp_path: Path) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

    warnings: list[str] = []
    listener = LookingOn(tmp_path, Heard(), warnings.append, FIRST)
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

    listener = LookingOn(tmp_path, Heard(), pytest.fail, FIRST)
    assert looked_at(listener, FIRST + 1, torch.ones(4)) == [0] * (FIRST + 1)
    assert listener.noted("train")
    monkeypatch.setattr(caches.gpus, "in_use", lambda: True)
    monkeypatch.setattr(caches, "cache_bytes", lambda _: PAGE)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(dynamo, "counters", {"frames": {}})
    assert caches.new_look() is not None
    with torch.utils._python_dispatch.TorchDispatchMode():
        assert caches.new_look() is None
    monkeypatch.setattr(caches, "cache_bytes", lambda _: 0)
    assert caches.new_look() is None
    monkeypatch.setattr(caches, "cache_bytes", lambda _: PAGE)
    monkeypatch.setattr(dynamo, "counters", {"frames": {"ok": 1}})
    assert caches.new_look() is None


MM = Operation(
    "mm", *[json.dumps([[WIDE, WIDE]] * 2), json.dumps([[WIDE, 1]] * 2)], '["float", "float"]', "[]"
)
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
    turns = Turns({key: "01"})
    call = repeating.partial(torch.mm, x, weight)
    calls = turns.of(5, key, call)
    assert len(calls) == 3
    assert all(torch.equal(one(), x @ weight) for one in calls)
    assert all(one.args[0] is x and one.args[1] is not weight for one in calls)
    assert all(one.args[1].stride() == weight.stride() for one in calls)
    lie = [one.args[1].data_ptr() for one in calls]
    assert len(set(lie)) == 3
    turns.taken(key, 4)
    assert [one.args[1].data_ptr() for one in turns.of(5, key, call)] == [*lie[1:], lie[0]]
    assert turns.of(5, ("mm", operands((x, x.t()))), call) == [call]
    assert Turns({key: "00"}).of(5, key, call) == [call]


def test_copies_are_kept_for_one_target_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeating, "cache_bytes", lambda _: SIZE)
    x = torch.rand(WIDE, WIDE)
    keys = [("mm", operands((x, x))), ("add", operands((x, x)))]
    turns, call = Turns(dict.fromkeys(keys, "11")), repeating.partial(torch.add, x, x)
    for target, kept in ((0, 1), (1, 1), (1, 2)):
        turns.of(target, keys[kept - 1], call)
        assert len(turns._copies) == kept
    turns.taken(("mul", ()), 3)


def test_indices_are_never_those_of_another_call() -> None:
    """Another call may be of a shorter table."""
    indices = torch.tensor([5, 6, 7])
    call = repeating.partial(torch.ops.aten.embedding, torch.rand(10, 4), indices)
    key = "embedding", operands(call.args)
    for one in Turns({key: "11"}).of(0, key, call):
        assert one.args[1] is indices
        assert one.args[0] is not call.args[0]


def test_a_copy_lies_in_memory_as_the_other_does() -> None:
    table = torch.arange(24.0).view(4, 6)
    for one in (table[:, 1:3], table.t(), table[0].expand(3, 6), table[::2], torch.zeros(0, 3)):
        other = rotation.copied(one)
        assert torch.equal(other, one)
        assert other.stride() == one.stride()
        assert not one.numel() or other.data_ptr() != one.data_ptr()
    assert size_of([table[0].expand(3, 6)]) == 6 * 4


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
    for first in (5, 0, None):
        assert Settings.from_json(Settings("raw", caches=first).to_json()).caches == first


@pytest.mark.gpu
def test_a_gpu_has_its_cache_looked_at(tmp_path: Path) -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(4096, 4096, device="cuda") for _ in range(8)))
    x, heard = torch.ones(8, 4096, device="cuda"), Heard()
    listener = LookingOn(tmp_path, heard, pytest.fail, FIRST)
    for _ in range(FIRST + STEPS):
        listener.begin("predict")
        with torch.no_grad():
            model(x)
        listener.end()
    (cold,) = {cold for (op, _), cold in read_cold(tmp_path).items() if op == "addmm"}
    assert cold[1:] == "01"
