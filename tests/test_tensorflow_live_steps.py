"""Where steps begin and end: in Keras, functions, sessions, and what the program marks itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.tensorflow_live import Heard, attached

tf = pytest.importorskip("tensorflow", reason="needs TensorFlow")


def keras_model(package: str, **compile_options: Any) -> Any:
    keras = pytest.importorskip(package, reason=f"needs {package}")
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse", **compile_options)
    return model


DATA, TARGETS = tf.ones((12, 4)), tf.ones((12, 1))
PACKAGES = pytest.mark.parametrize("package", ["keras", "tf_keras"])


def steps_of(heard: Heard) -> list[str]:
    steps, heard.steps = heard.steps, []
    return steps


@PACKAGES
@pytest.mark.parametrize("eagerly", [False, True])
def test_fit_evaluate_and_predict(tmp_path: Path, package: str, eagerly: bool):
    with attached(tmp_path, "tensorflow", package) as (_, heard):
        model = keras_model(package, run_eagerly=eagerly)
        model.fit(DATA, TARGETS, batch_size=4, epochs=2, verbose=0)
        assert steps_of(heard) == ["train"] * 6
        model.evaluate(DATA, TARGETS, batch_size=4, verbose=0)
        assert steps_of(heard) == ["test"] * 3
        model.predict(DATA, batch_size=4, verbose=0)
        predicted = steps_of(heard)
    if package == "keras" or not eagerly:
        assert predicted == ["predict"] * 3


@PACKAGES
def test_single_batches(tmp_path: Path, package: str):
    with attached(tmp_path, "tensorflow", package) as (_, heard):
        model = keras_model(package)
        model.train_on_batch(DATA, TARGETS)
        model.test_on_batch(DATA, TARGETS)
        model.predict_on_batch(DATA)
        assert heard.steps == ["train", "test", "predict"]


@PACKAGES
def test_several_batches_in_one_execution_are_one_step(tmp_path: Path, package: str):
    with attached(tmp_path, "tensorflow", package) as (_, heard):
        model = keras_model(package, steps_per_execution=3)
        model.fit(DATA, TARGETS, batch_size=2, verbose=0)
        assert heard.steps == ["train"] * 2


def test_a_model_made_before_is_heard_and_keeps_nothing_of_it(tmp_path: Path):
    model = keras_model("keras")
    model.train_on_batch(DATA, TARGETS)
    plain = vars(model)["train_function"]
    with attached(tmp_path, "tensorflow", "keras") as (_, heard):
        model.train_on_batch(DATA, TARGETS)
        model.train_function = model.train_function
        assert vars(model)["train_function"] is plain
    assert heard.steps == ["train"]
    assert model.train_function is plain


def test_the_step_that_compiles_says_so(tmp_path: Path):
    with attached(tmp_path, "tensorflow", "keras") as (_, heard):
        model = keras_model("keras")
        model.fit(DATA, TARGETS, batch_size=4, verbose=0)
        assert heard.compiled_steps == [1]
        model.fit(DATA[:7], TARGETS[:7], batch_size=7, verbose=0)
        assert heard.compiled_steps == [1, 4]


def test_the_outermost_function_is_the_step(tmp_path: Path):
    @tf.function
    def inner(x):
        return x * 2

    @tf.function
    def training_step(x):
        return inner(x) + 1

    with attached(tmp_path, "tensorflow") as (_, heard):
        for _ in range(3):
            training_step(tf.ones(3))
        inner(tf.ones(3))
    assert heard.steps == ["training_step"] * 3 + ["inner"]
    assert heard.compiled_steps == [1]


def test_functions_that_are_run_eagerly(tmp_path: Path):
    with attached(tmp_path, "tensorflow") as (_, heard):
        tf.config.run_functions_eagerly(True)
        try:
            tf.function(lambda x: x + 1)(tf.ones(3))
        finally:
            tf.config.run_functions_eagerly(False)
    assert len(heard.steps) == 1


def test_a_function_that_raises_has_an_end(tmp_path: Path):
    @tf.function
    def fails(x):
        tf.debugging.assert_less(x, 0.0)

    with attached(tmp_path, "tensorflow") as (_, heard):
        for _ in range(2):
            with pytest.raises(tf.errors.InvalidArgumentError):
                fails(1.0)
        assert heard.depth == 0
    assert heard.steps == ["fails"] * 2


def test_signatures_of_a_saved_model(tmp_path: Path):
    class Doubler(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None])])
        def double(self, x):
            return {"y": x * 2}

    module = Doubler()
    tf.saved_model.save(module, str(tmp_path / "saved"), signatures=module.double)
    loaded = tf.saved_model.load(str(tmp_path / "saved"))
    with attached(tmp_path, "tensorflow") as (_, heard):
        loaded.signatures["serving_default"](tf.ones(3))
        loaded.double(tf.ones(3))
    assert heard.steps == ["signature_wrapper_double", "restored_function_body"]


def test_arguments_may_have_any_name(tmp_path: Path):
    def add(hook, function, original, watch):
        return hook + function + original + watch

    one = tf.constant(1.0)
    names = {"hook": one, "function": one, "original": one, "watch": one}
    with attached(tmp_path, "tensorflow") as (_, heard):
        concrete = tf.function(add).get_concrete_function(**names)
        assert float(concrete(**names)) == 4.0
    assert heard.steps == ["add"]


def test_steps_that_the_program_annotates(tmp_path: Path):
    with attached(tmp_path, "tensorflow") as (_, heard):
        for i in range(2):
            with tf.profiler.experimental.Trace("my step", step_num=i, _r=1):
                tf.ones(3) + 1
        with tf.profiler.experimental.Trace("not a step"):
            tf.ones(3) + 1
    assert heard.steps == ["my step"] * 2


def test_sessions(tmp_path: Path):
    v1 = tf.compat.v1
    with attached(tmp_path, "tensorflow") as (_, heard), tf.Graph().as_default():
        x = v1.placeholder(tf.float32, [None], name="x")
        doubled, tripled = x * 2, x * 3
        with v1.Session() as session:
            for _ in range(2):
                assert session.run(doubled, {x: [1.0]}) == [2.0]
            session.run({"a": [doubled, tripled]}, {x: [1.0]})
            session.run({"a": [doubled, tripled]}, {x: [1.0]})
    assert heard.steps == ["session.run"] * 4
    assert heard.compiled_steps == [1, 3]


def test_monitored_sessions(tmp_path: Path):
    v1 = tf.compat.v1
    with attached(tmp_path, "tensorflow") as (_, heard), tf.Graph().as_default():
        count = v1.train.get_or_create_global_step()
        more = v1.assign_add(count, 1)
        with v1.train.MonitoredTrainingSession() as session:
            steps_of(heard)  # those that set the session up
            for _ in range(3):
                session.run(more)
            steps = steps_of(heard)
    assert steps == ["session.run"] * 3


def test_a_hook_that_fails_is_noted_once_and_the_program_goes_on(tmp_path: Path):
    from joulemap.frameworks.tensorflow.adapter import TensorFlowAdapter

    class Broken(Heard):
        def begin(self, label: str) -> None:
            raise RuntimeError("the listener is broken")

    adapter = TensorFlowAdapter(tmp_path)
    adapter.attach("tensorflow", Broken())
    try:
        double = tf.function(lambda x: x * 2)
        assert [float(double(2.0)) for _ in range(3)] == [4.0] * 3
    finally:
        adapter.detach()
    [problem] = adapter.problems
    assert "the listener is broken" in problem
