"""Summarised names: what falls together, and what must not."""

import pytest

from joulemap.accounting import attribute
from joulemap.accounting.summarise import summarised_names
from joulemap.devices import Domain
from joulemap.errors import InputError
from joulemap.traces import EventTrace, PowerTrace


def footprint_of(energies):
    """A footprint in which each name has so many joules: one after the other at one watt."""
    second, names, starts, ends, now = 1_000_000_000, [], [], [], 0
    for name, joules in energies.items():
        names.append(name)
        starts.append(now * second)
        now += joules
        ends.append(now * second)
    power = PowerTrace(Domain("GPU:0", "GPU:0"), [0, now * second], [float(now)])
    return attribute(EventTrace.from_columns(name=names, device="GPU:0", start_ns=starts, end_ns=ends), power)


def energies_of(footprint):
    return {row["name"]: row["energy_j"] for row in footprint.to_records()}


def test_the_paper_s_example():
    footprint = footprint_of(
        {"bert/encoder/layer_0/output/dense/MatMul": 5, "bert/encoder/layer_1/output/dense/MatMul": 3}
    )
    found = energies_of(footprint.summarised())
    assert found == pytest.approx({"bert/encoder/layer_*/output/dense/MatMul": 8})
    ruled = energies_of(footprint.summarised(["layer_*=transformer"]))
    assert ruled == pytest.approx({"bert/encoder/transformer/output/dense/MatMul": 8})
    assert energies_of(footprint.summarised({"layer_*": "transformer"})) == pytest.approx(ruled)


def block(path, *operations):
    return [f"{path}/{operation}" for operation in operations]


def test_numbers_that_a_framework_gave_fall_together_inside_merged_blocks():
    names = []
    for layer in range(3):
        names += block(f"encoder/layer_{layer}/self", "MatMul", "MatMul_1", "Softmax")
        names += block(f"encoder/layer_{layer}/layer_normalization_{2 * layer + 7}", "mul", "add")
    merged = summarised_names(names)
    assert sorted(set(merged)) == [
        "encoder/layer_*/layer_normalization_*/add",
        "encoder/layer_*/layer_normalization_*/mul",
        "encoder/layer_*/self/MatMul",
        "encoder/layer_*/self/MatMul_1",
        "encoder/layer_*/self/Softmax",
    ]


def test_the_unnumbered_first_of_a_series_belongs_to_it():
    names = [f"{layer}/{op}" for layer in ("dense", "dense_1", "dense_2") for op in ("MatMul", "BiasAdd")]
    assert set(summarised_names(names)) == {"dense_*/MatMul", "dense_*/BiasAdd"}


def test_modules_in_a_list_and_numbers_in_the_middle():
    names = [f"model/layers/{i}/mlp/mm" for i in range(4)] + [f"net/block_{i}_conv/conv" for i in range(2)]
    assert set(summarised_names(names)) == {"model/layers/*/mlp/mm", "net/block_*_conv/conv"}


def test_what_differs_inside_stays_apart():
    names = block("net/conv_1", "Conv2D", "BiasAdd", "Relu") + block("net/conv_2", "MatMul", "Softmax")
    assert summarised_names(names) == names


def test_a_folded_constant_does_not_keep_a_layer_apart():
    operations = ("MatMul", "BiasAdd", "Gelu", "Mul", "Add", "Sub")
    names = block("e/layer_0", *operations, "ConstantFolding") + block("e/layer_1", *operations)
    assert "e/layer_*/MatMul" in summarised_names(names)


def test_operations_of_one_layer_stay_apart():
    names = ["self/MatMul", "self/MatMul_1", "self/Reshape_2"]
    assert summarised_names(names) == names


def test_energy_is_conserved_and_power_follows():
    footprint = footprint_of({f"layer_{i}/op{j}": 1 + i + j for i in range(4) for j in range(3)})
    merged = footprint.summarised().check()
    assert merged.attributed_j == pytest.approx(footprint.attributed_j)
    assert (merged.energy_j / merged.active_s).tolist() == pytest.approx([1.0] * len(merged))


@pytest.mark.parametrize("rule", ["layer_*", "=x", "layer="])
def test_a_rule_has_two_sides(rule):
    with pytest.raises(InputError, match="not a rule"):
        summarised_names(["a/b"], [rule])
