"""Names and phases of graph nodes, by what names say and by what the dataflow says; and RunMetadata."""

from pathlib import Path

import pytest

from joulemap.errors import InputError
from joulemap.frameworks import read_trace, textproto
from joulemap.frameworks.jax import names as jax_names
from joulemap.frameworks.tensorflow import roles, scopes
from joulemap.frameworks.tensorflow.dataflow import Node
from joulemap.frameworks.tensorflow.graphs import Graph, Graphs
from joulemap.frameworks.tensorflow.names import place_by_name, places
from joulemap.frameworks.tensorflow.naming import Naming
from joulemap.frameworks.tensorflow.reruns import with_whole_paths
from joulemap.frameworks.tensorflow.roles import Role
from joulemap.frameworks.tensorflow.scopes import Layers
from joulemap.frameworks.tensorflow.subjects import Context, Subject
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
        ("NoOp/_12", "NoOp"),
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
    assert found["opt_1/rate"] == ("opt/ReadVariableOp", "optimizer")


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


# Functions of one's own, without layers: names are only those that TensorFlow makes from operations.

PLAIN = {
    "x": Node("Placeholder"),
    "w_handle": Node("Placeholder"),
    "v_handle": Node("Placeholder"),
    "MatMul/ReadVariableOp": Node("ReadVariableOp", ("w_handle",)),
    "MatMul": Node("MatMul", ("x", "MatMul/ReadVariableOp")),
    "logistic_loss/Exp": Node("Exp", ("MatMul",)),
    "logistic_loss": Node("AddV2", ("logistic_loss/Exp",)),
    "gradient_tape/logistic_loss/mul": Node("Mul", ("logistic_loss/Exp",)),
    "gradient_tape/MatMul/MatMul": Node("MatMul", ("x", "gradient_tape/logistic_loss/mul")),
    "mul": Node("Mul", ("gradient_tape/MatMul/MatMul",)),
    "AssignSubVariableOp": Node("AssignSubVariableOp", ("w_handle", "mul")),
    "Identity": Node("Identity", ("logistic_loss",)),
}


def test_automatic_names_are_no_layers():
    found = places({**PLAIN, "Cast_2/ReadVariableOp": Node("ReadVariableOp", ("v_handle",))})
    assert found["MatMul"] == ("(unnamed)/MatMul", "forward")
    assert found["gradient_tape/MatMul/MatMul"] == ("(unnamed)/MatMul", "backward")
    assert found["Cast_2/ReadVariableOp"] == ("(unnamed)/ReadVariableOp", "forward")


def test_losses_outside_of_layers_are_together():
    found = places(PLAIN)
    assert found["logistic_loss/Exp"] == ("loss/logistic_loss/Exp", "forward")
    assert found["logistic_loss"] == ("loss/logistic_loss", "forward")
    assert found["gradient_tape/logistic_loss/mul"] == ("loss/logistic_loss/mul", "backward")


def test_an_update_by_hand_is_an_optimizer_and_no_metric():
    found = places(PLAIN)
    assert found["mul"] == ("optimizer/Mul", "optimizer")
    assert found["AssignSubVariableOp"] == ("optimizer/AssignSubVariableOp", "optimizer")
    assert not [place for place in found.values() if place.name.startswith("(metrics)")]


def test_what_runs_again_without_layers_is_recompute_if_it_has_a_gradient():
    again = {
        **PLAIN,
        "Max": Node("Max", ("gradient_tape/logistic_loss/mul",)),
        "AddV2": Node("AddV2", ("x", "Max")),
        "MatMul_1/ReadVariableOp": Node("ReadVariableOp", ("w_handle",)),
        "MatMul_1": Node("MatMul", ("AddV2", "MatMul_1/ReadVariableOp")),
        "Relu_1": Node("Relu", ("MatMul_1",)),
        "gradient_tape/ReluGrad": Node("ReluGrad", ("Relu_1",)),
        "gradient_tape/MatMul_1/MatMul": Node("MatMul", ("AddV2", "gradient_tape/ReluGrad")),
        "Mul_7": Node("Mul", ("gradient_tape/ReluGrad",)),
        "gradient_tape/Sigmoid/SigmoidGrad": Node("SigmoidGrad", ("Mul_7",)),
    }
    found = places(again)
    for node in ("MatMul_1", "Relu_1", "AddV2"):
        assert found[node] == (f"(unnamed)/{again[node].op}", "recompute")
    assert found["Mul_7"] == ("(unnamed)/Mul", "backward")  # a gradient that the program defines
    assert found["MatMul"].phase == "forward"


def test_scopes_without_layers_are_not_taken_for_recompute():
    """Grappler merges what is equal: in a timeline, the square in ``x**3`` may be the one of its gradient."""
    merged = {
        "x": Node("Placeholder"),
        "gradients/a/Pow_grad/Pow": Node("Square", ("x",)),
        "a/mul": Node("Mul", ("x", "gradients/a/Pow_grad/Pow")),
        "gradients/a/mul_grad/Mul": Node("Mul", ("a/mul",)),
    }
    assert places(merged)["a/mul"] == ("a/mul", "forward")


def test_what_a_loop_notes_for_its_gradient_is_the_forward_pass():
    grad = "rnn/while/gradient_tape/rnn/while/gradients/rnn/while/read_grad/TensorListLength"
    body = {
        "list": Node("Placeholder"),
        grad: Node("TensorListLength", ("list",)),
        "rnn/while/TensorListPushBack_12": Node("TensorListPushBack", ("list", grad)),
    }
    found = places(body, Layers({"rnn": "rnn"}))
    assert found["rnn/while/TensorListPushBack_12"].phase == "forward"


def test_replicas_add_up_under_the_same_layers():
    replica = {f"replica_1/{name}": node for name, node in STEP.items() if name.startswith("m_1/")}
    replica["gradient_tape/replica_1/m_1/d_1/MatMul/MatMul"] = Node("MatMul", ("x",))
    replica["replica_1/mul_1"] = Node("Mul", ("x",))
    replica["opt_1/update_0_1/Mul"] = Node("Mul", ("AddN", "opt_1/rate"))
    replica["opt_1/update_0_1/AssignSub"] = Node(
        "AssignSubVariableOp", ("kernel_handle", "opt_1/update_0_1/Mul")
    )
    found = places({**STEP, **replica}, LAYERS)
    assert found["replica_1/m_1/d_1/MatMul"] == found["m_1/d_1/MatMul"]
    assert found["gradient_tape/replica_1/m_1/d_1/MatMul/MatMul"] == ("m/d/MatMul/MatMul", "backward")
    assert found["replica_1/mul_1"] == ("(unnamed)/Mul", "forward")
    assert found["opt_1/update_0_1/AssignSub"] == ("opt/m/d/AssignSub", "optimizer")


@pytest.mark.parametrize(
    ("node", "op", "name", "phase"),
    [
        ("save_1/AssignVariableOp_7", "AssignVariableOp", "save/AssignVariableOp", "other"),
        ("global_step/Read/ReadVariableOp", "ReadVariableOp", "global_step/ReadVariableOp", "other"),
        ("rm_sprop/cond/Square_33", "Square", "rm_sprop/Square", "optimizer"),
        ("train/Adam/mul_1", "Mul", "train/Adam/Mul", "optimizer"),
        (
            "Adam/update_layer_0/kernel/ResourceApplyAdam",
            "ResourceApplyAdam",
            "Adam/update_layer_0/kernel/ResourceApplyAdam",
            "optimizer",
        ),
        ("while/add", "AddV2", "(unnamed)/AddV2", "forward"),
        ("mod", "FloorMod", "(unnamed)/FloorMod", "forward"),
        ("packed", "Pack", "(unnamed)/Pack", "forward"),
        ("compile_loss/mse/Mean", "Mean", "loss/mse/Mean", "forward"),
    ],
)
def test_names_alone(node, op, name, phase):
    assert place_by_name(node, op, Layers({"rm_sprop": "rm_sprop"})) == (name, phase)


@pytest.mark.parametrize(
    ("event", "op"),
    [
        ("_send_StatefulPartitionedCall/a/MatMul_0:_Send", "_Send"),
        ("StatefulPartitionedCall/Add_2/_1:_HostRecv", "_HostRecv"),
        ("_Send input 0 from /job:localhost/device:CPU:0 to /job:localhost/device:CPU:1", "_Send"),
        ("a/MatMul:MatMul", None),
    ],
)
def test_transfers_are_told_by_their_operation(event, op):
    assert roles.transfer(event) == op


def test_what_is_in_a_branch_has_the_branchs_phase():
    outer = Graph("step", {**STEP, "opt_1/cond": Node("If", ("AddN",))}, LAYERS)
    branch = Graph("opt_1_cond_true", {"opt_1/cond/Gather": Node("GatherV2"), "Greater": Node("Greater")})
    naming = Naming(Graphs([outer, branch]))
    calls = "StatefulPartitionedCall/opt_1/cond/then/_7/"
    nodes = {"opt_1/cond/Gather": "GatherV2", "Greater": "Greater"}
    asked = [(Subject(Role.NODE, node, calls + node, op), Context()) for node, op in nodes.items()]
    assert [(one.name, one.phase) for one in naming(asked)] == [
        ("opt/GatherV2", "optimizer"),
        ("opt/Greater", "optimizer"),
    ]


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
