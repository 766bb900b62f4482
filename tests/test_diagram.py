"""Energy distribution diagrams: shares add up at every level, and edges are lifted to where they belong."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulemap.accounting.diagram import energy_distribution, lifted_edges
from joulemap.errors import InputError
from joulemap.program import Program

from .test_summarise import footprint_of

OPERATIONS = {
    "bert/embeddings/Gather": 1,
    "bert/encoder/layer_0/self/MatMul": 3,
    "bert/encoder/layer_0/output/MatMul": 5,
    "bert/encoder/layer_1/self/MatMul": 3,
    "bert/encoder/layer_1/output/MatMul": 5,
    "bert/encoder/layer_1/output": 2,
    "loss/Mean": 1,
}
EDGES = [
    ("bert/embeddings/Gather", "bert/encoder/layer_0/self/MatMul"),
    ("bert/encoder/layer_0/self/MatMul", "bert/encoder/layer_0/output/MatMul"),
    ("bert/encoder/layer_0/output/MatMul", "bert/encoder/layer_1/self/MatMul"),
    ("bert/encoder/layer_1/output/MatMul", "loss/Mean"),
    ("loss/Mean", "unknown/op"),
]


@pytest.fixture(name="diagram")
def make_diagram():
    program = Program.of(dict.fromkeys(OPERATIONS, "op"), EDGES)
    return energy_distribution(footprint_of(OPERATIONS), program)


def test_levels_boxes_and_shares(diagram):
    assert {box.name: box.share for box in diagram.boxes} == pytest.approx({"bert": 19 / 20, "loss": 1 / 20})
    encoder = diagram.at("bert/encoder")
    assert {box.name: box.share for box in encoder.boxes} == pytest.approx(
        {"layer_1": 10 / 18, "layer_0": 8 / 18}
    )
    layer = diagram.at("bert/encoder/layer_1")
    assert {box.name: box.energy_j for box in layer.boxes} == pytest.approx({"self": 3, "output": 7})
    output = diagram.at("bert/encoder/layer_1/output")
    assert {box.name: box.energy_j for box in output.boxes} == pytest.approx({"MatMul": 5, "(self)": 2})
    assert all(box.is_operation for box in output.boxes)


def test_edges_stand_where_their_ends_part(diagram):
    assert diagram.edges == (("bert", "loss"),)
    assert diagram.at("bert").edges == (("embeddings", "encoder"),)
    assert diagram.at("bert/encoder").edges == (("layer_0", "layer_1"),)
    assert diagram.at("bert/encoder/layer_0").edges == (("self", "output"),)


def test_edges_lead_through_what_has_no_energy():
    energies = {"a/x": 1, "b/y": 2}
    edges = [("a/x", "a/view"), ("a/view", "b/view"), ("b/view", "b/y"), ("b/view", "a/view")]
    program = Program.of(dict.fromkeys((*energies, "a/view", "b/view"), "op"), edges)
    assert energy_distribution(footprint_of(energies), program).edges == (("a", "b"),)


def test_a_phase_has_its_own_edges():
    there, back, always = ("a/t", "b/t"), ("b/t", "a/t"), ("a/t", "c/t")
    phases = {there: {"forward"}, back: {"backward"}}
    program = Program.of(dict.fromkeys(("a/t", "b/t", "c/t"), "t"), [there, back, always], phases)
    read = Program.from_json(program.to_json())
    assert read == program
    assert set(read.among(read.operations.keys()).edges) == {there, back, always}
    assert set(read.among(read.operations.keys(), "forward").edges) == {there, always}
    both = Program.joined([program, Program.of(program.operations, [there])])
    assert set(both.among(both.operations.keys(), "backward").edges) == {there, back, always}


def test_an_edge_into_a_layer_s_own_inside_starts_at_its_own_work():
    energies = {"m/a": 1, "m/a/x": 2}
    program = Program.of(dict.fromkeys(energies, "op"), [("m/a", "m/a/x")])
    assert energy_distribution(footprint_of(energies), program).at("m/a").edges == (("(self)", "x"),)


def test_one_phase_has_its_own_diagram(diagram):
    footprint = footprint_of(OPERATIONS)
    assert energy_distribution(footprint, Program(), phase="backward").boxes == ()
    assert energy_distribution(footprint, Program(), phase="other").energy_j == pytest.approx(20)


def test_a_layer_that_is_not_there_is_named(diagram):
    with pytest.raises(InputError, match="no layer 'bert/decoder'"):
        diagram.at("bert/decoder")


names = st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map("/".join)


@given(st.dictionaries(names, st.integers(0, 50), min_size=1, max_size=12), st.data())
def test_every_level_sums_to_one_and_every_edge_is_somewhere_once(energies, data):
    pairs = data.draw(st.lists(st.tuples(*[st.sampled_from(list(energies))] * 2), max_size=8))
    program = Program.of(dict.fromkeys(energies, "op"), pairs)
    if sum(energies.values()) == 0:
        energies["a"] = 1
    diagram = energy_distribution(footprint_of(energies), program)
    for level in diagram.walk():
        assert sum(box.share for box in level.boxes) == pytest.approx(1.0 if level.energy_j else 0.0)
        for box in level.boxes:
            if box.inside is not None:
                assert box.inside.energy_j == pytest.approx(box.energy_j)
    edges = sum(len(level) for level in lifted_edges(program.edges).values())
    assert edges <= len(program.edges)


def test_programs_survive_json():
    program = Program.of(dict.fromkeys(OPERATIONS, "op"), EDGES)
    assert Program.from_json(program.to_json()) == program
    with pytest.raises(InputError, match="not a program"):
        Program.from_json('{"operations": 3}')
