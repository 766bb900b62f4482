"""Which scope belongs to which layer: every op of these models says where it is, and must be found there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.tensorflow_live import attached, graphs, marks

tf = pytest.importorskip("tensorflow", reason="needs TensorFlow")
KERAS = [
    pytest.param("keras", id="keras 3"),
    pytest.param("tf_keras", id="tf_keras"),
]


@pytest.fixture(params=KERAS)
def package(request: pytest.FixtureRequest) -> str:
    pytest.importorskip(request.param, reason=f"needs {request.param}")
    return request.param


def marking_dense(keras: Any) -> type:
    class Marked(keras.layers.Dense):
        """A dense layer whose op is named after where it is in the model."""

        def __init__(self, at: str, name: str | None = None) -> None:
            super().__init__(4, name=name or at.split("/")[-1])
            self.at = at

        def call(self, inputs: Any) -> Any:
            return tf.identity(super().call(inputs), name=f"at.{self.at.replace('/', '.')}-")

    return Marked


def test_siblings_and_layers_called_twice_keep_their_own_names(tmp_path: Path, package: str):
    keras = __import__(package)
    dense = marking_dense(keras)

    class Block(keras.layers.Layer):
        def __init__(self, at: str) -> None:
            super().__init__(name=at.split("/")[-1])
            self.first = dense(f"{at}/dense")
            self.second = dense(f"{at}/dense_1")
            self.third = dense(f"{at}/dense_2")

        def call(self, inputs: Any) -> Any:
            return self.third(self.second(self.first(self.first(inputs))))

    class Model(keras.Model):
        def __init__(self) -> None:
            super().__init__(name="bert")
            self.layer_0, self.layer_1 = Block("bert/layer_0"), Block("bert/layer_1")
            self.shared = dense("bert/shared")

        def call(self, inputs: Any) -> Any:
            return self.shared(self.layer_1(self.shared(self.layer_0(inputs))))

    with attached(tmp_path, "tensorflow", package):
        model = Model()
        model.compile("sgd", "mse")
        model.train_on_batch(tf.ones((2, 4)), tf.ones((2, 4)))
        model.predict_on_batch(tf.ones((2, 4)))
    blocks = {f"bert/layer_{i}/{name}" for i in (0, 1) for name in ("dense", "dense_1", "dense_2")}
    assert marks(tmp_path) == {(path, path) for path in blocks | {"bert/shared"}}


def test_functional_sequential_and_nested_models(tmp_path: Path, package: str):
    keras = __import__(package)
    dense = marking_dense(keras)
    with attached(tmp_path, "tensorflow", package):
        inner = keras.Sequential([dense("outer/inner/dense"), dense("outer/inner/dense_1")], name="inner")
        inputs = keras.Input((4,))
        outputs = dense("outer/head")(inner(inner(inputs)))
        model = keras.Model(inputs, outputs, name="outer")
        model.compile("sgd", "mse")
        model.fit(tf.ones((2, 4)), tf.ones((2, 4)), verbose=0)
    traced = {mark for mark in marks(tmp_path) if mark[1]}
    assert traced == {(path, path) for path in ("outer/inner/dense", "outer/inner/dense_1", "outer/head")}


def test_a_cell_inside_a_loop_belongs_to_its_layer(tmp_path: Path, package: str):
    keras = __import__(package)

    class Cell(keras.layers.SimpleRNNCell):
        def call(self, inputs: Any, states: Any, training: bool | None = None) -> Any:
            output, states = super().call(inputs, states, training=training)
            return tf.identity(output, name="at.model.recurrent.cell-"), states

    with attached(tmp_path, "tensorflow", package):
        recurrent = keras.layers.RNN(Cell(4, name="cell"), name="recurrent")
        model = keras.Sequential([recurrent], name="model")
        model.compile("sgd", "mse")
        model.train_on_batch(tf.ones((2, 3, 4)), tf.ones((2, 4)))
    assert ("model/recurrent/cell", "model/recurrent/cell") in marks(tmp_path)
    in_loops = [graph for graph in graphs(tmp_path) if "while_body" in graph["name"]]
    assert any("model/recurrent/cell" in graph["scopes"].values() for graph in in_loops)


def test_a_layer_tied_into_two_parents_has_one_path(tmp_path: Path, package: str):
    keras = __import__(package)
    dense = marking_dense(keras)
    tied = dense("model/encoder/tied")

    class Part(keras.layers.Layer):
        def __init__(self, name: str) -> None:
            super().__init__(name=name)
            self.tied = tied

        def call(self, inputs: Any) -> Any:
            return self.tied(inputs)

    class Model(keras.Model):
        def __init__(self) -> None:
            super().__init__(name="model")
            self.encoder, self.decoder = Part("encoder"), Part("decoder")

        def call(self, inputs: Any) -> Any:
            return self.decoder(self.encoder(inputs))

    with attached(tmp_path, "tensorflow", package):
        tf.function(Model())(tf.ones((2, 4)))
    assert marks(tmp_path) == {("model/encoder/tied", "model/encoder/tied")}


def test_a_model_used_alone_and_inside_another_has_a_path_in_each(tmp_path: Path, package: str):
    keras = __import__(package)
    part = keras.Sequential([keras.layers.Dense(4, name="dense")], name="part")
    whole = keras.Sequential([part], name="whole")
    with attached(tmp_path, "tensorflow", package):
        alone, within = tf.function(lambda x: part(x)), tf.function(lambda x: whole(x))
        alone(tf.ones((2, 4)))
        within(tf.ones((2, 4)))
    paths = {path for graph in graphs(tmp_path) for path in graph["scopes"].values()}
    assert {"part/dense", "whole/part/dense"} <= paths


def test_loss_and_optimizer_are_named(tmp_path: Path):
    keras = pytest.importorskip("keras", reason="needs Keras")
    with attached(tmp_path, "tensorflow", "keras"):
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile("adam", "mse")
        model.train_on_batch(tf.ones((2, 4)), tf.ones((2, 1)))
    paths = {path for graph in graphs(tmp_path) for path in graph["scopes"].values()}
    assert {"adam", "loss", "loss/mse"} <= paths


def test_a_layer_with_its_own_idea_of_equality(tmp_path: Path):
    keras = pytest.importorskip("keras", reason="needs Keras")

    class Equal(keras.layers.Dense):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = None

    with attached(tmp_path, "tensorflow", "keras"):
        one, two = Equal(4, name="one"), Equal(4, name="two")
        held: list[Any] = []
        tf.function(lambda x: held.append(1) or two(one(x)))(tf.ones((2, 4)))
    paths = {path for graph in graphs(tmp_path) for path in graph["scopes"].values()}
    assert paths == {"one", "two"}
