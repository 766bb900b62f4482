"""Kernels that inductor has generated for a GPU, run by Triton's own interpreter on a CPU.

Run it where Triton is: ``TRITON_INTERPRET=1 pytest tests/test_calibrate_triton.py``.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from joulemap.calibration.operation import Operation

pytestmark = pytest.mark.external
torch = pytest.importorskip("torch", reason="needs PyTorch")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs TRITON_INTERPRET=1 from the beginning", allow_module_level=True)
pytest.importorskip("triton", reason="needs Triton")

from joulemap.frameworks.torch.call import Call  # noqa: E402
from joulemap.frameworks.torch.launched import launcher  # noqa: E402
from tests import triton_stand_in  # noqa: E402
from tests.triton_stand_in import BACKWARD, INFERENCE, RUNS_BACKWARD, Generated  # noqa: E402

KERNELS = [
    (INFERENCE, "triton_poi_fused_index_mul_0"),
    (INFERENCE, "triton_poi_fused_add_relu_1"),
    (INFERENCE, "triton_poi_fused__to_copy_relu_2"),
    (INFERENCE, "triton_poi_fused_add_copy__mul_3"),
    (INFERENCE, "triton_poi_fused_add_relu_5"),
] + [(BACKWARD, "triton_poi_fused_embedding_dense_backward_native_dropout_backward_1")] * RUNS_BACKWARD


def launched(generated: Generated, name: str) -> list[Any]:
    """What the operands hold once a kernel has run."""
    torch.manual_seed(0)
    key = Operation(f"inductor::{name}", "[]", "[]", "[]", json.dumps([str(generated.file)])).key
    launch = launcher(Call.of(key))()
    launch()
    return list(launch.args[0][0].operands)


@pytest.mark.parametrize(("data", "name"), KERNELS)
def test_triton_and_its_stand_in_write_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: str, name: str
) -> None:
    from torch._inductor import async_compile

    triton_stand_in.as_on_a_gpu(monkeypatch)
    by_triton = launched(Generated(tmp_path, data, with_triton=True), name)
    monkeypatch.setattr(async_compile, "AsyncCompile", triton_stand_in.Compile)
    by_stand_in = launched(Generated(tmp_path, data, with_triton=False), name)
    torch.testing.assert_close(by_triton, by_stand_in)
