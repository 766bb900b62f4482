"""Operands as warm as in the program when an operation is executed again, by itself and in place."""

from __future__ import annotations

import json
from functools import partial

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

from joulemap.calibration.operation import Operation  # noqa: E402
from joulemap.frameworks.torch import again, rotation  # noqa: E402
from joulemap.frameworks.torch.again import Thread, Turns  # noqa: E402
from joulemap.frameworks.torch.call import Call  # noqa: E402
from joulemap.frameworks.torch.inputs import reach  # noqa: E402
from joulemap.frameworks.torch.rebuild import rebuilt  # noqa: E402
from joulemap.frameworks.torch.repeating import Repeater, operands  # noqa: E402
from joulemap.frameworks.torch.replayer import Replayer  # noqa: E402
from joulemap.frameworks.torch.rotation import copies, size_of, tensors_in, with_tensors  # noqa: E402

CPU = torch.device("cpu")
WIDE = 1024
SIZE = 4 * WIDE * WIDE
"""Of the weights of a layer, in bytes: 32 pages."""


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
    monkeypatch.setattr("joulemap.frameworks.torch.replayer.MAKING_S", 60.0)  # on a busy machine, too
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
    monkeypatch.setattr(again, "cache_bytes", lambda _: SIZE)
    x, weight = torch.rand(2, WIDE), torch.rand(WIDE, WIDE).t()
    key = "mm", operands((x, weight))
    turns = Turns({key: "01"})
    call = partial(torch.mm, x, weight)
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
    monkeypatch.setattr(again, "cache_bytes", lambda _: SIZE)
    x, weight = torch.rand(2, WIDE), torch.rand(WIDE, WIDE)
    key = "mm", operands((x, weight))
    turns = Turns({key: "01"})
    for one in (weight, weight.t()):
        for call in turns.next(key, partial(torch.mm, x, one), 2):
            assert torch.equal(call(), x @ one)
            assert call.args[1].stride() == one.stride()


def test_where_memory_is_scarce_nothing_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.rand(WIDE, WIDE)
    key = "mm", operands((x, x))
    for cache, free in ((SIZE, SIZE), (SIZE // 10, 100 * SIZE)):
        monkeypatch.setattr(again, "cache_bytes", lambda _, cache=cache: cache)
        monkeypatch.setattr(again, "free_bytes", lambda _, free=free: free)
        turns = Turns({key: "11"})
        for one in turns.next(key, partial(torch.mm, x, x), 2):
            assert one.args[0] is one.args[1] is x
        later = torch.rand(WIDE, WIDE)
        assert turns.next(key, partial(torch.mm, later, later), 1)[0].args == (later, later)


def test_calls_of_many_sizes_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(again, "cache_bytes", lambda _: SIZE)
    turns = Turns({"kernel": "1"})
    given = [torch.rand(rows, WIDE) for rows in range(1, 21)]
    own = [turns.next("kernel", partial(torch.relu, x), 1)[0].args[0] is x for x in given]
    assert own == [number >= again.KINDS for number in range(len(given))]


def test_indices_are_never_those_of_another_call() -> None:
    """Another call may be of a shorter table."""
    indices = torch.tensor([5, 6, 7])
    call = partial(torch.ops.aten.embedding, torch.rand(10, 4), indices)
    key = "embedding", operands(call.args)
    for one in Turns({key: "11"}).next(key, call, 2):
        assert one.args[1] is indices
        assert one.args[0] is not call.args[0]


def test_a_tensor_reaches_from_its_first_element_to_its_last() -> None:
    whole = torch.zeros(40)
    for one, many in ((whole[:20:2], 19), (torch.zeros(3, 1).expand(3, 100), 3), (torch.zeros(0, 3), 0)):
        assert reach(one.shape, one.stride()) == many


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
    monkeypatch.setattr(again, "cache_bytes", lambda _: SIZE)
    x, weight = torch.rand(2, WIDE), torch.rand(WIDE, WIDE)
    given = operands((x, weight))
    repeater = Repeater("cpu", {"mm": {given: 0}}, {0: 0.0}, {("mm", given): "01"}, Thread())
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
    repeater = Repeater("cpu", {"relu": {given: 0}}, {0: 0.0}, {}, Thread())
    nested = torch.nested.nested_tensor([torch.rand(2, 3), torch.rand(4, 3)])
    repeater.install()
    try:
        assert torch.relu(nested).is_nested
        assert torch.relu(torch.ones(3)).sum() == 3
        assert repeater.take_counts() == ({0: 1}, {})
    finally:
        repeater.remove()
