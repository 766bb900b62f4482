"""Kernels that inductor generated, launched by themselves out of its files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from joulemap.calibration.operation import Operation

torch = pytest.importorskip("torch", reason="needs PyTorch")

from joulemap.frameworks.torch.launched import launcher  # noqa: E402
from joulemap.frameworks.torch.rebuild import Call, NotRebuilt  # noqa: E402
from joulemap.frameworks.torch.replay import executed  # noqa: E402
from joulemap.frameworks.torch.replayer import Replayer  # noqa: E402

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
