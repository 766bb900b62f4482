"""Graphs that a program made, on disk: nodes, scopes, function names."""

from __future__ import annotations

import gc
import json
from pathlib import Path

import pytest

from joulemap.frameworks.tensorflow.capture import GraphCapture

tf = pytest.importorskip("tensorflow", reason="needs TensorFlow")


def written(folder: Path) -> list[dict]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def graph_of_a_product() -> tuple[object, object]:
    @tf.function
    def product(a, b):
        with tf.control_dependencies([tf.debugging.assert_positive(a)]):
            return tf.matmul(a, b, name="product")

    concrete = product.get_concrete_function(tf.ones((2, 2)), tf.ones((2, 2)))
    return concrete, concrete.graph


def test_nodes_are_written_as_a_node_def_has_them(tmp_path: Path):
    _, graph = graph_of_a_product()
    capture = GraphCapture(tmp_path)
    capture.made(graph, "product", "__inference_product_7")
    capture.opened(graph, "dense_1", "model/dense")
    capture.write()
    [content] = written(tmp_path)
    definition = graph.as_graph_def(add_shapes=False)
    assert content["nodes"] == [[node.name, node.op, list(node.input)] for node in definition.node]
    assert any(name.startswith("^") for _, _, inputs in content["nodes"] for name in inputs)
    assert (content["format"], content["name"]) == (1, "product")
    assert content["functions"] == ["__inference_product_7"]
    assert content["scopes"] == {"dense_1": "model/dense"}


def test_a_second_output_is_named_with_its_number(tmp_path: Path):
    with tf.Graph().as_default() as graph:
        tf.add(*tf.split(tf.ones(4), 2), name="sum")
    capture = GraphCapture(tmp_path)
    capture.made(graph, "session")
    capture.write()
    [content] = written(tmp_path)
    assert next(node for node in content["nodes"] if node[0] == "sum")[2] == ["split", "split:1"]


def test_a_graph_is_written_again_only_when_it_has_grown(tmp_path: Path):
    with tf.Graph().as_default() as graph:
        tf.constant(1.0, name="one")
    capture = GraphCapture(tmp_path)
    capture.made(graph, "session")
    capture.write()
    (tmp_path / "0.json").unlink()
    capture.write()
    assert not written(tmp_path)
    with graph.as_default():
        tf.constant(2.0, name="two")
    capture.write()
    assert [node[0] for node in written(tmp_path)[0]["nodes"]] == ["one", "two"]


def test_a_graph_that_the_program_forgot_is_not_kept(tmp_path: Path):
    concrete, graph = graph_of_a_product()
    capture = GraphCapture(tmp_path)
    capture.made(graph, "product")
    del concrete, graph
    gc.collect()
    capture.write()
    assert not written(tmp_path)


def test_a_graph_that_never_ran_is_not_written(tmp_path: Path):
    with tf.Graph().as_default() as graph:
        tf.constant(1.0)
    capture = GraphCapture(tmp_path)
    capture.opened(graph, "dense_1", "dense")
    capture.write()
    assert not written(tmp_path)
