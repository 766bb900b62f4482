"""Short names of operations and kernels."""

import numpy as np
import pytest

from joulemap.frameworks.kineto_names import Paths, foreign, kernel, operation
from joulemap.labels import Labels


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("aten::addmm", "addmm"),
        ("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", "AccumulateGrad"),
        ("Torch-Compiled Region: 0/1", "Torch-Compiled Region: 0:1"),
        ("detach", "detach"),
        ("nccl:all_reduce", "nccl:all_reduce"),
    ],
)
def test_short_names_of_operations(name, short):
    assert operation(name) == short


@pytest.mark.parametrize(
    ("name", "called"),
    [
        ("aten::relu", ""),
        ("mine::relu", "mine::relu"),
        ("mkldnn::_linear_pointwise", "mkldnn::_linear_pointwise"),
        ("relu", ""),
        ("torch::autograd::AccumulateGrad", ""),
        ("autograd::engine::evaluate_function: mine::Relu", ""),
    ],
)
def test_only_operations_outside_of_aten_keep_their_namespace(name, called):
    assert foreign(name) == called


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (
            "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::X>(int)",
            "multi_tensor_apply_kernel",
        ),
        ("nvjet_sm90_tst_192x128_64x5", "nvjet_sm90_tst_192x128_64x5"),
        ("Memcpy DtoH (Device -> Pinned)", "Memcpy DtoH"),
        ("ampere_sgemm_128x64_tn", "ampere_sgemm_128x64_tn"),
    ],
)
def test_short_names_of_kernels(name, short):
    assert kernel(name) == short


@pytest.mark.parametrize(
    ("path", "top", "below"),
    [
        ("loss.a", "loss (module)/a", "net/loss/a"),
        ("loss", "loss", "net/loss"),  # most likely one of torch's, which is no part of the model
        ("optimizer", "optimizer (module)", "net/optimizer"),
        ("a.loss", "a/loss", "net/a/loss"),
    ],
)
def test_kernels_of_modules_that_are_called_like_a_place(path, top, below):
    """Below a module it is no place."""
    words = (f"C:{path}", "Torch-Compiled Region: 0/0", "net")
    paths = Paths(Labels(np.arange(3, dtype=np.int32), words))
    (region,) = paths.within(np.array([paths.ROOT]), np.array([1]))
    (inside,) = paths.within(np.array([paths.code("net")]), np.array([1]))
    found = paths.of_kernels(np.array([region, inside]), np.array([0, 0])).tolist()
    assert [paths.words[code] for code in found] == [top, below]
