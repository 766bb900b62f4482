"""Names and phases of graph nodes, by what names say and by what the dataflow says; and RunMetadata."""

from pathlib import Path

import pytest

from joulemap.errors import InputError
from joulemap.frameworks import read_trace, textproto
from joulemap.frameworks.jax import names as jax_names
from joulemap.frameworks.tensorflow import scopes
from joulemap.frameworks.tensorflow.dataflow import Node
from joulemap.frameworks.tensorflow.names import places
from joulemap.frameworks.tensorflow.reruns import with_whole_paths
from joulemap.frameworks.tensorflow.scopes import Layers
from joulemap.frameworks.wire import Torn

DATA = Path(__file__).parent / "data"


@pytest.mark.parametrize(
    ("name", "calls", "node"),
    [
        ("a/MatMul", "", "a/MatMul"),
        ("StatefulPartitionedCall/a/MatMul", "StatefulPartitionedCall/", "a/MatMul"),
        (
            "PartitionedCall_3/StatefulPartitionedCall_1/a/b",
            "PartitionedCall_3/StatefulPartitionedCall_1/",
            "a/b",
        ),
        ("StatefulPartitionedCall", "", "StatefulPartitionedCall"),
        ("x/while/body/_7/a/b", "x/while/body/_7/", "a/b"),
        ("adam/cond/then/_0/adam/cond/Mul", "adam/cond/then/_0/", "adam/cond/Mul"),
        ("MyPartitionedCall/a", "", "MyPartitionedCall/a"),
    ],
)
def test_calls_and_loops_are_told_from_the_node(name, calls, node):
    assert scopes.inlined(name) == (calls, node)


@pytest.mark.parametrize(
    ("rewritten", "made"),
    [
        ("a/ArithmeticOptimizer/AddOpsRewrite_add_2", "a/add_2"),
        ("a/ArithmeticOptimizer/AddOpsRewrite_Leaf_1_add_2", "a/add_2"),
        ("a/Gelu/Exp/unary_ops_composition", "a/Gelu/Exp"),
        ("ConstantFolding/a/b", "a/b"),
        ("a/b", "a/b"),
    ],
)
def test_what_grappler_did_to_a_name_is_undone(rewritten, made):
    assert scopes.as_made(rewritten) == made


def test_the_innermost_layer_counts():
    layers = Layers({"m_1": "m", "m_1/d_1": "m/d"})
    assert layers.find("m_1/d_1/MatMul") == ("m/d", "MatMul")
    assert layers.find("m_1/d_10/MatMul") == ("m", "d_10/MatMul")
    assert layers.find("other/MatMul") is None
    assert layers.find("m_1") is None  # a node that is called like a scope is not in it


# A training step as Keras 3 makes it: a layer, its gradient, Adam's first moment, a metric.

STEP = {
    "x": Node("Placeholder"),
    "kernel_handle": Node("Placeholder"),
    "slot_handle": Node("Placeholder"),
    "rate_handle": Node("Placeholder"),
    "total_handle": Node("Placeholder"),
    "m_1/d_1/ReadVariableOp": Node("ReadVariableOp", ("kernel_handle",)),
    "m_1/d_1/MatMul": Node("MatMul", ("x", "m_1/d_1/ReadVariableOp")),
    "gradient_tape/m_1/d_1/MatMul/MatMul": Node("MatMul", ("x",)),
    "gradient_tape/m_1/d_1/MatMul/MatMul_1": Node("MatMul", ("x",)),
    "AddN": Node("AddN", ("gradient_tape/m_1/d_1/MatMul/MatMul", "gradient_tape/m_1/d_1/MatMul/MatMul_1")),
    "opt_1/rate": Node("ReadVariableOp", ("rate_handle",)),
    "opt_1/Mul": Node("Mul", ("AddN", "opt_1/rate")),
    "opt_1/AssignAdd": Node("AssignAddVariableOp", ("slot_handle", "opt_1/Mul")),
    "opt_1/Read_1": Node("ReadVariableOp", ("slot_handle",)),
    "opt_1/Mul_1": Node("Mul", ("opt_1/Read_1",)),
    "opt_1/AssignSub": Node("AssignSubVariableOp", ("kernel_handle", "opt_1/Mul_1")),
    "Mean": Node("Mean", ("m_1/d_1/MatMul",)),
    "AssignAddVariableOp": Node("AssignAddVariableOp", ("total_handle", "Mean")),
    "ReadVariableOp_9": Node("ReadVariableOp", ("total_handle",)),
    "Identity": Node("Identity", ("ReadVariableOp_9",)),
}
LAYERS = Layers({"m_1": "m", "m_1/d_1": "m/d", "opt_1": "opt"})


def test_layers_gradients_and_accumulation():
    found = places(STEP, LAYERS)
    assert found["m_1/d_1/MatMul"] == ("m/d/MatMul", "forward")
    assert found["gradient_tape/m_1/d_1/MatMul/MatMul"] == ("m/d/MatMul/MatMul", "backward")
    assert found["AddN"] == ("(gradient accumulation)/AddN", "backward")


def test_an_optimizer_is_told_by_what_it_does_and_sorted_by_the_variable():
    found = places(STEP, LAYERS)
    assert found["opt_1/AssignSub"] == ("opt/m/d/AssignSub", "optimizer")
    assert found["opt_1/Mul_1"] == ("opt/m/d/Mul_1", "optimizer")
    assert found["opt_1/AssignAdd"] == ("opt/m/d/AssignAdd", "optimizer")  # the slot, through its reader
    assert found["opt_1/Mul"] == ("opt/m/d/Mul", "optimizer")


def test_gradients_may_be_handed_on_before_they_arrive():
    """``tf_keras`` passes all of them through one node."""
    handed_on = {
        **STEP,
        "IdentityN": Node("IdentityN", ("AddN", "gradient_tape/m_1/d_1/MatMul/MatMul")),
        "opt_1/Mul": Node("Mul", ("IdentityN", "opt_1/rate")),
    }
    found = places(handed_on, LAYERS)
    assert found["opt_1/AssignSub"] == ("opt/m/d/AssignSub", "optimizer")
    assert found["IdentityN"].phase == "backward"


def test_what_serves_several_variables_is_of_none():
    shared = {
        **STEP,
        "other_handle": Node("Placeholder"),
        "m_1/e_1/ReadVariableOp": Node("ReadVariableOp", ("other_handle",)),
        "gradient_tape/m_1/e_1/MatMul": Node("MatMul", ("x",)),
        "opt_1/Mul_2": Node("Mul", ("gradient_tape/m_1/e_1/MatMul", "opt_1/rate")),
        "opt_1/AssignSub_1": Node("AssignSubVariableOp", ("other_handle", "opt_1/Mul_2")),
    }
    found = places(shared, Layers({**LAYERS.of_scope, "m_1/e_1": "m/e"}))
    assert found["opt_1/AssignSub_1"].name == "opt/m/e/AssignSub_1"
    assert found["opt_1/rate"] == ("opt/rate", "optimizer")


def test_metrics_are_told_by_the_variables_that_they_add_to():
    found = places(STEP, LAYERS)
    for node in ("Mean", "AssignAddVariableOp", "ReadVariableOp_9", "Identity"):
        assert found[node] == (f"(metrics)/{STEP[node].op}", "other")


def test_a_layer_that_runs_again_after_the_gradient_is_recompute():
    again = {
        **STEP,
        "d_3/MatMul": Node("MatMul", ("gradient_tape/m_1/d_1/MatMul/MatMul", "kernel_handle")),
        "d_3/Relu": Node("Relu", ("d_3/MatMul",)),
        "gradient_tape/d_3/Relu/ReluGrad": Node("ReluGrad", ("d_3/MatMul",)),
    }
    layers = Layers({**LAYERS.of_scope, "d_3": "m/d"})
    found = places(again, layers)
    assert found["d_3/MatMul"] == ("m/d/MatMul", "recompute")
    assert found["d_3/Relu"].phase == "recompute"
    assert found["m_1/d_1/MatMul"].phase == "forward"
    used = {**again, "loss/Mean": Node("Mean", ("d_3/Relu",)), "Identity_1": Node("Identity", ("loss/Mean",))}
    assert places(used, layers)["d_3/Relu"].phase == "forward"  # a second forward pass, for its own sake


def test_a_layer_that_runs_again_on_its_own_is_known_by_its_variables():
    nodes = {
        "kernel_a": Node("Placeholder"),
        "kernel_b": Node("Placeholder"),
        "m_1/a_1/d_1/Read": Node("ReadVariableOp", ("kernel_a",)),
        "m_1/b_1/d_1/Read": Node("ReadVariableOp", ("kernel_b",)),
        "d_3/Read": Node("ReadVariableOp", ("kernel_b",)),
        "act_3/Relu": Node("Relu", ("d_3/Read",)),
    }
    paths = {"m_1/a_1/d_1": "m/a/d", "m_1/b_1/d_1": "m/b/d", "d_3": "d", "act_3": "act"}
    assert with_whole_paths(Layers(paths), nodes).of_scope == {**paths, "d_3": "m/b/d"}


@pytest.mark.parametrize(
    ("stack", "name", "phase"),
    [
        ("jit(step)/jvp(layer_0)/attention/dot_general", "layer_0/attention/dot_general", "forward"),
        ("jit(step)/transpose(jvp(layer_0))/ffn/add", "layer_0/ffn/add", "backward"),
        ("jit(step)/jit(main)/jvp(Model)/bert/layer_0/mul", "Model/bert/layer_0/mul", "forward"),
        (
            "jit(f)/transpose(jvp(net))/checkpoint/rematted_computation/layer/dot_general",
            "net/layer/dot_general",
            "recompute",
        ),
        ("jit(step)/optimizer/mul", "optimizer/mul", "optimizer"),
        ("jit(multiply)/mul", "(unnamed)/mul", "forward"),
        ("jit(f)/while/body/layer/add", "layer/add", "forward"),
        ("jit(f)/jvp()/dot_general", "(unnamed)/dot_general", "forward"),
    ],
)
def test_jaxs_name_stacks(stack, name, phase):
    assert jax_names.is_name_stack(stack)
    assert jax_names.place(stack) == (name, phase)


# RunMetadata


def test_run_metadata_is_a_step():
    imported = read_trace([DATA / "tf-run-metadata.pb"])
    events = imported.events
    assert len(events) == 78
    assert len(imported.steps) == 1
    found = set(zip(events.name, events.phase, strict=True))
    for i in range(3):
        assert (f"layer_{i}/Relu", "forward") in found  # Grappler fused the product into it
        assert (f"layer_{i}/MatMul_grad/MatMul_1", "backward") in found
    assert (events.start_ns % 1000 != 0).any()  # nanoseconds, not microseconds
    assert len(imported.program.edges) > 100


def test_run_metadata_as_text_is_the_same():
    binary, text = (read_trace([DATA / f"tf-run-metadata.{kind}"]).events for kind in ("pb", "pbtxt"))
    whole = set(zip(binary.op, binary.start_ns.tolist(), binary.end_ns.tolist(), strict=True))
    part = set(zip(text.op, text.start_ns.tolist(), text.end_ns.tolist(), strict=True))
    assert len(part) > 20
    assert part <= whole


def test_run_metadata_that_is_cut_off_is_refused(tmp_path):
    for name, keep in (("tf-run-metadata.pb", 5000), ("tf-run-metadata.pbtxt", 3000)):
        path = tmp_path / name
        path.write_bytes((DATA / name).read_bytes()[:keep])
        with pytest.raises(InputError, match="no whole RunMetadata"):
            read_trace([path])


def test_text_format():
    parsed = textproto.parse('a: 1 # a comment\nb { c: "x\\"y" c: \'z\' } b < d: -2.5 >; e: WORD')
    assert parsed == {"a": ["1"], "b": [{"c": ['x"y', "z"]}, {"d": ["-2.5"]}], "e": ["WORD"]}
    for broken in ("a {", "a: }", "a", "}", 'a: "x'):
        with pytest.raises(Torn):
            textproto.parse(broken)


def test_a_real_profile_of_a_session():
    imported = read_trace([DATA / "tf-session.xplane.pb"])
    events = imported.events
    rows = list(zip(events.kind, events.phase, events.name, strict=True))
    for i in range(3):
        assert rows.count(("op", "forward", f"layer_{i}/Relu")) == 3
        assert rows.count(("op", "backward", f"layer_{i}/MatMul_grad/MatMul_1")) == 3
        assert rows.count(("op", "optimizer", f"Adam/update_layer_{i}/kernel/ResourceApplyAdam")) == 3
    assert any(kind == "worker" for kind, _, _ in rows)
    assert not any("SessionRun" in name for _, _, name in rows)
    assert len(imported.steps) == 3
