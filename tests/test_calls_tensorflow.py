"""Calls of TensorFlow and Keras in a real program: public names, and nothing inside what is traced."""

from __future__ import annotations

import pytest

pytest.importorskip("tensorflow")

from .calls_programs import metered, recorded_calls, texts
from .environment import uncovered
from .test_run import plainly, program

PROGRAM = """
    import numpy as np
    import tensorflow as tf

    Model = tf.keras.Model
    x = np.ones((8, 4), "float32")

    class Mine(Model):
        def __init__(self):
            super().__init__()
            self.dense = tf.keras.layers.Dense(1, kernel_initializer="ones")

        def call(self, inputs):
            return self.dense(tf.nn.relu(inputs))

    def train(model, data):
        model.compile(optimizer="sgd", loss="mse")
        return model.fit(data, verbose=0)

    @tf.function
    def step(values):
        return tf.reduce_sum(tf.matmul(values, values, transpose_b=True))

    data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).map(lambda a, b: (tf.abs(a), b)).batch(4)
    train(Mine(), data)
    print(float(step(tf.constant(x))))
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(Mine()(x))
    print(float(loss), tape.gradient(loss, []))
    print(tf.keras.Sequential([tf.keras.layers.Dense(2)]).predict(x, verbose=0).shape)
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tensorflow")
    program(folder, PROGRAM)
    plain = plainly(folder, "program.py", env=uncovered())
    return folder, plain, metered(folder, "program.py", calls="tensorflow", env=uncovered())


def test_the_program_prints_what_it_did(ran):
    _, plain, ours = ran
    assert plain.returncode == ours.returncode == 0, ours.stderr
    assert ours.stdout == plain.stdout


def test_names_are_tensorflows_public_ones(ran):
    found = dict(zip(texts(recorded_calls(ran[0])), recorded_calls(ran[0]).api, strict=True))
    assert found["model.fit"] == "tensorflow.keras.Model.fit"
    assert found["Mine"] == "tensorflow.keras.Model"
    assert found["Mine()"] == "tensorflow.keras.Model.__call__"
    assert found["tf.data.Dataset.from_tensor_slices"] == "tensorflow.data.Dataset.from_tensor_slices"
    assert found["tape.gradient"] == "tensorflow.GradientTape.gradient"
    assert found["tf.reduce_mean"] == "tensorflow.reduce_mean"
    assert found["step"] == "tensorflow.types.experimental.PolymorphicFunction.__call__"
    predict = [api for text, api in found.items() if text.endswith(".predict")]
    assert predict == ["tensorflow.keras.Sequential.predict"]


def test_what_is_traced_is_not_measured_and_what_leads_there_is(ran):
    calls = recorded_calls(ran[0])
    called = texts(calls)
    assert "tf.matmul" not in called  # in a tf.function
    assert "tf.abs" not in called  # in a dataset's map
    assert called.count("tf.nn.relu") == 1  # of the eager call; not of the one that fit traces
    (eager,) = [row for row, text in enumerate(called) if text == "tf.nn.relu"]
    outer = calls.call.tolist().index(calls.parent[eager])
    assert called[outer] == "Mine()"
