"""What compiled graphs call, executed again in place: results stay what they were, to the bit."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

from joulemap.frameworks.torch import gpus  # noqa: E402
from joulemap.frameworks.torch.again import Refused, Thread  # noqa: E402
from joulemap.frameworks.torch.launched import Launch  # noqa: E402
from joulemap.frameworks.torch.repeaters import repeaters  # noqa: E402
from joulemap.frameworks.torch.repeating import operands  # noqa: E402
from joulemap.frameworks.torch.repeating_generated import (  # noqa: E402
    IN_PLACE,
    KEPT,
    MORE,
    OTHERWISE,
    GeneratedRepeater,
    _captures,
    written_by,
)
from joulemap.frameworks.torch.stand_ins import generated_modules  # noqa: E402
from joulemap.frameworks.torch.values import Taster  # noqa: E402
from tests import triton_stand_in  # noqa: E402
from tests.triton_stand_in import INFERENCE, Generated  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:Skipping serialization")  # inductor's, of its own settings

MADE = re.compile(r"^(\w+) = async_compile\.\w+\(", re.M)
LOOK_UP, ADDS = "triton_poi_fused_index_mul_0", "triton_poi_fused_add_copy__mul_3"
WIDE = 64


def said(*operations: Mapping[str, Any]) -> dict[str, Any]:
    """Targets in their order."""
    usual = {"operands": [[]], "files": [[]], "cold": [""], "each_s": 1.0}
    numbered = [{**usual, "target": number, **one} for number, one in enumerate(operations)]
    return {"device": "cpu", "operations": numbered, "modules": []}


def of_kernels(*files: Path) -> list[dict[str, Any]]:
    """A target for each of the kernels in some generated code."""
    found = [(name, str(file)) for file in files for name in MADE.findall(file.read_text())]
    return [{"op": f"inductor::{name}", "files": [[file]]} for name, file in found]


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, list[Path]]]:
    """A function that trains, compiled; and the code that was generated for it."""
    pytest.importorskip("torch._inductor.compile_fx")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()
    torch.manual_seed(0)
    x, weight, bias = torch.rand(32, WIDE), torch.rand(WIDE, WIDE), torch.rand(WIDE)

    @torch.compile  # type: ignore[untyped-decorator]
    def loss(weight: Any, bias: Any) -> Any:
        return torch.nn.functional.gelu(torch.addmm(bias, x, weight)).sum(1).sin().mean()

    def gradients() -> list[Any]:
        leaves = [one.clone().requires_grad_() for one in (weight, bias)]
        value = loss(*leaves)
        value.backward()
        return [value, *(leaf.grad for leaf in leaves)]

    gradients()
    yield gradients, [file for file in tmp_path.rglob("*.py") if MADE.search(file.read_text())]
    torch._dynamo.reset()


def of_generated(content: Mapping[str, Any]) -> GeneratedRepeater:
    return next(one for one in repeaters(content) if isinstance(one, GeneratedRepeater))


def test_kernels_and_operations_of_libraries_are_executed_again_and_results_stay_the_same(
    compiled: tuple[Any, list[Path]],
) -> None:
    gradients, files = compiled
    plain = gradients()
    through, weight = ((32, WIDE), "float"), ((WIDE, WIDE), "float")
    library = {"op": "addmm", "operands": [[((WIDE,), "float"), through, weight, through]]}
    targets = said(library, *of_kernels(*files))
    repeater = of_generated(targets)
    repeater.install()
    try:
        assert repeater.target < 0
        assert all(map(torch.equal, plain, gradients()))
        seen, extra = repeater.take_counts()
        assert set(seen.values()) == {1}
        assert not extra
        again = set(range(len(targets["operations"]))) - repeater.refused.keys()
        assert {0} < again <= seen.keys()
        assert set(repeater.refused.values()) <= {IN_PLACE}
        for repeater.target in again:
            repeater.more = 3
            assert all(map(torch.equal, plain, gradients()))
            assert repeater.take_counts()[1] == {repeater.target: 3}
    finally:
        repeater.remove()
    assert all(map(torch.equal, plain, gradients()))
    assert repeater.take_counts() == ({}, {})


def test_code_that_is_not_loaded_and_kernels_in_a_row_are_refused(
    compiled: tuple[Any, list[Path]], tmp_path: Path
) -> None:
    _, files = compiled
    one, *_ = of_kernels(*files)
    gone = {"op": one["op"], "files": [[str(tmp_path / "gone.py")]]}
    several = {"op": f"{one['op']} + cpp_fused_1", "files": one["files"]}
    repeater = of_generated(said(gone, several))
    repeater.install()
    repeater.remove()
    assert "is not loaded" in repeater.refused[0]
    assert "several kernels" in repeater.refused[1]


def test_where_nothing_was_compiled_nothing_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(__import__("sys").modules, "torch._inductor.codecache", raising=False)
    repeater = of_generated(said({"op": "mm", "operands": [[((2, 2), "float")] * 2]}))
    repeater.install()
    repeater.remove()
    assert not repeater.refused


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import async_compile

    monkeypatch.setattr(async_compile, "AsyncCompile", triton_stand_in.Compile)
    triton_stand_in.as_on_a_gpu(monkeypatch)


@pytest.mark.usefixtures("on_a_gpu")
@pytest.mark.parametrize(("name", "more"), [(LOOK_UP, 3), (ADDS, 0)])
def test_a_triton_kernel_writes_elsewhere_when_it_is_executed_again(
    tmp_path: Path, name: str, more: int
) -> None:
    """And is not, where it writes over what it reads."""
    generated = Generated(tmp_path, INFERENCE, with_triton=False)
    module = generated.run()
    kernel = getattr(module, name)
    file = str(generated.file)
    repeater = of_generated(said({"op": f"inductor::{name}", "files": [[file]], "cold": ["0"]}))
    repeater.install()
    repeater.target, repeater.more = 0, 3
    given = module.get_args()
    kernel.calls.clear()
    module.call(list(given))
    repeater.remove()
    assert len(kernel.calls) == 1 + more
    assert repeater.extra[0] == more
    assert repeater.refused == ({} if more else {0: IN_PLACE})
    assert getattr(module, name) is kernel


READS = """
@triton_heuristics.pointwise(inductor_meta={'mutated_arg_names': ['in_out_ptr0'], 'atomic_add_found': False})
@triton.jit
def triton_poi_fused_add_0(in_out_ptr0, in_ptr0, out_ptr1, xnumel, XBLOCK : tl.constexpr):
    tmp0 = tl.load(in_out_ptr0 + (x0), xmask)
    tl.store(in_out_ptr0 + (x0), tmp1, xmask)
"""


OF_CPP = """
extern "C"  void kernel(const float* in_ptr0, float* in_out_ptr0, float* out_ptr1)
{
            auto tmp0 = at::vec::Vectorized<float>::loadu(in_ptr0 + static_cast<int64_t>(x0));
            tmp0.store(in_out_ptr0 + static_cast<int64_t>(x0));
            out_ptr1[static_cast<int64_t>(x0)] = tmp1;
            auto tmp2 = in_out_ptr0[static_cast<int64_t>(x0)];
}
"""


def test_memory_that_is_used_again_is_written_and_only_what_is_read_from_it_is_in_place() -> None:
    assert written_by(READS.replace("tl.load(in_out_ptr0 ", "tl.load(in_ptr0 ")) == [0, 2]
    assert written_by(OF_CPP) == [1, 2]
    adds = READS.replace("tl.load(in_out_ptr0 ", "tl.atomic_add(out_ptr1 ")
    stored, assigned = "tmp0.store(in_out_ptr0 +", "out_ptr1[static_cast<int64_t>(x0)] ="
    in_place = [
        OF_CPP.replace(stored, "atomic_add_vec<float, 2, 1>(in_out_ptr0,"),
        OF_CPP.replace(stored, "auto tmp1 = at::vec::Vectorized<float>::loadu(in_out_ptr0 +"),
        OF_CPP.replace(assigned, assigned.replace(" =", " +=")),
        OF_CPP.replace(assigned, f"{assigned} out_ptr1[0] + "),
        OF_CPP.replace(assigned, "atomic_add(&out_ptr1[0],"),
    ]
    for source in (READS, adds, *in_place):
        with pytest.raises(Refused, match=IN_PLACE):
            written_by(source)
    with pytest.raises(Refused, match="source"):
        written_by("")


STORES = "tl.store(in_out_ptr0 + (x0), tmp1, xmask)"


@pytest.mark.parametrize(
    "more",
    [
        "tl.store(arg_LSE + offs_m, lse, mask=offs_m < 4)",  # templates of attention
        "tl.store(\n        arg_M + offs_m, m_i)",
        "tl.atomic_add(in_ptr0 + (x0), tmp1, xmask)",
        "desc_dq.store([0, 0], dq)",
        "tl._experimental_descriptor_store(desc_dq, dq, [0, 0])",
        "tl.atomic_cas(sem_ptr, 0, 1)",
    ],
)
def test_a_kernel_that_writes_into_more_than_its_results_is_refused(more: str) -> None:
    """Nobody would find other memory for that: it would be the program's."""
    source = READS.replace("tl.load(in_out_ptr0 ", "tl.load(in_ptr0 ")
    assert written_by(source) == [0, 2]
    with pytest.raises(Refused, match=MORE):
        written_by(source.replace(STORES, f"{STORES}\n    {more}"))
    with pytest.raises(Refused, match=MORE):
        written_by(OF_CPP.replace("const float* in_ptr0", "float* in_ptr0"))


def test_a_kernel_for_tensors_of_any_size_and_one_whose_code_is_gone_are_refused(
    compiled: tuple[Any, list[Path]],
) -> None:
    """Copies are of one size, and such a kernel is told another one."""
    _, [first, *_] = compiled
    code = first.read_text()
    target = {"op": f"inductor::{MADE.findall(code)[0]}", "files": [[str(first)]]}

    def why_not() -> str:
        repeater = of_generated(said(target))
        repeater.install()
        repeater.remove()
        return repeater.refused.get(0, "")

    try:
        first.write_text(re.sub(r"void\s+kernel\(", "void kernel(const int64_t ks0, ", code))
        assert "tensors of any size" in why_not()
        first.unlink()
        assert "not in inductor's cache any more" in why_not()
    finally:
        first.write_text(code)


def test_memory_for_results_is_found_once_for_each_of_few_sizes() -> None:
    """A name may stand for calls of several sizes, which take turns."""
    repeater = GeneratedRepeater("cpu", {}, {}, {0: 1.0}, {}, Thread())
    repeater.target, repeater.more = 0, 1
    written: list[int] = []

    def kernel(x: Any, out: Any) -> Any:
        written.append(out.data_ptr())
        return out.copy_(x)

    def called(rows: int) -> None:
        x, out = torch.rand(rows, 8), torch.empty(rows, 8)
        repeater._launched(0, ("inductor::k", "f.py"), [1], Launch(kernel, (x, out), {}))
        assert torch.equal(out, x)

    for rows in (1, 2) * 8:
        called(rows)
    assert len(set(written[1::2])) == 2  # every other call is ours
    for rows in range(1, 30):
        called(rows)
        assert len(repeater._own) <= KEPT
    assert repeater.extra == {0: 45}
    assert not repeater.refused


def test_what_fails_when_it_is_executed_again_is_not_the_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    repeater = GeneratedRepeater("cpu", {}, {}, {0: 1.0}, {}, Thread())
    repeater.target, repeater.more = 0, 1

    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr(repeater, "_memory_like", full)
    x, out = torch.rand(9, 8), torch.empty(9, 8)
    launch = Launch(lambda x, out: out.copy_(x), (x, out), {})
    repeater._launched(0, ("inductor::k", "f.py"), [1], launch)
    assert torch.equal(out, x)
    assert "OutOfMemoryError" in repeater.refused[0]
    assert not repeater._own
    repeater._launched(1, ("inductor::k", "f.py"), [2], launch)
    assert repeater.refused[1] == OTHERWISE


def test_nothing_is_executed_again_where_inductor_keeps_cuda_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it tries out in a graph's memory must leave nothing there."""
    assert not gpus.keeps_graphs()
    trees = SimpleNamespace(local=None, get_obj=lambda *_: {0: SimpleNamespace(tree_manager=None)})
    monkeypatch.setitem(sys.modules, "torch._inductor.cudagraph_trees", trees)
    assert not gpus.keeps_graphs()
    trees.get_obj = lambda *_: {0: SimpleNamespace(tree_manager=None), 1: SimpleNamespace(tree_manager=1)}
    assert gpus.keeps_graphs()
    assert _captures(torch.device("cuda"))
    assert not _captures(torch.device("cpu"))
    del trees.get_obj
    assert gpus.keeps_graphs()


def test_a_thread_that_inductor_does_not_know_is_looked_at_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before torch 2.13 it asserts that the thread is known."""

    def asserts(*_: Any) -> Any:
        raise AssertionError

    monkeypatch.setitem(
        sys.modules, "torch._inductor.cudagraph_trees", SimpleNamespace(local=None, get_obj=asserts)
    )
    assert gpus.keeps_graphs()
    failed: list[Exception] = []

    def broken() -> bool:
        raise ZeroDivisionError

    for hidden, many in ((gpus.keeps_graphs, 0), (broken, 1)):
        taster = Taster("cpu", hidden, failed.append)
        taster.begin(["aten::mm"])
        try:
            x = torch.rand(4, 4)
            assert torch.equal(torch.mm(x, x), x @ x)
        finally:
            taster.end()
        assert len(failed) == many


def test_an_operation_that_writes_over_what_it_is_given_is_refused() -> None:
    x = torch.rand(8, 8)
    given = operands((x, x, x))
    repeater = GeneratedRepeater("cpu", {}, {"mm": {given: 0}}, {0: 1.0}, {}, Thread())
    repeater.target, repeater.more = 0, 2
    repeater._library("mm", torch.mm, x, torch.rand(8, 8), out=torch.empty(8, 8))
    assert repeater.extra[0] == 2
    repeater._library("mm", torch.mm, x, torch.rand(8, 8).T, out=x[:].view(8, 8).T.T)
    assert repeater.refused == {0: IN_PLACE}
    assert torch.equal(repeater._library("mm", torch.mm, x, x), x @ x)


@pytest.mark.gpu
def test_cuda_graphs_for_changing_lengths_are_kept_as_without_us() -> None:
    """A new length has inductor try its kernels out in a graph's memory, where strangers are an error."""
    pytest.importorskip("triton")
    model = torch.nn.Sequential(torch.nn.Linear(WIDE, WIDE), torch.nn.GELU(), torch.nn.Linear(WIDE, 1))
    model = model.cuda().requires_grad_(False)
    compiled = torch.compile(model, mode="reduce-overhead", dynamic=True)
    compiled(torch.rand(8, WIDE, device="cuda"))
    files = [Path(one.__file__) for one in generated_modules()]
    repeater = of_generated({**said(*of_kernels(*files)), "device": "cuda"})
    taster = Taster("cuda", gpus.keeps_graphs, pytest.fail)
    repeater.install()
    taster.begin(["aten::addmm"])
    try:
        repeater.target, repeater.more = 0, 2
        for length in (8, 16, 4096, 16, 8192, 8, 4096):
            for _ in range(4):
                x = torch.rand(length, WIDE, device="cuda")
                assert torch.allclose(compiled(x).clone(), model(x), atol=1e-4)
    finally:
        taster.end()
        repeater.remove()
        torch._dynamo.reset()
    assert not repeater.extra
