"""Regions of ``torch.compile`` in traces: where kernels go by what was written down of generated code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

from joulemap.frameworks.kineto import KinetoColumns, trace_of
from joulemap.frameworks.torch.compiled import Graph, KernelCall, read_graphs, with_kernels
from joulemap.frameworks.torch.generated import calls_in
from joulemap.frameworks.torch.origins import Origin, origin_of_stack
from joulemap.labels import Labels

GELU = "triton_poi_fused_gelu_0"
FORWARD, BACKWARD = "## Call CompiledFxGraph fkey ##", "## Call CompiledFxGraph bkey ##"
GRAPHS = {
    "fkey": [Graph([KernelCall(GELU, GELU, "layer.0"), KernelCall("mm", "aten::mm", "layer.1.dense"),
                    KernelCall(GELU, GELU, "layer.1"),
                    KernelCall("cpp_fused_add_1", "cpp_fused_add_1", "")])],
    "bkey": [Graph([KernelCall("cpp_fused_a", "cpp_fused_a", "layer.0.norm"),
                    KernelCall("cpp_fused_b", "cpp_fused_b", "layer.0.act"),
                    KernelCall("mm", "aten::mm", "layer.0.dense"),
                    KernelCall("cpp_fused_c", "cpp_fused_c", None)])],
}  # fmt: skip
HOST = [
    # name, thread, start, end, id, sequence, thread of the forward pass
    ("M:", 1, 0, 1000, 1, -1, 0),
    ("Torch-Compiled Region: 0/0", 1, 10, 900, 2, -1, 0),
    ("CompiledFunction", 1, 20, 890, 3, 7, 0),
    (FORWARD, 1, 30, 880, 4, -1, 0),
    (GELU, 1, 100, 120, 5, -1, 0),
    ("aten::empty", 1, 130, 140, 6, -1, 0),
    ("aten::mm", 1, 200, 250, 7, -1, 0),
    (GELU, 1, 300, 320, 8, -1, 0),
    ("autograd::engine::evaluate_function: CompiledFunctionBackward", 2, 2000, 2900, 9, 7, 1),
    ("CompiledFunctionBackward", 2, 2010, 2890, 10, 7, 1),
    (BACKWARD, 2, 2020, 2880, 11, -1, 0),
    ("aten::mm", 2, 2200, 2250, 12, -1, 0),
]
KERNELS = [
    (GELU, 5, 400, 500),
    ("sm90_gemm", 7, 500, 700),
    (GELU, 8, 700, 800),
    ("sm90_gemm", 12, 2300, 2400),
]


def columns(
    host: list[tuple[str, int, int, int, int, int, int]] = HOST,
    categories: Mapping[str, str] = MappingProxyType({}),
) -> KinetoColumns:
    rows = [(*row, category, -1, 0) for row in host for category in [categories.get(row[0], "cpu_op")]]
    rows += [
        (name, 7, start, end, by, -1, 0, "kernel", 0, 100 + number)
        for number, (name, by, start, end) in enumerate(KERNELS)
    ]
    name, lane, start, end, number, sequence, forward, category, device, correlation = zip(*rows, strict=True)
    return KinetoColumns(
        name=Labels.of(name),
        category=Labels.of(category),
        start_ns=np.array(start),
        end_ns=np.array(end),
        device=np.array(device),
        lane=Labels.of(map(str, lane)),
        op_id=np.array(number),
        correlation=np.array(correlation),
        sequence=np.array(sequence),
        forward_thread=np.array(forward),
        thread_number=np.array(lane),
    )


def read(host: list[tuple[str, int, int, int, int, int, int]] = HOST) -> list[tuple[str, str, str, int, int]]:
    events = trace_of(with_kernels(columns(host), GRAPHS)).events
    table = (events.name, events.phase, events.kind, events.start_ns.tolist(), events.end_ns.tolist())
    return list(zip(*table, strict=True))


def test_a_graph_may_be_a_range() -> None:
    """As in older versions."""
    plain, ranges = (
        trace_of(with_kernels(columns(categories=categories), GRAPHS)).events
        for categories in ({}, dict.fromkeys((FORWARD, BACKWARD), "user_annotation"))
    )
    assert list(plain.name) == list(ranges.name)
    assert list(plain.phase) == list(ranges.phase)


def test_one_kernel_called_for_two_modules() -> None:
    kernels = [(name, phase, start) for name, phase, kind, start, _ in read() if kind == "kernel"]
    assert kernels == [
        (f"layer/0/{GELU}", "forward", 400),
        ("layer/1/dense/mm", "forward", 500),
        (f"layer/1/{GELU}", "forward", 700),
        ("layer/0/dense/mm", "backward", 2300),
    ]


def test_regions_inside_each_other() -> None:
    inner = [*HOST, ("Torch-Compiled Region: 1/0", 1, 12, 895, 14, -1, 0)]
    assert [row for row in read(inner) if row[2] == "kernel"] == [row for row in read() if row[2] == "kernel"]


def test_cpp_kernels_have_the_time_between_operations() -> None:
    added = [row for row in read() if "cpp_fused" in row[0]]
    assert added == [
        ("(model)/cpp_fused_add_1", "forward", "op", 320, 880),
        ("layer/0/cpp_fused_a + cpp_fused_b", "backward", "op", 2020, 2199),
        ("compiled region 0/cpp_fused_c", "backward", "op", 2250, 2880),
    ]


def test_what_is_in_no_kernel_stays_with_the_region() -> None:
    assert ("compiled region 0/empty", "forward", "op", 130, 140) in read()
    assert ("compiled region 0/CompiledFunction", "forward", "op", 20, 890) in read()


def test_modules_in_compiled_code_have_their_kernels_and_nothing_else() -> None:
    between = {row[0] for row in read() if row[0].endswith("/(python)")}
    assert between == {"(model)/(python)", "compiled region 0/(python)"}


@pytest.mark.parametrize("changed", [HOST[:7] + HOST[8:], [*HOST, ("aten::mm", 1, 400, 410, 13, -1, 0)]])
def test_calls_that_do_not_fit_say_nothing(changed: list[tuple[str, int, int, int, int, int, int]]) -> None:
    rows = read(changed)
    assert ("compiled region 0/mm", "forward", "op", 200, 250) in rows
    assert ("layer/0/dense/mm", "backward", "op", 2200, 2250) in rows  # the other graph fits


def test_two_graphs_of_one_key_that_both_fit_say_nothing() -> None:
    other = Graph([KernelCall(call.kernel, call.event, "elsewhere") for call in GRAPHS["fkey"][0].calls])
    events = with_kernels(columns(), {"fkey": [*GRAPHS["fkey"], other]})
    assert len(events) == len(columns())


UPDATE = "## Call CompiledFxGraph ukey ##"
SGD = Graph([KernelCall("cpp_fused_add_0", "cpp_fused_add_0", None)], is_update=True)
UPDATING = [
    ("Torch-Compiled Region: 4/0", 1, 0, 500, 1, -1, 0),
    ("TorchDynamo Cache Lookup", 1, 10, 20, 2, -1, 0),
    ("Torch-Compiled Region: 5/0", 1, 30, 300, 3, -1, 0),
    ("AOTDispatcher Runtime Wrapper Prologue", 1, 40, 90, 4, -1, 0),
    (UPDATE, 1, 100, 200, 5, -1, 0),
    ("aten::empty", 1, 110, 120, 6, -1, 0),
]


@pytest.mark.parametrize(
    ("beside", "made", "outer", "inner"),
    [
        ([], [SGD], "optimizer/compiled", "optimizer/compiled"),
        ([("aten::mul", 1, 400, 450, 7, -1, 0)], [SGD], "compiled region 4", "optimizer/compiled"),
        ([("M:net", 1, 400, 450, 7, -1, 0)], [SGD], "compiled region 4", "optimizer/compiled"),
        ([(FORWARD, 1, 400, 450, 7, -1, 0)], [SGD], "compiled region 4", "optimizer/compiled"),
        ([(UPDATE, 1, 400, 450, 7, -1, 0)], [SGD], "optimizer/compiled", "optimizer/compiled"),
        ([], [SGD, Graph([])], "compiled region 4", "compiled region 4/compiled region 5"),
    ],
)
def test_regions_that_only_update_are_the_optimizer(
    beside: list[tuple[str, int, int, int, int, int, int]], made: list[Graph], outer: str, inner: str
) -> None:
    events = trace_of(with_kernels(columns([*UPDATING, *beside]), {"ukey": made})).events
    rows = {
        start: (name, phase)
        for name, phase, start in zip(events.name, events.phase, events.start_ns, strict=True)
    }
    phases = {layer: "optimizer" if "optimizer" in layer else "forward" for layer in (outer, inner)}
    assert rows[0] == (f"{outer}/(python)", phases[outer])
    assert rows[40] == (f"{inner}/(python)", phases[inner])
    assert rows[110] == (f"{inner}/empty", phases[inner])


def test_models_that_functions_call(tmp_path: Path) -> None:
    def call(path: str | None, *outermost: str) -> dict[str, object]:
        return {"kernel": "mm", "event": "aten::mm", "path": path, "outermost": outermost}

    def graphs(*calls: dict[str, object]) -> list[str | None]:
        said = {"format": 1, "graphs": [{"key": "k", "calls": calls}]}
        (tmp_path / "compiled.json").write_text(json.dumps(said))
        return [one.path for one in read_graphs(tmp_path)["k"][0].calls]

    assert graphs(call("head", "Net", "G['a']"), call("", "Net", "G['a']"), call(None, "", "")) == [
        "head", "", None,
    ]  # fmt: skip
    two = graphs(call("head", "Net", "G['a']"), call("head", "Net", "G['b']"), call("", "Loss", "G['c']"))
    assert two == ["Net.head", "Net (2).head", "Loss"]


@pytest.mark.parametrize("text", [None, "{", '{"format": 2, "graphs": []}'])
def test_what_cannot_be_read_is_not_there(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "compiled.json").write_text(text)
    assert read_graphs(tmp_path) == {}


CODE = """# AOT ID: ['0_inference']
# Topologically Sorted Source Nodes: [relu], Original ATen: [aten.relu]
# Source node to ATen node mapping:
triton_poi_fused_relu_0 = async_compile.triton('triton_', '''
''', device_str='cuda')

    def call(self, args):
            # Topologically Sorted Source Nodes: [linear], Original ATen: [aten.t, aten.mm]
            extern_kernels.mm(arg1_1, reinterpret_tensor(arg0_1, (8, 8), (1, 8), 0), out=buf0)
            buf1 = buf0; del buf0  # reuse
            # Topologically Sorted Source Nodes: [linear, relu], Original ATen: [aten.relu]
            stream0 = get_raw_stream(0)
            triton_poi_fused_relu_0.run(buf1, 64, stream=stream0)
            # Topologically Sorted Source Nodes: [relu, attend], Original ATen: [aten._scaled_dot_product]
            buf2 = torch.ops.aten._scaled_dot_product_flash_attention.default(buf1, buf1, buf1)
            assert_size_stride(buf3, (8, 8), (8, 1), 'torch.ops.aten._scaled_dot_product.default')
            cpp_fused_add_1(buf1, buf2)
"""
ORIGINS = {
    "linear": origin_of_stack([("L['self'].mlp", "Mlp"), ("L['self'].mlp.dense", "Linear")]),
    "relu": origin_of_stack([("L['self'].mlp", "Mlp"), ("L['self'].mlp.act", "ReLU")]),
    "attend": Origin(),
}


def test_generated_code_tells_by_its_comments() -> None:
    calls = calls_in(CODE, ORIGINS)
    assert [call.event for call in calls] == [
        "aten::mm",
        "triton_poi_fused_relu_0",
        "aten::_scaled_dot_product_flash_attention",
        "cpp_fused_add_1",
    ]
    paths = [call.origin and call.origin.below_module() for call in calls]
    assert paths == ["mlp.dense", "mlp", "", None]


def test_generated_code_of_a_backward_pass_or_another_function_tells_nothing() -> None:
    for code, origins in ((CODE.replace("inference", "backward"), ORIGINS), (CODE, {"linear": Origin()})):
        calls = calls_in(code, origins)
        assert len(calls) == 4
        assert all(call.origin is None for call in calls)


def test_calls_in_generated_code_for_a_gpu_are_in_the_order_in_which_they_are_made() -> None:
    """Parts of a graph are functions that are written before they are called."""
    code = (Path(__file__).parent / "data" / "inductor-cuda-inference.txt").read_text()
    assert [call.event for call in calls_in(code, {})] == [
        "triton_poi_fused_index_mul_0",
        "aten::mm",
        "triton_poi_fused_add_relu_1",
        "aten::mm",
        "triton_poi_fused__to_copy_relu_2",
        "triton_poi_fused_add_copy__mul_3",
        "cpp_fused__to_copy_mul_4",
        "triton_poi_fused_add_relu_5",
    ]


def test_kernels_that_a_program_has_written_in_triton_are_calls() -> None:
    code = CODE.replace("triton_poi_fused_relu_0", "add_kernel_0")
    assert calls_in(code, ORIGINS)[1].event == "add_kernel_0"


@pytest.mark.parametrize(
    ("stack", "in_module", "alone"),
    [
        ([("L['self'].layer.0", "Layer"), ("L['self'].layer.0.dense", "Linear")], "layer.0.dense", "dense"),
        ([("L['fn']", "Sequential"), ("L['fn'].1.0", "Linear")], "1.0", "1.0"),
        ([("G['model']", "Net"), ("G['model'].head", "Linear")], "Net.head", "head"),
        ([("L['models'][1]", "Net")], "Net", ""),
        ([], "", None),
    ],
)
def test_paths_of_origins(stack: list[tuple[str, str]], in_module: str, alone: str | None) -> None:
    origin = origin_of_stack(stack)
    assert (origin.below_module(), origin.below_outermost()) == (in_module, alone)
