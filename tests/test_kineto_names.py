"""Short names of operations and kernels."""

import pytest

from joulemap.frameworks.kineto_names import foreign, kernel, operation


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
