"""Whole numbers that an operation is replayed with: indices lie where they may, or it is left out; others are
made up like any numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

from joulemap.frameworks.torch.call import Call, NotRebuilt  # noqa: E402
from joulemap.frameworks.torch.fitting import FITTED  # noqa: E402
from joulemap.frameworks.torch.operands import made_up  # noqa: E402
from joulemap.frameworks.torch.pointing import UNKNOWN, bounds  # noqa: E402
from joulemap.frameworks.torch.rebuild import rebuilt  # noqa: E402

from .test_calibrate_overloads import called  # noqa: E402

CPU = torch.device("cpu")
F = torch.nn.functional

POINTING = {
    *("index", "indices", "target", "targets", "offsets", "lengths", "input_lengths", "target_lengths"),
    *("batch_sizes", "sorter", "repeats", "pivots", "LU_pivots", "maximum_indices", "offset2bag", "bag_size"),
    *("sorted_indices", "unsorted_indices", "tensor_indices_or_sections", "compressed_idx", "plain_idx"),
    *("crow_indices", "col_indices", "ccol_indices", "row_indices", "compressed_indices", "plain_indices"),
    *(
        "cum_seq_q",
        "cum_seq_k",
        "cu_seqlens_q",
        "cu_seqlens_k",
        "seqlen_k",
        "seqused_k",
        "block_table",
        "offs",
    ),
    *("nested_size", "nested_strides", "cpu_nested_shape_example", "min_seqlen", "max_seqlen", "shape"),
    *("meta", "mat1_meta", "col_offsets", "col_offsets_ih", "col_offsets_hh"),
}
"""What PyTorch's schemas call arguments that say where something is, or how much of it there is."""
OF_VALUES = {
    *("mse_loss", "mse_loss_backward", "l1_loss", "smooth_l1_loss", "smooth_l1_loss_backward", "huber_loss"),
    *(
        "huber_loss_backward",
        "soft_margin_loss",
        "soft_margin_loss_backward",
        "margin_ranking_loss",
        "kl_div",
    ),
    *("binary_cross_entropy", "binary_cross_entropy_backward", "binary_cross_entropy_with_logits"),
    *("poisson_nll_loss", "hinge_embedding_loss", "cosine_embedding_loss"),
}
ALONG = {
    *("gather", "scatter", "scatter_add", "scatter_reduce", "index_select", "index_add", "index_copy"),
    *("index_fill", "index_reduce", "take_along_dim", "gather_backward", "_gather_sparse_backward"),
    *("index_select_backward", "value_selecting_reduction_backward", "cummaxmin_backward", "searchsorted"),
    *("_cummax_helper", "_cummin_helper"),
}
CLASSES = {
    *("nll_loss", "nll_loss_nd", "nll_loss_forward", "nll_loss_backward", "cross_entropy_loss", "nll_loss2d"),
    *("nll_loss2d_forward", "nll_loss2d_backward", "multi_margin_loss", "multi_margin_loss_backward"),
}
ROWS = {
    *("embedding", "embedding_backward", "embedding_dense_backward", "embedding_sparse_backward"),
    *("embedding_renorm", "embedding_bag", "_embedding_bag", "_embedding_bag_forward_only"),
    *("_embedding_bag_backward", "_embedding_bag_dense_backward", "_embedding_bag_sparse_backward"),
    "_embedding_bag_per_sample_weights_backward",
}
"""How far indices go, where a table has 5 rows of 7 and the dimension is the last."""
SCHEMAS = {
    f"{one.name}.{one.overload_name}".strip("."): one
    for one in torch._C._jit_get_all_schemas()
    if one.name.startswith("aten::") and not one.name.endswith("_set_item")
}
SAID = [
    (name, argument.name)
    for name, one in SCHEMAS.items()
    for argument in one.arguments
    if argument.name in POINTING and "Tensor" in str(argument.type) and not argument.is_out
]


def allowed(op: str, argument: str) -> tuple[int, int] | None:
    """From where to where such indices go; (0, 1) where other operands say it, None where nobody knows."""
    name = op.rstrip("_")
    if argument in ("index", "indices", "target", "maximum_indices", "sorter"):
        if name in ALONG | CLASSES:
            return 0, 7
        if name in ROWS:
            return 0, 5
        if name in ("take", "put"):
            return 0, 35
    if name in ("lu_solve", "linalg_lu_solve", "lu_unpack"):
        return 1, 6
    return (0, 1) if op in FITTED else None


@pytest.mark.parametrize(("name", "argument"), SAID)
def test_what_points_somewhere_stays_inside_or_is_left_out(name: str, argument: str) -> None:
    """Of every operation of PyTorch, by what it calls its arguments."""
    schema = SCHEMAS[name]
    op, numbers = schema.name.removeprefix("aten::"), {"dim": 1, "num_weights": 5}
    sizes = [[5, 7] if "List" in str(one.type) else numbers.get(one.name, 0) for one in schema.arguments]
    names = [one.name for one in schema.arguments]
    many = len(names)
    call = Call("", schema.name, [[5, 7]] * many, [], ["long int"] * many, sizes, names=names)
    expected = allowed(op, argument)
    if op in OF_VALUES:
        assert bounds(call, names.index(argument), "long int") is None
    elif expected is None:
        with pytest.raises(NotRebuilt, match=f"^{UNKNOWN}: {argument}$"):
            bounds(call, names.index(argument), "long int")
    else:
        assert bounds(call, names.index(argument), "long int") == expected


def test_there_are_hundreds_of_them() -> None:
    assert len(SAID) > 300


X, FEW = torch.randn(64, 200), torch.randn(40, 6)
WHOLE, FLAGS = torch.randint(0, 9, (64, 200)), X > 0
PICTURES, ROOMS = torch.randn(2, 3, 18, 18), torch.randn(2, 3, 8, 8, 8)
CLASS = torch.randint(0, 6, (40,))
LABELS = torch.randint(1, 12, (24, 5))
TABLE = torch.nn.Parameter(torch.randn(300, 16))


def again(op: str, program: Callable[[], Any]) -> Any:
    """The last call of an operation by a program, built again."""
    keys = [key for name, key in called(program) if name == f"aten::{op}"]
    return rebuilt(Call.of(keys[-1]), CPU)


def given(made: Any) -> dict[str, Any]:
    """What a call was given, by name."""
    declared = [one.name for one in made.func._schema.arguments]
    return {**dict(zip(declared, made.args, strict=False)), **made.keywords}


def backward(program: Callable[[Any], Any], start: Any) -> Callable[[], None]:
    def trained() -> None:
        program(start.clone().requires_grad_()).sum().backward()

    return trained


@pytest.mark.parametrize(
    ("program", "rows"),
    [
        (lambda x: x.topk(2)[0], 200),
        (lambda x: x.topk(2, dim=0)[0], 64),
        (lambda x: x.max(1)[0], 200),
        (lambda x: x.min(0)[0], 64),
        (lambda x: x.sort()[0], 200),
        (lambda x: x.median(0)[0], 64),
        (lambda x: x.kthvalue(3, 1)[0], 200),
        (lambda x: x.mode(1)[0], 200),
        (lambda x: x[:3, :4].max(0)[0], 3),
    ],
)
def test_gradients_go_to_where_values_may_have_been_selected(program: Any, rows: int) -> None:
    indices = [again("value_selecting_reduction_backward", backward(program, X)).args[2] for _ in range(20)]
    most = max(int(one.max()) for one in indices)
    assert 0.6 * rows < most < rows


def test_gradients_go_to_where_the_largest_so_far_may_have_been() -> None:
    for dimension, rows in ((0, 64), (1, 200)):
        run = backward(lambda x, at=dimension: x.cummax(at)[0], X)
        assert 0.9 * rows < int(again("cummaxmin_backward", run).args[2].max()) < rows


@pytest.mark.parametrize(
    ("op", "program", "start"),
    [
        ("max_pool2d_with_indices_backward", lambda x: F.max_pool2d(x, 3, 2, 1), PICTURES),
        ("max_pool3d_with_indices_backward", lambda x: F.max_pool3d(x, 2), ROOMS),
        ("adaptive_max_pool2d_backward", lambda x: F.adaptive_max_pool2d(x, 5), PICTURES),
        ("adaptive_max_pool2d_backward", lambda x: F.adaptive_max_pool2d(x, 5), PICTURES[0]),
        ("adaptive_max_pool3d_backward", lambda x: F.adaptive_max_pool3d(x, (2, 3, 4)), ROOMS),
        ("fractional_max_pool2d_backward", lambda x: F.fractional_max_pool2d(x, 2, 7), PICTURES),
        ("fractional_max_pool2d_backward", lambda x: F.fractional_max_pool2d(x, 2, 7), PICTURES[0]),
        ("fractional_max_pool3d_backward", lambda x: F.fractional_max_pool3d(x, 2, 4), ROOMS),
    ],
)
def test_gradients_of_pools_go_to_the_largest_of_each_window(op: str, program: Any, start: Any) -> None:
    made = again(op, backward(program, start))
    whole, indices = made.args[1], made.args[-1]
    ends = -2 if "2d" in op else -3
    found = whole.flatten(ends).gather(-1, indices.flatten(ends))
    assert found.mean() > whole.mean() + 0.5  # by chance it would be the mean
    assert len(indices.flatten(ends)[..., 0, :].unique()) >= 0.4 * indices[0, 0].numel()
    assert made().shape == start.shape


@pytest.mark.parametrize(
    ("op", "start", "pool", "back"),
    [
        ("max_unpool2d", PICTURES, F.max_pool2d, F.max_unpool2d),
        ("max_unpool3d", ROOMS, F.max_pool3d, F.max_unpool3d),
    ],
)
def test_what_was_pooled_goes_back_to_its_own_part_of_the_whole(
    op: str, start: Any, pool: Any, back: Any
) -> None:
    made = again(op, lambda: back(*pool(start, 2, return_indices=True), 2))
    indices = made.args[1].flatten(2)
    assert all(len(plane.unique()) == plane.numel() for plane in indices.flatten(0, 1))
    assert int(indices.max()) > 0.9 * start[0, 0].numel()
    assert made().shape == start.shape


def test_losses_by_margins_have_classes_for_targets() -> None:
    run = backward(lambda x: F.multi_margin_loss(x, CLASS), FEW)
    for op, place in (("multi_margin_loss", 1), ("multi_margin_loss_backward", 2)):
        assert int(again(op, run).args[place].max()) == 5
    several = torch.tensor([[1, 4, -1, 2, 2, 2]]).repeat(40, 1)
    run = backward(lambda x: F.multilabel_margin_loss(x, several), FEW)
    for op, place in (("multilabel_margin_loss_forward", 1), ("multilabel_margin_loss_backward", 2)):
        made = again(op, run)
        target = made.args[place]
        assert all(len(row[:3].unique()) == 3 for row in target)
        assert bool(((target[:, :3] >= 0) & (target[:, :3] < 6) & (target[:, 3:] == -1)).all())
    assert made.args[4].equal(torch.zeros(40, 6).scatter(1, target[:, :3], 1.0))


def heard(batch: int, blank: int = 0) -> Callable[[], None]:
    """A program that learns what is spoken: 40 steps, 12 classes."""
    labels = LABELS.repeat(2, 1)[:batch] - (LABELS.repeat(2, 1)[:batch] <= blank).long()
    steps, each = torch.tensor([40] * batch), torch.tensor([5] * batch)
    return backward(
        lambda x: F.ctc_loss(x.log_softmax(-1), labels, steps, each, blank), torch.randn(40, batch, 12)
    )


@pytest.mark.parametrize("batch", [24, 34])
@pytest.mark.parametrize("op", ["ctc_loss", "_ctc_loss", "_ctc_loss_backward"])
@pytest.mark.parametrize("blank", [0, 5])
def test_what_is_spoken_has_letters_and_lengths(batch: int, op: str, blank: int) -> None:
    """Of more than 30 torch does not record how long each is."""
    made = again(op, heard(batch, blank=blank))
    known = given(made)
    assert set(known["targets"].unique().tolist()) == set(range(12)) - {blank}
    assert list(known["input_lengths"]) == [40] * batch
    assert list(known["target_lengths"]) == [5] * batch
    found = made()
    assert bool((found[0] if isinstance(found, tuple) else found).isfinite().all())


def test_what_is_spoken_may_be_in_one_row_and_of_several_lengths() -> None:
    lengths = [3, 9, 4] * 11
    labels = torch.randint(1, 12, (sum(lengths),))
    run = backward(
        lambda x: F.ctc_loss(x.log_softmax(-1), labels, [40] * 33, lengths), torch.randn(40, 33, 12)
    )
    made = again("_ctc_loss_backward", run)
    known = given(made)
    assert sum(known["target_lengths"]) == sum(lengths)
    assert max(known["target_lengths"]) - min(known["target_lengths"]) <= 1
    assert bool(made().isfinite().all())
    shorter = backward(
        lambda x: F.ctc_loss(x.log_softmax(-1), LABELS, [40] * 24, [4] * 24), torch.randn(40, 24, 12)
    )
    assert given(again("_ctc_loss_backward", shorter))["target_lengths"] == [4] * 24


def test_labels_for_cudnn_lie_with_their_lengths() -> None:
    """It takes them from the memory of the CPU, unless lengths are tensors on the GPU."""
    shapes, types = [[40, 24, 12], [120], [], [], [], [], []], ["float", "int", "", "", *["Scalar"] * 3]
    names = ["log_probs", "targets", "input_lengths", "target_lengths", "blank", "deterministic"]
    scalars = [None, None, None, None, 0, False, True]
    call = Call("", "aten::_cudnn_ctc_loss", shapes, [], types, scalars, names=[*names, "zero_infinity"])
    scores, labels, steps, each, *_ = made_up(call, CPU)
    assert (steps, each) == ([40] * 24, [5] * 24)
    assert 1 <= int(labels.min()) <= int(labels.max()) < scores.shape[-1]


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_gradients_of_bags_go_to_rows_of_the_table(mode: str) -> None:
    bags = torch.arange(0, 320, 5)
    rows = torch.randint(0, 300, (320,))
    made = again(
        "_embedding_bag_dense_backward",
        backward(lambda table: F.embedding_bag(rows, table, bags, mode=mode), TABLE.detach()),
    )
    known = given(made)
    assert 250 < int(known["indices"].max()) < 300
    if known["offset2bag"].numel():
        assert known["offset2bag"].tolist() == [one // 5 for one in range(320)]
    if known["bag_size"].numel():
        assert known["bag_size"].tolist() == [5] * 64
    assert all(int(one.max()) < 300 for one in [known["maximum_indices"]] if one.numel())
    assert made().shape == (300, 16)
    assert bool(made().isfinite().all())


@pytest.mark.parametrize(
    ("op", "program", "rows"),
    [
        ("take", lambda: X.take(WHOLE), 12800),
        ("take_along_dim", lambda: X.take_along_dim(WHOLE), 12800),
        ("take_along_dim", lambda: X.take_along_dim(WHOLE, 1), 200),
        ("put_", lambda: X.clone().put_(WHOLE, X), 12800),
        ("embedding", lambda: F.embedding(WHOLE, WHOLE[:9]), 9),
        ("embedding_renorm_", lambda: F.embedding(CLASS, X.clone(), max_norm=1.0), 64),
        ("one_hot", lambda: F.one_hot(CLASS, 6), 6),
        ("bincount", lambda: CLASS.bincount(minlength=6), 6),
        ("searchsorted", lambda: torch.searchsorted(X[0], X, sorter=X[0].argsort()), 200),
    ],
)
def test_indices_stay_inside_of_what_they_point_into(op: str, program: Any, rows: int) -> None:
    known = given(again(op, program))
    indices = next(known[name] for name in ("index", "indices", "sorter", "self") if name in known)
    assert 0.7 * rows < int(indices.max()) < rows


@pytest.mark.parametrize(
    ("op", "program"),
    [
        ("repeat_interleave", lambda: X.repeat_interleave(torch.full((64,), 2), 0)),
        ("one_hot", lambda: F.one_hot(CLASS)),
        ("gru", lambda: torch.nn.GRU(200, 4)(torch.nn.utils.rnn.pack_sequence([X[:5], X[:3]]))),
        (
            "_pack_padded_sequence",
            lambda: torch._VF._pack_padded_sequence(X[:9, :4, None], torch.full((4,), 9), False),
        ),
    ],
)
def test_what_is_not_known_to_stay_inside_is_left_out(op: str, program: Any) -> None:
    keys = [key for name, key in called(program) if name == f"aten::{op}"]
    assert keys
    for key in keys:
        with pytest.raises(NotRebuilt, match=UNKNOWN):
            rebuilt(Call.of(key), CPU)


def test_of_other_libraries_it_is_not_known_what_is_an_index() -> None:
    library = torch.library.Library("joulemap_indices", "DEF")
    library.define("pick(Tensor x, Tensor which) -> Tensor")
    library.impl("pick", lambda *given: given[0].clone(), "CPU")
    scored = '["joulemap_indices::pick", "[[5], [3]]", "", "[\\"float\\", \\"%s\\"]", "[null, null]"]'
    with pytest.raises(NotRebuilt, match=UNKNOWN):
        rebuilt(Call.of(scored % "long int"), CPU)
    assert rebuilt(Call.of(scored % "bool"), CPU) is not None
    library._destroy()


NUMBERS: dict[str, Callable[[], Any]] = {
    "sums": lambda: (WHOLE + 1, WHOLE * WHOLE, WHOLE - WHOLE, WHOLE.sum(), WHOLE.cumsum(1), -WHOLE),
    "mixed": lambda: (X * WHOLE, X + WHOLE, torch.where(FLAGS, WHOLE, 0), WHOLE.float(), WHOLE.int()),
    "compared": lambda: (WHOLE == 3, WHOLE.ne(WHOLE), WHOLE < 4, WHOLE.max(), WHOLE.max(1), WHOLE.argmax(1)),
    "ordered": lambda: (WHOLE.sort(), WHOLE.topk(3), WHOLE.unique(), WHOLE.min(0), WHOLE.clamp(1, 5)),
    "moved": lambda: (WHOLE.clone(), torch.cat([WHOLE, WHOLE]), torch.stack([WHOLE, WHOLE]), WHOLE.flip(0)),
    "filled": lambda: (
        WHOLE.masked_fill(FLAGS, 0),
        torch.full_like(WHOLE, 3),
        WHOLE.nonzero(),
        CLASS.bincount(),
    ),
    "bits": lambda: (WHOLE & 3, WHOLE | WHOLE, WHOLE >> 1, WHOLE % 7, WHOLE // (WHOLE + 1), ~WHOLE),
    "tables": lambda: (WHOLE.gather(1, WHOLE), WHOLE.index_select(0, CLASS), WHOLE.scatter(1, WHOLE, 1)),
    "several": lambda: (torch._foreach_add([WHOLE, CLASS], 1), torch._foreach_add_([CLASS.clone()], 2)),
    "targets": lambda: (F.mse_loss(FEW[:, 0], CLASS), F.cosine_embedding_loss(FEW, FEW, 2 * (CLASS % 2) - 1)),
    "outputs": lambda: torch.topk(X, 2, out=(torch.empty(64, 2), torch.empty(64, 2, dtype=torch.int64))),
    "masks": lambda: (torch.isin(WHOLE, CLASS), WHOLE.masked_select(FLAGS), WHOLE.bool(), WHOLE.any(1)),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_whole_numbers_that_are_numbers_are_replayed(name: str) -> None:
    """But for what takes a list with gaps."""
    for op, key in called(NUMBERS[name]):
        if op != "aten::index":
            rebuilt(Call.of(key), CPU)


@pytest.mark.parametrize("expanded", [False, True])
def test_a_mask_asks_for_no_more_than_there_is(expanded: bool) -> None:
    mask = torch.zeros(64, 1, dtype=torch.bool)
    mask[:3] = True
    whole = mask.expand(64, 200) if expanded else mask.expand(64, 200).contiguous()
    made = again("masked_scatter", lambda: X.masked_scatter(whole, torch.zeros(3, 200)))
    assert int(made.args[1].sum()) == 600
    made = again("masked_scatter", lambda: X.masked_scatter(FLAGS, torch.zeros(64, 200)))
    assert int(made.args[1].sum()) == 6400


def test_what_asserts_something_holds() -> None:
    for _ in range(20):
        assert bool(again("_assert_async", lambda: torch._assert_async(torch.tensor(True))).args[0])
