"""Which operands come from memory in a program: told by the profiler, with a CPU in the place of a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="needs PyTorch")

from joulemap.calibration.operation import Operation  # noqa: E402
from joulemap.errors import JoulemapError  # noqa: E402
from joulemap.frameworks.adapter import TracerBusy  # noqa: E402
from joulemap.frameworks.torch import profiler, repeating, rotation  # noqa: E402
from joulemap.frameworks.torch.caches import PAGE, Cache, cold_of, read_cold  # noqa: E402
from joulemap.frameworks.torch.rebuild import Call, rebuilt  # noqa: E402
from joulemap.frameworks.torch.repeating import Repeater, Turns, operands  # noqa: E402
from joulemap.frameworks.torch.replayer import Replayer  # noqa: E402
from joulemap.frameworks.torch.rotation import copies, size_of, tensors_in, with_tensors  # noqa: E402
from joulemap.frameworks.torch.touches import FILE, write_touches  # noqa: E402
from joulemap.recorder import look  # noqa: E402
from joulemap.recorder.inside import Inside  # noqa: E402
from joulemap.recorder.look import LookingOn  # noqa: E402
from joulemap.recorder.settings import Settings  # noqa: E402

CPU = torch.device("cpu")
FIRST = 3
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
    whole = torch.zeros(4 * PAGE)
    assert rotation.reach(whole[: 2 * PAGE : 2]) == 2 * PAGE - 1
    assert rotation.reach(torch.zeros(3, 1).expand(3, 100)) == 3
    assert rotation.reach(torch.zeros(0, 3)) == 0


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
    assert cold["addmm", key][1:] == cold_of("addmm", key, cold)[1:] == "01"
    assert cold["tanh", (through,)] == "0"
    assert cold["linear", (through, weight, ((WIDE,), "float"))][:2] == "01"
    assert cold_of("tanh", (weight,), cold) == ""
    assert set("".join(seen(tmp_path, 100 * SIZE, step).values())) == {"0"}


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


def test_most_calls_decide_over_all_looks(tmp_path: Path) -> None:
    """One look finds it in the cache, two do not; one was not written to its end."""
    for number, size in enumerate((10 * PAGE, 0, 0, 0)):
        folder = tmp_path / str(number)
        folder.mkdir()
        operation = ["aten::relu", 1, 2, [[PAGE, PAGE, [4], "float"], [0, 8, [2], "float"]]]
        said = json.dumps({"size": size, "operations": [operation], "allocations": []})
        (folder / FILE).write_text(said[: -5 if number == 3 else None])
    assert read_cold(tmp_path) == {("relu", (((4,), "float"), ((2,), "float"))): "10"}


class Heard:
    """A listener that counts."""

    def __init__(self) -> None:
        self.open = 0

    def begin(self, label: str) -> None:
        self.open += 1

    def end(self) -> None:
        self.open -= 1

    cancel = end

    def is_open(self) -> bool:
        return bool(self.open)

    def noted(self, label: str) -> bool:
        return True

    def compiled(self) -> None: ...
    def rename(self, label: str) -> None: ...


class Eye:
    """An onlooker that writes down what it is told; ``busy`` times it is not free."""

    def __init__(self, busy: int = 0, anything: bool = True) -> None:
        self.busy, self.anything = busy, anything
        self.said: list[str] = []

    def look(self, folder: Path) -> bool:
        self.busy -= 1
        if self.busy >= 0:
            raise TracerBusy("not now")
        self.said.append(folder.name)
        return self.anything

    def stop(self) -> None:
        self.said.append("stop")

    def drop(self) -> None:
        self.said.append("drop")


def looking(eye: Any, tmp_path: Path, warn: Callable[[str], None] = pytest.fail) -> LookingOn:
    return LookingOn(tmp_path, Heard(), lambda: eye, warn, FIRST)


def steps(listener: LookingOn, count: int, label: str = "train") -> None:
    for _ in range(count):
        listener.begin(label)
        listener.begin("inner")
        listener.end()
        listener.end()


def test_a_step_of_each_label_is_looked_at(tmp_path: Path) -> None:
    eye = Eye()
    listener = looking(eye, tmp_path)
    steps(listener, FIRST)
    assert eye.said == []
    assert not listener.noted("train")
    steps(listener, 3)
    assert eye.said == ["look-0", "stop"]
    assert listener.noted("train")
    assert not listener.noted("test")
    for number in range(look.MOST):
        steps(listener, FIRST + 2, f"kind {number}")
    assert eye.said == [word for number in range(look.MOST) for word in (f"look-{number}", "stop")]


def test_what_is_no_step_is_not_looked_at(tmp_path: Path) -> None:
    eye = Eye()
    listener = looking(eye, tmp_path)
    steps(listener, FIRST)
    listener.begin("train")
    listener.cancel()
    assert eye.said == ["look-0", "drop"]
    steps(listener, 1)
    assert eye.said[2:] == ["look-0", "stop"]


def test_somebody_who_is_tracing_has_precedence(tmp_path: Path) -> None:
    eye = Eye(busy=2)
    steps(looking(eye, tmp_path), FIRST + 5)
    assert eye.said == ["look-0", "stop"]
    always = looking(Eye(busy=1000), tmp_path)
    steps(always, FIRST + look.TRIES + 1)
    assert always.noted("train")


def test_there_is_nothing_to_look_at_without_a_gpu(tmp_path: Path) -> None:
    eye = Eye(anything=False)
    listener = looking(eye, tmp_path)
    steps(listener, FIRST + 5)
    assert eye.said == ["look-0"]
    assert listener.noted("anything")
    steps(looking(None, tmp_path), FIRST + 5)


@pytest.mark.parametrize("error", [ValueError("odd"), JoulemapError("odd")])
def test_what_goes_wrong_is_said_and_no_more(tmp_path: Path, error: Exception) -> None:
    class Blind(Eye):
        def stop(self) -> None:
            raise error

    said: list[str] = []
    listener = looking(Blind(), tmp_path, said.append)
    steps(listener, FIRST + 5)
    (warning,) = said
    assert warning.endswith("odd")
    listener.stop()
    assert listener.noted("anything")


def test_the_profiler_looks_at_steps_that_the_program_marks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same session as of any other step, whose events are left out."""
    monkeypatch.setattr(profiler, "_cached", lambda: ("cpu", SIZE))
    inside = Inside(Settings(str(tmp_path), caches=FIRST))
    inside.start()
    model, x = chain(), torch.ones(2, WIDE)
    try:
        for _ in range(FIRST + 2):
            with inside.step("mine"):
                model(x)
                torch.autograd.profiler.record_function("theirs")
    finally:
        inside.stop()
    (found,) = tmp_path.rglob(FILE)
    assert found.parent == tmp_path / "torch" / "look-0"
    assert not (found.parent / "events.npz").exists()
    assert "addmm" in {op for op, _ in read_cold(tmp_path / "torch")}
    assert not torch.autograd._profiler_enabled()


def test_a_look_says_nothing(tmp_path: Path) -> None:
    """Neither of its own, nor torch of memory that was there before."""
    program = """if True:
        import sys
        from pathlib import Path
        import torch
        from joulemap.frameworks.torch import profiler
        from joulemap.recorder.inside import Inside
        from joulemap.recorder.settings import Settings
        profiler._cached = lambda: ("cpu", 1 << 20)
        before = [torch.ones(1000) for _ in range(900)]
        inside = Inside(Settings(sys.argv[1], caches=0))
        inside.start()
        for label in ("one", "other"):
            with inside.step(label):
                del before[:400]
                torch.ones(3) + 1
        inside.stop()
        print(len(list(Path(sys.argv[1]).rglob("touches.json"))), "looks")
    """
    ran = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "2 looks\n", "")


def test_a_profiler_of_the_programs_ends_a_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiler, "_cached", lambda: ("cpu", SIZE))
    inside = Inside(Settings(str(tmp_path), caches=0))
    inside.start()
    try:
        with inside.step("mine"):
            assert torch.autograd._profiler_enabled()
            with torch.profiler.profile() as theirs:
                torch.ones(3) + 1
    finally:
        inside.stop()
    assert any(one.key == "aten::add" for one in theirs.key_averages())
    assert not list(tmp_path.rglob(FILE))


def test_without_a_gpu_there_is_no_cache() -> None:
    assert profiler._cached() == ("", 0) or torch.cuda.is_initialized()


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
    calls = turns.next(key, call, 3)
    assert all(torch.equal(one(), x @ weight) for one in calls)
    assert all(one.args[0] is x and one.args[1] is not weight for one in calls)
    assert all(one.args[1].stride() == weight.stride() for one in calls)
    lie = [one.args[1].data_ptr() for one in calls]
    assert len(set(lie)) == 3
    assert [one.args[1].data_ptr() for one in turns.next(key, call, 4)] == [*lie, lie[0]]
    assert [one.args[1].data_ptr() for one in turns.next(key, call, 2)] == lie[1:]
    assert turns.next(("mm", operands((x, x.t()))), call, 2) == [call] * 2
    assert Turns({key: "00"}).next(key, call, 1) == [call]


def test_calls_that_lie_otherwise_have_copies_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same shapes, of a square matrix and its transpose."""
    monkeypatch.setattr(repeating, "cache_bytes", lambda _: SIZE)
    x, weight = torch.rand(2, WIDE), torch.rand(WIDE, WIDE)
    key = "mm", operands((x, weight))
    turns = Turns({key: "01"})
    for one in (weight, weight.t()):
        for call in turns.next(key, repeating.partial(torch.mm, x, one), 2):
            assert torch.equal(call(), x @ one)
            assert call.args[1].stride() == one.stride()


def test_where_memory_is_scarce_nothing_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.rand(WIDE, WIDE)
    key = "mm", operands((x, x))
    for cache, free in ((SIZE, SIZE), (SIZE // 10, 100 * SIZE)):
        monkeypatch.setattr(repeating, "cache_bytes", lambda _, cache=cache: cache)
        monkeypatch.setattr(repeating, "free_bytes", lambda _, free=free: free)
        for one in Turns({key: "11"}).next(key, repeating.partial(torch.mm, x, x), 2):
            assert one.args[0] is one.args[1] is x


def test_indices_are_never_those_of_another_call() -> None:
    """Another call may be of a shorter table."""
    indices = torch.tensor([5, 6, 7])
    call = repeating.partial(torch.ops.aten.embedding, torch.rand(10, 4), indices)
    key = "embedding", operands(call.args)
    for one in Turns({key: "11"}).next(key, call, 2):
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
        repeater.target = -1
        repeater.take_counts()
        assert not repeater._turns._copies
    finally:
        repeater.remove()
    assert not repeater._turns._copies


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_tensor_without_a_shape_is_no_target() -> None:
    given = operands((torch.ones(3),))
    repeater = Repeater("cpu", {"relu": {given: 0}}, {0: 0.0}, {})
    nested = torch.nested.nested_tensor([torch.rand(2, 3), torch.rand(4, 3)])
    repeater.install()
    try:
        assert torch.relu(nested).is_nested
        assert torch.relu(torch.ones(3)).sum() == 3
        assert repeater.take_counts() == ({0: 1}, {})
    finally:
        repeater.remove()


def test_whether_to_look_is_told_to_the_program() -> None:
    for first in (5, 0, None):
        assert Settings.from_json(Settings("raw", caches=first).to_json()).caches == first


@pytest.mark.gpu
def test_a_gpu_has_its_cache_looked_at(tmp_path: Path) -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(4096, 4096, device="cuda") for _ in range(8)))
    x = torch.ones(8, 4096, device="cuda")
    inside = Inside(Settings(str(tmp_path), caches=FIRST))
    inside.start()
    try:
        for _ in range(FIRST + 2):
            with inside.step("mine"), torch.inference_mode():
                model(x).relu()
    finally:
        inside.stop()
    cold = read_cold(tmp_path / "torch")
    assert {found[1:] for (op, _), found in cold.items() if op == "addmm"} == {"01"}
    assert {found for (op, _), found in cold.items() if op == "relu"} == {"0"}
