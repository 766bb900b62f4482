"""What is replayed is what the program called: of each name the overload, and operands like the program's."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from joulemap.calibration.operation import Operation
from joulemap.frameworks.torch.extract import _signature
from joulemap.frameworks.torch.inputs import inputs_of

torch = pytest.importorskip("torch", reason="needs PyTorch")

from joulemap.frameworks.torch.call import Call, NotRebuilt  # noqa: E402
from joulemap.frameworks.torch.rebuild import rebuilt  # noqa: E402
from joulemap.frameworks.torch.replayer import Replayer  # noqa: E402

CPU = torch.device("cpu")
F = torch.nn.functional
X, Y, ROW = torch.randn(64, 128), torch.randn(64, 128), torch.rand(64)
B, INDEX = X > 0, torch.randint(0, 64, (64, 128))
PICTURES, WINDOWS = torch.randn(2, 3, 16, 16), torch.randn(4, 3, 3, 3)
FEW, WIDE, LONG = torch.randn(900, 3), torch.zeros(4, 5000), torch.zeros(5000, 4)
OF_FEW = INDEX[0, :1].repeat(900) % 3
PROGRAM: dict[str, Callable[[], Any]] = {
    "max of rows": lambda: X.max(dim=1),
    "max": lambda: X.max(),
    "min of rows": lambda: X.min(dim=0),
    "all": lambda: (B.all(dim=1), B.any(dim=-1), B.any()),
    "sums": lambda: (X.sum(1), X.sum(), X.mean(1), X.mean(), X.prod(1), X.prod(), X.logsumexp(1)),
    "medians": lambda: (X.median(1), X.median(), X.nanmedian(1), X.kthvalue(3, 1), INDEX.mode(1)),
    "orders": lambda: (X.sort(), X.sort(dim=0), X.argsort(1), X.topk(5), torch.sort(X, stable=True, dim=1)),
    "spread": lambda: (X.std(1), X.var(1, correction=0), torch.var_mean(X, 1), X.norm(dim=1)),
    "clamps": lambda: (torch.clamp(X, Y - 1, Y + 1), X.clamp(-1, 1), X.clamp(min=0.1)),
    "rounds": lambda: (torch.round(X, decimals=2), X.round(), INDEX // 7, INDEX % (INDEX + 1)),
    "products": lambda: (X**2, ROW**ROW, 2.0**X, X + 1.0, torch.add(X, Y, alpha=2), 1 - X, X @ Y.t()),
    "compares": lambda: (X == 1.0, X == Y, torch.where(B, X, Y), torch.where(B, X, 0.0), B.nonzero()),
    "masks": lambda: (X.masked_fill(B, 0.0), F.dropout(X, 0.1), torch.empty(64).bernoulli_(0.3)),
    "along": lambda: (X.gather(1, INDEX), X.index_select(1, torch.arange(100)), X.scatter(0, INDEX, Y)),
    "adds along": lambda: (X.index_add(0, torch.arange(64), Y), X.scatter_add(0, INDEX, Y), X.cumsum(1)),
    "fills along": lambda: (X.scatter(0, INDEX, 1.0), X.index_fill(0, torch.arange(3), 1.0)),
    "shapes": lambda: (torch.cat([X, Y], 1), torch.stack([X, Y]), X.roll(1, 0), X.flip(0), X.repeat(2, 2)),
    "makes": lambda: (torch.randn(64, 64), torch.zeros(64), torch.full((8, 8), 2.0), torch.arange(0, 99, 3)),
    "types": lambda: (X.double(), X.to(torch.bfloat16), X.t().contiguous(), X.double() * X.double()),
    "pools": lambda: (F.max_pool2d(PICTURES, 2), F.avg_pool2d(PICTURES, 2)),
    "adaptive": lambda: F.adaptive_avg_pool2d(PICTURES, 4),
    "scales": lambda: F.interpolate(PICTURES, size=(32, 32), mode="bilinear"),
    "norms": lambda: (F.group_norm(PICTURES, 3), F.layer_norm(X, (128,)), F.rms_norm(X, (128,))),
    "losses": lambda: (F.cross_entropy(X, INDEX[:, 0]), F.smooth_l1_loss(X, Y), F.gelu(X)),
    "waves": lambda: torch.fft.irfft(torch.fft.rfft(X.double())),
    "factors": lambda: (torch.linalg.qr(X), torch.linalg.svd(X), torch.linalg.eigh(X @ X.t())),
    "attends": lambda: F.scaled_dot_product_attention(*torch.randn(3, 1, 2, 32, 16), is_causal=True),
    "convolves": lambda: (F.conv1d(X[None], torch.randn(32, 64, 3)), F.conv2d(PICTURES, WINDOWS)),
}


def called(program: Callable[[], Any]) -> dict[tuple[str, str], str]:
    """The overload of each operation that is not a view, by its name and the key of its call."""
    try:
        config = torch._C._profiler._ExperimentalConfig(capture_overload_names=True)
    except TypeError:
        pytest.skip("this torch does not tell overloads")
    with torch.autograd.profiler.profile(record_shapes=True, experimental_config=config) as profile:
        program()
    results = profile.kineto_results
    inputs = inputs_of(results.experimental_event_tree())
    found = {}
    for event in results.events():
        said = _signature(event, inputs) if event.name().startswith("aten::") else ""
        if said:
            key = Operation(event.name(), *map(json.dumps, json.loads(said))).key
            found[event.name(), key] = event.overload_name() or "default"
    return found


@pytest.mark.parametrize("name", PROGRAM)
def test_it_is_the_overload_that_was_called(name: str) -> None:
    """Or none: what is a word, or a list of indices, is not known."""
    built = 0
    for (op, key), overload in called(PROGRAM[name]).items():
        try:
            again = rebuilt(Call.of(key), CPU)
        except NotRebuilt:
            continue
        built += 1
        assert again.func._overloadname in (overload, "out") or overload == "correction", (op, key)
    assert built >= 1


@pytest.mark.filterwarnings("ignore:The reduce argument")
def test_a_word_that_chooses_what_is_computed_is_not_made_up() -> None:
    """But for one that has a default."""
    for program, op in (
        (lambda: torch.div(X, Y, rounding_mode="floor"), "aten::div"),
        (lambda: X.scatter(0, INDEX, Y, reduce="add"), "aten::scatter"),
    ):
        [key] = [key for name, key in called(program) if name == op]
        with pytest.raises(NotRebuilt, match="is a word, which torch does not record"):
            rebuilt(Call.of(key), CPU)
    [key] = [key for name, key in called(lambda: X[INDEX[0]]) if name == "aten::index"]
    with pytest.raises(NotRebuilt, match="torch does not record its indices"):
        rebuilt(Call.of(key), CPU)


@pytest.mark.filterwarnings("ignore:Sparse")
def test_a_sparse_tensor_is_not_replayed_as_a_dense_one() -> None:
    sparse = (X * (X > 1.5)).to_sparse()
    for matrix in (sparse, sparse.to_sparse_csr()):
        found = called(partial(torch.matmul, matrix, Y.t()))
        [key, *_] = [key for name, key in found if name == "aten::addmm"]
        with pytest.raises(NotRebuilt, match="sparse"):
            rebuilt(Call.of(key), CPU)


@pytest.mark.parametrize(
    ("program", "op", "place", "rows"),
    [
        (lambda: X.index_select(0, INDEX[0]), "index_select", 2, 64),
        (lambda: X.index_select(-1, INDEX[0]), "index_select", 2, 128),
        (lambda: INDEX.index_select(1, INDEX[0]), "index_select", 2, 128),
        (lambda: LONG.gather(0, INDEX[:, :4]), "gather", 2, 5000),
        (lambda: WIDE.scatter_add(1, INDEX[:4, :7], torch.ones(4, 7)), "scatter_add", 2, 5000),
        (lambda: F.embedding(INDEX, LONG), "embedding", 1, 5000),
        (lambda: F.cross_entropy(WIDE, INDEX[0, :4]), "nll_loss_forward", 1, 5000),
        (lambda: F.cross_entropy(FEW, OF_FEW), "nll_loss_forward", 1, 3),
        (lambda: F.cross_entropy(PICTURES, INDEX[:32, :16].view(2, 16, 16) % 3), "nll_loss2d_forward", 1, 3),
    ],
)
def test_indices_reach_all_of_what_they_point_into(
    program: Callable[[], Any], op: str, place: int, rows: int
) -> None:
    [key] = [key for name, key in called(program) if name == f"aten::{op}"]
    most = [int(rebuilt(Call.of(key), CPU).args[place].max()) for _ in range(20)]
    assert max(most) < rows
    assert rows < 65 or max(most) > 64


def test_gradients_of_a_loss_of_classes_do_not_go_too_far() -> None:
    scores = FEW.clone().requires_grad_()
    found = called(lambda: F.cross_entropy(scores, OF_FEW, reduction="none").sum().backward())
    [key] = [key for name, key in found if name == "aten::nll_loss_backward"]
    assert int(rebuilt(Call.of(key), CPU).args[2].max()) < 3


def test_dropout_lets_through_as_much_as_in_the_program() -> None:
    masks = '["float", "bool", "Scalar"]'
    for scale, through in ((1 / 0.9, 0.9), (2.0, 0.5), (1.0, 1.0)):
        scalars = json.dumps([None, None, scale])
        one = Operation("native_dropout_backward", "[[100, 99], [100, 99], []]", "", masks, scalars)
        mask = rebuilt(Call.of(one.key), CPU).args[1]
        assert float(mask.float().mean()) == pytest.approx(through, abs=0.03)


@pytest.mark.parametrize(
    "program",
    [
        lambda: F.silu(X.clone(), inplace=True),
        lambda: F.leaky_relu(X.clone(), 0.1, inplace=True),
        lambda: F.hardswish(X.clone(), inplace=True),
        lambda: X.clone().exp_(),
        lambda: X.clone().pow_(3),
        lambda: X.clone().t().tanh_(),
        lambda: X.clone()[:, ::2].sigmoid_(),
    ],
)
def test_what_changes_its_operand_in_place_leaves_it_in_replays(program: Callable[[], Any]) -> None:
    """It would be zero or infinite after a thousand times, which draws less."""
    [key] = [key for name, key in called(program) if name.endswith("_") and name != "aten::copy_"]
    again: Any = Replayer(Call.of(key), CPU).copies[0]
    before = again.args[0].clone()
    for _ in range(3):
        again()
    assert again.args[0].equal(before)
    assert again.keywords["out"].stride() == again.args[0].stride()
    assert again.keywords["out"].equal(getattr(torch.ops.aten, Call.of(key).name[:-1])(*again.args))


def test_whole_numbers_that_are_ordered_or_divided_are_many() -> None:
    [key, *_] = [key for name, key in called(INDEX.sort) if name == "aten::sort"]
    assert len(rebuilt(Call.of(key), CPU).args[0].unique()) > 1000
    [key, *_] = [key for name, key in called(lambda: INDEX // (INDEX + 1)) if name == "aten::floor_divide"]
    assert int(rebuilt(Call.of(key), CPU).args[1].min()) > 0


@pytest.mark.parametrize("exponent", [0.5, 0.75, -0.5, 2.5, 2, 3.0])
def test_broken_powers_are_of_what_has_some(exponent: float) -> None:
    """Of what is below zero they are no numbers, which are many times as slow on a CPU."""
    key = Operation(
        "pow", "[[64, 128], []]", "[[128, 1], []]", '["float", "Scalar"]', f"[null, {exponent}]"
    ).key
    replay = rebuilt(Call.of(key), CPU)
    assert replay().isfinite().all()
    assert (replay.args[0] < 0).any() == (exponent in (2, 3.0))


def test_what_is_asked_for_chances_has_some() -> None:
    loss = called(lambda: F.binary_cross_entropy(X.sigmoid(), Y.sigmoid()))
    [key] = [key for name, key in loss if name == "aten::binary_cross_entropy"]
    assert bool(rebuilt(Call.of(key), CPU)().isfinite())


def test_a_long_list_of_numbers_that_torch_did_not_record_is_a_reason() -> None:
    found = called(lambda: X.split([2] * 64, 1))
    [key] = [key for name, key in found if name == "aten::split_with_sizes"]
    with pytest.raises(NotRebuilt, match="its split_sizes were not recorded: torch records lists of numbers"):
        rebuilt(Call.of(key), CPU)


def test_random_numbers_are_drawn_without_the_generator_of_the_program() -> None:
    mine = torch.Generator()
    program = {
        "randn": lambda: torch.randn(8, 9, generator=mine),
        "rand": lambda: torch.rand(8, 9, generator=mine),
        "randint": lambda: torch.randint(0, 4, (8, 9), generator=mine),
        "randperm": lambda: torch.randperm(9, generator=mine),
        "normal": lambda: torch.normal(0.0, 1.0, (8, 9), generator=mine),
        "bernoulli": lambda: X.sigmoid().bernoulli(generator=mine),
        "multinomial": lambda: X.abs().multinomial(3, generator=mine),
    }
    for op, run in program.items():
        keys = [key for name, key in called(run) if name == f"aten::{op}"]
        assert keys
        assert all(rebuilt(Call.of(key), CPU)().numel() >= 9 for key in keys)


@pytest.mark.parametrize(
    "name",
    [
        "AddmmBackward0",
        "CompiledFunctionBackward",
        "AccumulateGrad",
        "torch::autograd::AccumulateGrad",
        "autograd::engine::evaluate_function: MmBackward0",
    ],
)
def test_a_node_of_autograd_is_said_to_be_one(name: str) -> None:
    one = Operation(name, "[[4]]", "[[1]]", '["float"]', "[null]")
    with pytest.raises(NotRebuilt, match=r"is a node of autograd, whose parts are replayed by themselves$"):
        rebuilt(Call.of(one.key), CPU)
