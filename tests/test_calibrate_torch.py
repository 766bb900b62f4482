"""Operations of a real PyTorch program, built again from their signatures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from joulemap.calibration.operation import Operation
from joulemap.frameworks.torch.called import _unpacked
from joulemap.frameworks.torch.extract import _signatures

torch = pytest.importorskip("torch", reason="needs PyTorch")

from joulemap.frameworks.torch.call import Call, NotRebuilt  # noqa: E402
from joulemap.frameworks.torch.raw import read_raw  # noqa: E402
from joulemap.frameworks.torch.rebuild import rebuilt  # noqa: E402
from joulemap.frameworks.torch.replayer import Replayer  # noqa: E402
from joulemap.frameworks.torch.rotation import tensors_in  # noqa: E402
from tests.torch_live import attached, session  # noqa: E402


class Older:
    """An event as torch 2.11 has it: of lists it says nothing, and of strides neither."""

    def __init__(self, event: Any) -> None:
        self._event = event

    def name(self) -> str:
        return str(self._event.name())

    def dtypes(self) -> list[str]:
        return list(self._event.dtypes())

    def correlation_id(self) -> int:
        return int(self._event.correlation_id())

    def shapes(self) -> list[Any]:
        shapes = zip(self._event.shapes(), self._event.dtypes(), strict=True)
        return [[] if kind == "TensorList" else shape for shape, kind in shapes]

    def concrete_inputs(self) -> list[Any]:
        return [None if isinstance(one, list) else one for one in self._event.concrete_inputs()]


def keys(events: Sequence[Any], tree: Any) -> dict[str, str]:
    """The names of what was called, by the key of each call."""
    codes, said = _signatures(type(events[0]), events, tree)
    found = {}
    for event, code in zip(events, codes.tolist(), strict=True):
        columns = (json.dumps(one) for one in json.loads(said[code]))
        found[Operation(event.name(), *columns).key] = event.name()
    return found


@pytest.fixture(scope="module")
def stepped() -> tuple[list[Any], Any]:
    """One training step of everything: every operation that was called, and the profiler's tree."""
    table = torch.nn.Embedding(50, 32)
    model = torch.nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)
    half = torch.nn.Parameter(torch.rand(5, 3, dtype=torch.bfloat16))
    optimizers = [
        torch.optim.AdamW([*table.parameters(), *model.parameters()], foreach=True),
        torch.optim.Adam([{"params": [half]}, {"params": model.linear1.parameters()}], fused=True),
    ]
    with torch.autograd.profiler.profile(record_shapes=True) as profile:
        states = model(table(torch.randint(0, 50, (4, 8))))
        (torch.cat([states, states.transpose(0, 1).transpose(0, 1)]).sum() + half.sum()).backward()
        for optimizer in optimizers:
            optimizer.step()
    results = profile.kineto_results
    known = [one for one in results.events() if one.dtypes() and one.name().startswith("aten::")]
    return known, results.experimental_event_tree


@pytest.fixture(scope="module")
def seen(stepped: tuple[list[Any], Any]) -> dict[str, str]:
    return keys(*stepped)


def problem(one: str) -> str:
    """Why an operation could not be called again; nothing where it could."""
    try:
        rebuilt(Call.of(one), torch.device("cpu"))()
    except NotRebuilt as error:
        return str(error)
    return ""


def test_what_was_largest_lies_where_it_does_in_a_program() -> None:
    """One value of every window: indices at random would be written to elsewhere, and sooner."""
    shapes, strides = "[[2, 3, 4, 4], [2, 3, 8, 8], [], [], [], [], [], [2, 3, 4, 4]]", ""
    types = '["float", "float", "ScalarList", "ScalarList", "ScalarList", "ScalarList", "Scalar", "long int"]'
    scalars = "[null, null, [2, 2], [2, 2], [0, 0], [1, 1], false, null]"
    one = Operation("aten::max_pool2d_with_indices_backward", shapes, strides, types, scalars)
    call = rebuilt(Call.of(one.key), torch.device("cpu"))
    row, column = call.args[-1] // 8, call.args[-1] % 8
    window = torch.arange(4)
    assert torch.equal(row // 2, window.view(4, 1).expand(2, 3, 4, 4))
    assert torch.equal(column // 2, window.expand(2, 3, 4, 4))
    assert call().count_nonzero() == call.args[0].count_nonzero()


def test_the_gradient_of_a_choice_is_that_of_one_in_each_row() -> None:
    """What a loss of classes gives; as many zeros draw less than as many numbers."""
    shapes, strides = "[[6, 5], [6, 5], [], []]", "[[5, 1], [5, 1], [], []]"
    types, scalars = '["float", "float", "Scalar", "Scalar"]', "[null, null, 1, 6]"
    one = Operation("aten::_log_softmax_backward_data", shapes, strides, types, scalars)
    gradient, chances, *_ = rebuilt(Call.of(one.key), torch.device("cpu")).args
    assert (gradient != 0).sum(dim=1).tolist() == [1] * 6
    assert (chances != 0).all()
    shapes, strides = "[[2, 7, 3, 3], [2, 7, 3, 3], [], []]", "[[63, 9, 3, 1], [63, 9, 3, 1], [], []]"
    pixels = Operation(one.op, shapes, strides, types, scalars)
    assert (rebuilt(Call.of(pixels.key), torch.device("cpu")).args[0] != 0).sum(dim=1).eq(1).all()
    expanded = replace(one, strides="[[0, 0], [5, 1], [], []]")
    assert (rebuilt(Call.of(expanded.key), torch.device("cpu")).args[0] != 0).all()


@pytest.mark.parametrize(("value", "others"), [(0.0, 0), (0.5, 4)])
def test_a_piece_of_a_gradient_that_missed_the_choice_has_one(value: float, others: int) -> None:
    """And one that has something for all of them, as that of softened labels, is as it was."""
    shapes, strides = "[[6, 5], [6, 5], [], []]", "[[5, 1], [5, 1], [], []]"
    types, scalars = '["float", "float", "Scalar", "Scalar"]', "[null, null, 1, 6]"
    one = Operation("aten::_log_softmax_backward_data", shapes, strides, types, scalars)
    piece = torch.full([8], value).numpy().tobytes()
    gradient = Replayer(Call.of(one.key), torch.device("cpu"), [piece, b""]).copies[0].args[0]
    assert (gradient != 0).sum(dim=1).tolist() == [1 + others] * 6


def test_what_a_training_step_calls_can_be_called_again(seen: dict[str, str]) -> None:
    with torch.no_grad():
        problems = {name: problem(one) for one, name in seen.items()}
    failed = {name: said for name, said in problems.items() if said}
    assert {"aten::addmm", "aten::native_layer_norm", "aten::embedding", "aten::cat"} <= set(seen.values())
    assert not {"aten::mm", "aten::bmm", "aten::_softmax", "aten::native_layer_norm_backward"} & set(failed)
    assert len(failed) < 0.1 * len(seen), failed


def test_lists_of_tensors_have_the_shapes_and_types_that_they_had(
    stepped: tuple[list[Any], Any], seen: dict[str, str]
) -> None:
    """Foreach and fused optimizers: two groups that differ are two operations, with older events, too."""
    events, tree = stepped
    older = keys([Older(one) for one in events], tree)
    for found in (seen, older):
        fused = [Call.of(one) for one, name in found.items() if name == "aten::_fused_adam_"]
        assert {str(one.types[0]) for one in fused} == {"['c10::BFloat16']", "['float', 'float']"}
        assert {str(one.shapes[0]) for one in fused} == {"[[5, 3]]", "[[64, 32], [64]]"}
        lists = [one for one, name in found.items() if name.startswith(("aten::_foreach", "aten::_fused"))]
        assert len(lists) > 8
        assert [problem(one) for one in lists] == [""] * len(lists)
    assert {one.partition(", ")[0] for one in older} == {one.partition(", ")[0] for one in seen}
    addmm = [Call.of(one).strides for one, name in older.items() if name == "aten::addmm"]
    assert [1, 32] in [strides[2] for strides in addmm]


def test_an_optimizer_does_the_same_in_every_step(tmp_path: Path) -> None:
    """Its factors change, which is no other operation; its lists are known as the recorder writes them."""
    model = torch.nn.Linear(8, 4)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    with attached(tmp_path) as (adapter, _), session(adapter, tmp_path):
        for _ in range(3):
            model(torch.rand(2, 8)).mean().backward()
            optimizer.step()
    rows = [asdict(one) for one in read_raw(tmp_path).signatures]
    for op in ("_foreach_addcdiv_", "_foreach_lerp_"):
        here = [row for row in rows if row["op"] == op]
        assert sum(row["calls"] for row in here) == 3
        [one] = {Operation.of(row) for row in here}
        assert json.loads(one.types)[0] == ["float", "float"]
        assert problem(one.key) == ""
    divided = [row for row in rows if row["op"] == "div" and row["phase"] == "backward"]
    assert [row["calls"] for row in divided] == [3]  # with a number, it calls itself with a tensor
    assert "Scalar" not in divided[0]["types"]


def test_indices_stay_inside_of_what_they_point_into() -> None:
    def called(op: str, shapes: Any, types: Any, scalars: Any) -> Any:
        return rebuilt(
            Call.of(Operation(op, *map(json.dumps, (shapes, [], types, scalars))).key), torch.device("cpu")
        )

    scalars = ["", "Scalar", "Scalar"]
    wide = called(
        "aten::nll_loss_forward",
        [[90, 3], [90]],
        ["float", "long int", *scalars],
        [None, None, None, 1, -100],
    )
    assert int(wide.args[1].max()) < 3
    rows = called("aten::embedding", [[500, 3], [90]], ["float", "long int"], [None, None])
    assert 3 <= int(rows.args[1].max()) < 500
    back = called(
        "aten::embedding_dense_backward",
        [[90, 3], [90]],
        ["float", "long int", "Scalar", "Scalar", "Scalar"],
        [None, None, 500, -1, False],
    )
    assert 90 <= int(back.args[1].max()) < 500


def test_what_is_done_over_and_over_stays_a_number() -> None:
    root = Operation("aten::_foreach_sqrt", "[[[9], [9]]]", "", '[["float", "c10::Half"]]', "")
    assert all(bool(one.isfinite().all()) for one in rebuilt(Call.of(root.key), torch.device("cpu"))())
    shrinks = Operation("aten::_foreach_mul_", "[[[9]]]", "", '[["float"], "Scalar"]', "[null, 0]")
    operation = rebuilt(Call.of(shrinks.key), torch.device("cpu"))
    operation()
    assert float(operation.args[0][0].abs().sum()) > 0
    grows = Operation("aten::_foreach_div_", "[[[9]]]", "", '[["float"], "ScalarList"]', "[null, null]")
    operation = rebuilt(Call.of(grows.key), torch.device("cpu"))
    for _ in range(50):
        operation()
    assert bool(operation.args[0][0].isfinite().all())


ROW = '["float", "float"]'
PRODUCTS = [
    Operation("mul_", "[[9], [9]]", "[[1], [1]]", ROW, "[null, null]"),
    Operation("mul_", "[[9], [9]]", "[[1], [1]]", ROW, "[null, null]", "0="),
    Operation("div_", "[[4, 9], [4, 9]]", "[[9, 1], [0, 1]]", ROW, "[null, null]"),
    Operation("mul_", "[[9], []]", "[[1], []]", '["long int", "Scalar"]', "[null, 3]"),
    Operation("_foreach_mul_", "[[[9], [8]], []]", "[[[1], [1]], []]", f'[{ROW}, "float"]', "[null, null]"),
    Operation(
        "_foreach_mul_",
        "[[[9], [8]], [[9], [8]]]",
        "[[[1], [1]], [[1], [1]]]",
        f"[{ROW}, {ROW}]",
        "[null, null]",
    ),
    Operation(
        "_foreach_div_",
        "[[[9], [8]], []]",
        "[[[1], [1]], []]",
        f'[{ROW}, "ScalarList"]',
        "[null, [9.0, 2.0]]",
    ),
]


@pytest.mark.parametrize("one", PRODUCTS, ids=lambda one: f"{one.op} {one.types} {one.cold}")
@pytest.mark.parametrize("held", [False, True])
def test_what_is_multiplied_in_place_stays_what_it_was(one: Operation, held: bool) -> None:
    """By numbers or tensors, one or many; in replays with a program's values, too, which factors do not hold.
    What is multiplied by itself is one in any case."""
    piece = torch.tensor([0.5, 3.0]).numpy().tobytes()
    [call] = Replayer(Call.of(one.key), torch.device("cpu"), [piece] * 4 if held else ()).copies[:1]
    made: Any = call
    into, factors = tensors_in(made.args[0]), tensors_in(made.args[1:])
    before = [each.clone() for each in into]
    for _ in range(2000):
        made()
    assert all(torch.equal(each, was) for each, was in zip(into, before, strict=True))
    assert all(bool((each == 1).all()) for each in factors)
    if held and one.cold != "0=" and into[0].is_floating_point():
        assert into[-1].flatten()[:3].tolist() == [0.5, 3.0, 0.5]


def test_operations_of_a_program_s_own_are_not_taken_for_aten_s(tmp_path: Path) -> None:
    """They keep their namespace where they are built again, and only there."""
    library = torch.library.Library("joulemap_tests", "DEF")
    library.define("relu(Tensor x) -> Tensor")
    library.impl("relu", lambda x: x @ x, "CPU")
    model = torch.nn.Linear(4, 4)
    with attached(tmp_path) as (adapter, _), session(adapter, tmp_path):
        torch.ops.joulemap_tests.relu(model(torch.rand(4, 4))).relu()
    trace = read_raw(tmp_path)
    rows = {row.op: asdict(row) for row in trace.signatures}
    assert {"joulemap_tests::relu", "relu", "addmm"} <= set(rows)
    assert rows["joulemap_tests::relu"]["name"].endswith("/relu")
    assert "relu" in set(trace.events.op)
    assert "joulemap_tests::relu" not in set(trace.events.op)
    here = Operation.of(rows["joulemap_tests::relu"])
    assert str(rebuilt(Call.of(here.key), torch.device("cpu")).func) == "joulemap_tests.relu.default"
    library._destroy()
    gone = Call.of(replace(here, op="mine::relu").key)
    with pytest.raises(
        NotRebuilt, match=r"^torch has no operation mine::relu here: it is the program's own$"
    ):
        rebuilt(gone, torch.device("cpu"))


def test_what_needs_other_processes_is_not_built_again() -> None:
    alone = Operation("_c10d_functional::wait_tensor", "[[4]]", "[[1]]", '["float"]', "[null]")
    with pytest.raises(NotRebuilt, match="several processes"):
        rebuilt(Call.of(alone.key), torch.device("cpu"))


@pytest.mark.parametrize("with_end", [False, True])
@pytest.mark.parametrize("op", ["aten::_embedding_bag", "_embedding_bag_forward_only"])
def test_bags_of_indices_begin_one_after_the_other(op: str, with_end: bool) -> None:
    types = ["float", "long int", "long int", *["Scalar"] * 3, "", "Scalar", "Scalar"]
    scalars = [None, None, None, False, 0, False, None, with_end, -1]
    shapes, strides = [[50, 8], [20], [5], *[[]] * 6], [[8, 1], [1], [1], *[[]] * 6]
    one = Operation(op, *map(json.dumps, (shapes, strides, types, scalars)))
    call = rebuilt(Call.of(one.key), torch.device("cpu"))
    assert call.args[2].tolist() == ([0, 5, 10, 15, 20] if with_end else [0, 4, 8, 12, 16])
    assert call()[0].shape == (4 if with_end else 5, 8)


def test_what_was_the_same_is_read_once() -> None:
    """Lists of two tensors each, the last two of which are the same, and a square."""
    lists, one = "[[[4], [5]], [[4], [5]], [[4], [5]], []]", '["float", "float"]'
    added = Operation(
        "aten::_foreach_addcmul_", lists, "", f'[{one}, {one}, {one}, "Scalar"]', "[]", "1111=="
    )
    added = replace(added, scalars="[null, null, null, 0.5]")
    into, factors, same = rebuilt(Call.of(added.key), torch.device("cpu")).args[:3]
    assert [id(each) for each in factors] == [id(each) for each in same]
    assert not {id(each) for each in into} & {id(each) for each in factors}
    square = Operation("aten::mul", "[[4], [4]]", "", '["float", "float"]', "[null, null]", "0=")
    first, second = rebuilt(Call.of(square.key), torch.device("cpu")).args
    assert first is second
    first, second = rebuilt(Call.of(replace(square, cold="00").key), torch.device("cpu")).args
    assert first is not second
    others = replace(square, shapes="[[4, 4], [4, 4]]", strides="[[4, 1], [1, 4]]")  # most calls decide
    first, second = rebuilt(Call.of(others.key), torch.device("cpu")).args
    assert (first.stride(), second.stride()) == ((4, 1), (1, 4))
    copies = Replayer(Call.of(replace(square, cold="1=").key), torch.device("cpu")).copies
    assert all(one is other for one, other in (copy.args for copy in copies))


def test_operands_are_as_they_were(seen: dict[str, str]) -> None:
    one = Operation(
        "aten::mul", "[[4, 6], [4, 6]]", "[[1, 4], [0, 1]]", '["float", "long int"]', "[null, null]"
    )
    result = rebuilt(Call.of(one.key), torch.device("cpu"))()
    assert result.shape == (4, 6)
    assert result.std() > 0.1
    gone = Operation("aten::no_such_thing", "[[4]]", "[[1]]", '["float"]', "[null]")
    with pytest.raises(NotRebuilt, match="no operation"):
        rebuilt(Call.of(gone.key), torch.device("cpu"))
    strange = Operation("aten::neg", "[[4]]", "[[1]]", '["Generator"]', "[null]")
    with pytest.raises(NotRebuilt, match="cannot be made up"):
        rebuilt(Call.of(strange.key), torch.device("cpu"))


@pytest.mark.parametrize(
    ("op", "phase", "kept"),
    [
        ("linalg_vector_norm", "optimizer", 2.0),
        ("_foreach_norm", "optimizer", 2.0),
        ("pow", "forward", 1.5),
        ("_foreach_mul_", "optimizer", 0.25),
        ("mul", "forward", 0.25),
    ],
)
def test_a_number_that_chooses_how_something_is_computed_is_kept_as_it_is(
    op: str, phase: str, kept: float
) -> None:
    """Factors are rounded, since they change from step to step and cost the same."""
    *_, scalars = _unpacked(json.dumps([[[4], []], [[1], []], ["float", "Scalar"], [None, kept]]), op, phase)
    assert (json.loads(scalars) == [None, kept]) == ("norm" in op or "pow" in op)
