"""Kernels that inductor generated, launched by themselves out of its files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from joulemap.calibration.operation import Operation

torch = pytest.importorskip("torch", reason="needs PyTorch")

from joulemap.frameworks.torch.call import Call, NotRebuilt  # noqa: E402
from joulemap.frameworks.torch.launched import Launch, copied_together, launcher  # noqa: E402
from joulemap.frameworks.torch.replay import executed  # noqa: E402
from joulemap.frameworks.torch.replayer import Replayer  # noqa: E402
from tests import triton_stand_in  # noqa: E402
from tests.triton_stand_in import BACKWARD, INFERENCE, Generated  # noqa: E402

GENERATED = """
import torch
from torch._inductor import utils

def cpp_fused_scale_0(x, out):
    out.copy_(x * 2)
    x.zero_()

class Triton:
    def run(self, x, count, stream=None):
        x.add_(count)

triton_poi_fused_add_1 = Triton()

def call(args):
    (x,) = args
    out = torch.empty_strided((4, 3), (1, 4))
    for _ in range(2):
        cpp_fused_scale_0(x, out)
        triton_poi_fused_add_1.run(out, 1)
"""
MAKES_ARGUMENTS = """
def get_args():
    return [torch.ones(4, 3)]
"""
BENCHMARKED = """
def benchmark_compiled_module(times=10, repeat=10):
    x = torch.ones(4, 3)
    utils.print_performance(lambda: call([x]), times=times, repeat=repeat)
"""


def kernel(names: str, *files: Path) -> Operation:
    return Operation(f"inductor::{names}", "[]", "[]", "[]", json.dumps([str(file) for file in files]))


@pytest.mark.parametrize("harness", [MAKES_ARGUMENTS, BENCHMARKED])
def test_a_generated_kernel_is_launched_with_what_its_code_gives_it(tmp_path: Path, harness: str) -> None:
    """As of before it ran the first time; each launch has operands of its own."""
    code = tmp_path / "cabc.py"
    code.write_text(GENERATED + harness)
    both = kernel("cpp_fused_scale_0 + triton_poi_fused_add_1", code)
    make = launcher(Call.of(both.key))
    one, two = make(), make()
    one()
    (scale, add), (other, _) = one.args[0], two.args[0]
    assert float(scale.operands[0].sum()) == 0
    assert float(other.operands[0].sum()) == 12
    assert scale.operands[1].stride() == (1, 4)
    assert float(scale.operands[1].sum()) == 24
    assert float(add.operands[0].sum()) == 24 + 12
    cpu = torch.device("cpu")
    assert executed([Replayer(Call.of(both.key), cpu)], 0.01, cpu)["executions"][0] >= 1


def test_operands_that_a_program_has_in_its_cache_stay_the_same(tmp_path: Path) -> None:
    """The others take turns; where all are there, none does."""
    code = tmp_path / "cabc.py"
    code.write_text(GENERATED + MAKES_ARGUMENTS)
    one, cpu = kernel("cpp_fused_scale_0", code), torch.device("cpu")
    first, second, *_ = Replayer(Call.of(replace(one, cold="01").key), cpu).copies
    (mine,), (other,) = first.args[0], second.args[0]
    assert mine.operands[0] is other.operands[0]
    assert mine.operands[1].data_ptr() != other.operands[1].data_ptr()
    assert len(Replayer(Call.of(replace(one, cold="00").key), cpu).copies) == 1
    assert len(Replayer(Call.of(one.key), cpu).copies) > 1


def test_a_generated_kernel_that_cannot_be_found_is_left_out(tmp_path: Path) -> None:
    code = tmp_path / "cdef.py"
    code.write_text(GENERATED + MAKES_ARGUMENTS)
    reasons = {
        "made 2 kernels": kernel("cpp_fused_scale_0", code, code),
        "made 0 kernels": kernel("cpp_fused_scale_0"),
        "not in inductor's cache": kernel("cpp_fused_scale_0", tmp_path / "gone.py"),
        "does not call cpp_fused_other": kernel("cpp_fused_other", code),
    }
    for reason, one in reasons.items():
        with pytest.raises(NotRebuilt, match=reason):
            launcher(Call.of(one.key))


LOOK_UP = "triton_poi_fused_index_mul_0"
ADD = "triton_poi_fused_add_relu_1"
COPY = "triton_poi_fused__to_copy_relu_2"
IN_PLACE = "triton_poi_fused_add_copy__mul_3"
LAST = "triton_poi_fused_add_relu_5"
TO_ROWS = "triton_poi_fused_embedding_dense_backward_native_dropout_backward_1"


def launches(generated: Generated, name: str) -> Callable[[], Any]:
    """Makes launches of a kernel, with the random numbers that its program has."""
    torch.manual_seed(0)
    return launcher(Call.of(kernel(name, generated.file).key))


def program(folder: Path, data: str) -> Generated:
    return Generated(folder, data, with_triton=False)


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    from torch._inductor import async_compile

    monkeypatch.setattr(async_compile, "AsyncCompile", triton_stand_in.Compile)
    return triton_stand_in.as_on_a_gpu(monkeypatch)


def operands_of(launched: partial[None]) -> list[Any]:
    [launch] = launched.args[0]
    assert isinstance(launch, Launch)
    return list(launch.operands)


def same(some: list[Any], others: list[Any]) -> bool:
    pairs = zip(some, others, strict=True)
    return all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in pairs)


@pytest.mark.parametrize("name", [ADD, COPY, IN_PLACE, LAST])
def test_a_triton_kernel_does_what_it_does_in_its_program(
    tmp_path: Path, stream: list[int], name: str
) -> None:
    """In parts of a graph as well, in place, and with operands that were expanded."""
    generated = program(tmp_path, INFERENCE)
    module = generated.run()
    [(before, after)] = getattr(module, name).calls
    make = launches(generated, name)
    one, other = make(), make()
    assert same(operands_of(one), before)
    one()
    assert same(operands_of(one), after)
    assert same(operands_of(other), before)
    assert not same(before, after)


def test_a_triton_kernel_is_launched_on_the_stream_that_is_current(tmp_path: Path, stream: list[int]) -> None:
    generated = program(tmp_path, INFERENCE)
    launched = launches(generated, ADD)()
    stream[0] = 9  # as while a CUDA graph is captured
    launched()
    [launch] = launched.args[0]
    assert launch.kernel.__self__.streams == [9]


def test_generated_code_runs_no_further_than_it_must(tmp_path: Path, stream: list[int]) -> None:
    """Neither the kernel nor what comes after: these may take long, or do what is not possible here."""
    generated = program(tmp_path, INFERENCE)
    generated.file.write_text(generated.file.read_text().replace("cpp_fused__to_copy_mul_4(buf6)", "1 / 0"))
    [launch] = launches(generated, ADD)().args[0]
    assert launch.kernel.__self__.calls == []
    with pytest.raises(ZeroDivisionError):
        launches(generated, LAST)


def test_what_is_written_over_is_what_is_read(tmp_path: Path, stream: list[int]) -> None:
    x, y, out, _ = operands_of(launches(program(tmp_path, INFERENCE), IN_PLACE)())
    assert x is out
    assert x is not y


def test_expanded_operands_stay_as_small_as_they_are(tmp_path: Path, stream: list[int]) -> None:
    _, expanded, _ = operands_of(launches(program(tmp_path, INFERENCE), ADD)())
    assert expanded.stride() == (0, 1)
    assert expanded.untyped_storage().nbytes() < 2 * 16 * 4 + 128


def test_indices_point_to_what_there_is(tmp_path: Path, stream: list[int]) -> None:
    launched = launches(program(tmp_path, INFERENCE), LOOK_UP)()
    launched()
    indices, table, out, *_ = operands_of(launched)
    assert len(set(indices.tolist())) > 1
    assert torch.equal(out, table[indices] * 2)


def test_indices_that_a_kernel_computes_stay_what_they_are(tmp_path: Path, stream: list[int]) -> None:
    """Others than these may be too far once it has."""
    generated = program(tmp_path, INFERENCE)
    code = generated.file.read_text()
    generated.file.write_text(code.replace("tl.where(tmp3, tmp2, tmp0)", "tl.where(tmp3, tmp2, tmp0) * 99"))
    indices, *_ = operands_of(launches(generated, LOOK_UP)())
    assert not indices.any()


@pytest.mark.skipif(not triton_stand_in.RUNS_BACKWARD, reason="the code is of torch 2.13")
def test_gradients_go_to_several_rows_and_through_masks(tmp_path: Path, stream: list[int]) -> None:
    """What adds to a tensor goes no further than its shortest dimension."""
    launched = launches(program(tmp_path, BACKWARD), TO_ROWS)()
    indices, gradient, mask, rows, *sizes = operands_of(launched)
    assert sizes == [8 * 16]
    assert int(indices.max()) < 16
    assert set(mask.flatten().tolist()) == {True, False}
    assert len(set(indices.tolist())) > 1
    before = rows.clone()
    launched()
    torch.testing.assert_close(rows, before.index_add(0, indices, gradient * mask / 0.9))


def test_a_kernel_that_several_graphs_have_is_one(tmp_path: Path, stream: list[int]) -> None:
    """As long as it is the same: kernels of one name may be of other sizes."""
    generated = program(tmp_path, INFERENCE)
    again = tmp_path / f"c{tmp_path.name}2.py"
    again.write_text(generated.file.read_text().replace("0_inference", "1_inference"))
    make = launcher(Call.of(kernel(ADD, generated.file, again).key))
    assert len(operands_of(make())) == 3
    again.write_text(generated.file.read_text().replace("xnumel = 128", "xnumel = 64"))
    with pytest.raises(NotRebuilt, match="made 2 kernels"):
        launcher(Call.of(kernel(ADD, generated.file, again).key))


@pytest.mark.parametrize("given", ["", "    xnumel = ks0 * 16\n"])
def test_what_is_made_for_any_size_is_left_out(tmp_path: Path, stream: list[int], given: str) -> None:
    """The code runs by itself with sizes that were first met, which may be far from what a program has."""
    generated = program(tmp_path, INFERENCE)
    generated.file.write_text(generated.file.read_text().replace("    xnumel = 128\n", given))
    with pytest.raises(NotRebuilt, match="tensors of any size"):
        launches(generated, ADD)


def test_operands_of_their_own_lie_as_those_of_the_program_do() -> None:
    memory = torch.arange(100.0)
    odd, across, apart = memory[1:9], memory[4:12].view(2, 4), memory[50:60]
    bits, none = memory[:2].view(torch.int32), torch.empty(0, 4)
    given = [odd, 3, across, apart, odd, bits, none, apart.expand(4, 10)]
    own = copied_together(given)
    assert same(own, given)
    assert own[0] is own[4]
    assert own[1] == 3
    assert own[6] is none
    for mine, theirs in zip(own, given, strict=True):
        if isinstance(mine, torch.Tensor) and mine.numel():
            assert (mine.dtype, mine.stride()) == (theirs.dtype, theirs.stride())
            assert (mine.data_ptr() - theirs.data_ptr()) % 64 == 0  # a CPU's memory begins at such
            assert not 0 <= mine.data_ptr() - memory.data_ptr() < 400
    own[0].zero_()
    assert own[2].flatten().tolist() == [0, 0, 0, 0, 0, 9, 10, 11]
    assert own[3].tolist() == apart.tolist()
    assert own[7].data_ptr() == own[3].data_ptr()
    assert float(memory.sum()) == 4950


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_kernels_that_inductor_has_just_made_are_executed_over_and_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    """On a GPU inside of a CUDA graph."""
    pytest.importorskip("torch._inductor.compile_fx")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()
    x, y = torch.rand(2, 256, 512, device=device)
    compiled = torch.compile(lambda x, y: (x.sin() * y + 1).sum(-1).exp())
    torch.testing.assert_close(compiled(x, y), (x.sin() * y + 1).sum(-1).exp())
    torch._dynamo.reset()
    made = re.compile(r"^(\w+) = async_compile\.(?:triton|cpp_pybinding)\(", re.M)
    found = [(name, file) for file in tmp_path.rglob("*.py") for name in made.findall(file.read_text())]
    assert found
    for name, file in found:
        replayer = Replayer(Call.of(kernel(name, file).key), torch.device(device))
        assert executed([replayer], 0.01, torch.device(device))["executions"][0] >= 1
