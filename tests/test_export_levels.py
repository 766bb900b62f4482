"""Diagrams of several levels: layers opened inside each other, and arrows from box to box across them."""

import xml.etree.ElementTree as ET

import pygraphviz
import pytest

from joulemap.accounting import attribute
from joulemap.accounting.diagram import energy_distribution
from joulemap.exports.graph import dot
from joulemap.exports.picture import svg
from joulemap.program import Program

from .small_traces import one_watt, trace
from .test_summarise import footprint_of

ENERGIES = {
    "net/a/MatMul": 40,
    "net/a/Add": 20,
    "net/b/MatMul": 30,
    "net/b": 10,
    "net/tiny/Cast": 1,
    **{f"net/loner_{number}": 2 for number in range(9)},
}
WHOLE_J = sum(ENERGIES.values())
FLOWS = [("net/a/MatMul", "net/a/Add"), ("net/a/Add", "net/b/MatMul"), ("net/b", "net/tiny/Cast")]
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(name="diagram", scope="module")
def make_diagram():
    program = Program.of(dict.fromkeys(ENERGIES, "op"), FLOWS)
    return energy_distribution(footprint_of(ENERGIES), program, "net")


def share(*names):
    return f"{100 * sum(ENERGIES[name] for name in names) / WHOLE_J:.1f} %"


def shown(graph, edge):
    return tuple(graph.get_node(end).attr["label"].split("\\n")[0] for end in edge)


def test_a_graph_has_layers_in_each_other_and_the_smallest_stay_closed(diagram):
    graph = pygraphviz.AGraph(dot(diagram, depth=2))
    frames = {frame.name: frame for frame in graph.subgraphs()}
    assert list(frames) == ["cluster net/a", "cluster net/b"]
    assert frames["cluster net/a"].graph_attr["label"] == f"a {share('net/a/MatMul', 'net/a/Add')}"
    inside = {node.attr["label"] for node in frames["cluster net/b"].nodes()}
    assert inside == {f"MatMul\\n{share('net/b/MatMul')}", f"(self)\\n{share('net/b')}"}
    ends = sorted(shown(graph, edge) for edge in graph.edges())
    assert ends == [("(self)", "tiny"), ("Add", "MatMul"), ("MatMul", "Add")]
    closed = pygraphviz.AGraph(dot(diagram))
    assert not closed.subgraphs()
    assert sorted(shown(closed, edge) for edge in closed.edges()) == [("a", "b"), ("b", "tiny")]


def test_a_picture_has_everything_inside_its_frame(diagram):
    picture = ET.fromstring(svg(diagram, depth=2))
    groups = [group for group in picture.iter(f"{SVG}g") if group.find(f"{SVG}title") is not None]
    place = {group.find(f"{SVG}title").text.split(":")[0]: group.find(f"{SVG}rect") for group in groups}
    assert place.keys() == {*ENERGIES, "net/b/(self)", "net/a", "net/tiny"} - {"net/tiny/Cast"}
    for path, box in place.items():
        frame = place.get(path.rpartition("/")[0])
        if frame is not None:
            assert_inside(box, frame)
    assert sum(path.get("marker-end") is not None for path in picture.iter(f"{SVG}path")) == 3
    assert len({box.get("y") for path, box in place.items() if "loner" in path}) == 3, "four in a row"


def assert_inside(box, frame):
    (x, y, width, height), (left, top, wide, high) = (
        [float(one.get(key)) for key in ("x", "y", "width", "height")] for one in (box, frame)
    )
    assert left < x < x + width < left + wide
    assert top + 18 < y < y + height < top + high, "below the headline"


def test_the_forward_pass_goes_down():
    back, forth = ("m/second/Mul", "m/first/Mul"), ("m/first/Mul", "m/second/Mul")
    phases = {back: {"backward"}, forth: {"forward"}}
    program = Program.of(dict.fromkeys(forth, "op"), [back, forth], phases)
    spans = trace(
        *((name, at, at + 1) for at, name in enumerate((*forth, *back))),
        phase=["forward"] * 2 + ["backward"] * 2,
    )
    diagram = energy_distribution(attribute(spans, one_watt(4)), program, "m")
    assert diagram.edges == (("first", "second"), ("second", "first"))
    picture = ET.fromstring(svg(diagram))
    height = {text.text: float(text.get("y")) for text in picture.iter(f"{SVG}text")}
    assert height["first"] < height["second"]
