"""What JAX's names and Python stacks say, and how fusions are split."""

from __future__ import annotations

import pytest

from joulemap.frameworks.jax.names import read_stack
from joulemap.frameworks.jax.origins import functions, origin
from joulemap.frameworks.jax.restored import Schedule
from joulemap.frameworks.jax.work import work
from joulemap.frameworks.xplane.hlo import Instruction
from joulemap.frameworks.xplane.stacks import Call

OPTAX = "/venv/lib/python3.12/site-packages/optax"
MINE = "/home/me/train.py"


@pytest.mark.parametrize(
    ("name", "scopes", "phase"),
    [
        ("jit(f)/jvp(enc)/while/body/closed_call/layer/dot_general", "enc/layer", "forward"),
        ("jit(f)/transpose(jvp(enc))/while/body/closed_call/layer/dot_general", "enc/layer", "backward"),
        ("jit(f)/jvp(enc)/while/body/eval_jaxpr/layer/tanh", "enc/layer", "forward"),  # since JAX 0.11
        ("jit(f)/net/cond/branch_1_fun/layer/tanh", "net/layer", "forward"),
        ("jit(f)/net/while/cond/lt", "net", "forward"),
        ("jit(f)/vmap(transpose(jvp(layer)))/mul", "layer", "backward"),
        ("jit(f)/jvp(jit(inner))/scope/jit(_where)/select_n", "scope", "forward"),
        ("jit(f)/transpose(jvp(l2))/jvp(l2)/checkpoint/layer/mul", "l2/layer", "backward"),
        (
            "jit(f)/transpose(jvp(l2))/jvp(l2)/checkpoint/rematted_computation/layer/dot_general",
            "l2/layer",
            "recompute",
        ),
        ("jit(f)/shard_map/layer/dot_general", "layer", "forward"),
        ("pmap(f)/layer/dot_general", "layer", "forward"),
        (
            "jit(f)/jvp(Net)/memory/cell.scan_fn/while/body/closed_call/cell/hn/add",
            "Net/memory/cell/hn",
            "forward",
        ),
        ("jit(f)/transpose(jvp(net))/(down/dot:up/dot_general)/mul", "net/down/dot", "backward"),
        ("jit(f)/jvp(layer:0)/mul", "layer:0", "forward"),
        ("jit(f)/optimizer/adam/mul", "optimizer/adam", "optimizer"),
        ("jit(f)/while", "", "forward"),
        ("jit(f)/jvp(attention)/bqhd,bkhd->bhqk/dot_general", "attention", "forward"),
        ("jit(f)/body/cond/while/mul", "body/cond/while", "forward"),  # these are the program's own
    ],
)
def test_scopes_are_what_the_program_opened(name: str, scopes: str, phase: str) -> None:
    stack = read_stack(name)
    assert (stack.function, "/".join(stack.scopes), stack.phase) == ("f", scopes, phase)
    assert stack.operation == name.rpartition("/")[2]


def test_a_function_of_jax_that_is_one_operation_goes_by_its_name() -> None:
    assert read_stack("jit(f)/mlp/jit(silu)")[1:3] == (("mlp",), "silu")
    assert read_stack("jit(f)/head/transpose(jvp(jit(take_along_axis)))").operation == "take_along_axis"
    assert read_stack("jit(f)/head/jvp()").operation == "jvp()"


def test_an_optimizers_update_is_known_by_its_functions() -> None:
    calls = (
        Call(f"{OPTAX}/tree_utils/_tree_math.py", "tree_update_moment.<locals>.<lambda>"),
        Call(f"{OPTAX}/_src/transform.py", "scale_by_adam.<locals>.update_fn"),
        Call(f"{OPTAX}/_src/base.py", "with_extra_args_support.<locals>.update"),
        Call(f"{OPTAX}/transforms/_combining.py", "chain.<locals>.update_fn"),
        Call(MINE, "step"),
    )
    assert origin(calls) == ("optimizer", "scale_by_adam")
    applied = (Call(f"{OPTAX}/_src/update.py", "apply_updates.<locals>.<lambda>"), Call(MINE, "step"))
    assert origin(applied) == ("optimizer", "apply_updates")
    loss = (Call(f"{OPTAX}/losses/_classification.py", "softmax_cross_entropy"), Call(MINE, "step"))
    assert origin(loss) == ("loss", "softmax_cross_entropy")
    assert origin((Call(MINE, "optax_like"),)) is None


def test_what_is_in_no_scope_goes_by_the_programs_functions() -> None:
    calls = (
        Call("/venv/lib/python3.12/site-packages/jaxopt/base.py", "inside"),
        Call(MINE, "step.<locals>.loss.<locals>.<lambda>"),
        Call(MINE, "step.<locals>.loss"),
        Call(MINE, "step"),
        Call(MINE, "main"),
        Call(MINE, "<module>"),
    )
    assert functions(calls, "step") == ["step", "loss"]
    assert functions((), "step") == ["step"]
    assert functions(calls, "_fun") == ["main", "step", "loss"]  # pmap hides which of them it was given


def test_work_is_counted_in_operations_and_elements() -> None:
    left = Instruction(dimensions=[8, 16])
    assert work(Instruction(opcode="dot", dimensions=[8, 4], contracted=[1]), [left]) == 2 * 8 * 4 * 16
    assert work(Instruction(opcode="add", dimensions=[8, 4]), [left, left]) == 32
    assert work(Instruction(opcode="reduce", dimensions=[8]), [left]) == 128
    assert work(Instruction(opcode="custom-call", dimensions=[]), []) == 1


SCHEDULE = Schedule(
    [
        Instruction(name=name, opcode=opcode)
        for name, opcode in [
            ("p", "parameter"),
            ("custom-call.1", "custom-call"),
            ("loop_add_fusion.7", "fusion"),
            ("custom-call.2", "custom-call"),
            ("custom-call.3", "custom-call"),
            ("input_reduce_fusion", "fusion"),
            ("loop_add_fusion.9", "fusion"),
            ("custom-call.4", "custom-call"),
        ]
    ]
)


def test_kernels_of_graphs_are_found_by_their_order() -> None:
    kernels = ["Memset 0", "nvjet_a", "loop_add_fusion_2", "nvjet_b", "Memset 1", "nvjet_a"]
    kernels += ["input_reduce_fusion", "loop_add_fusion_2", "nvjet_c"]
    found, _ = SCHEDULE.restored(kernels)
    assert found == [
        "custom-call.1",
        "custom-call.1",
        "loop_add_fusion.7",
        "custom-call.2",
        "custom-call.3",
        "custom-call.3",
        "input_reduce_fusion",
        "loop_add_fusion.9",
        "custom-call.4",
    ]


def test_kernels_that_cannot_be_told_apart_get_no_name() -> None:
    kernels = [
        "nvjet_a",
        "split_k",
        "loop_add_fusion_2",
        "nvjet_b",
        "nvjet_b",
        "split_k",
        "input_reduce_fusion",
    ]
    found, _ = SCHEDULE.restored(kernels)
    assert found[:3] == ["custom-call.1", "custom-call.1", "loop_add_fusion.7"]  # one call, two kernels
    assert found[3:] == ["", "", "", "input_reduce_fusion"]  # two calls, three kernels


def test_a_program_in_several_graphs_goes_on_where_the_last_one_ended() -> None:
    _, end = SCHEDULE.restored(["nvjet_a", "loop_add_fusion_1"])
    found, _ = SCHEDULE.restored(["nvjet_a", "nvjet_a", "input_reduce_fusion", "loop_add_fusion_1"], end)
    assert found == ["custom-call.2", "custom-call.3", "input_reduce_fusion", "loop_add_fusion.9"]
