"""A program is what it was: results to the last bit, files, exceptions; and so are TensorFlow's classes."""

from __future__ import annotations

import difflib
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.environment import uncovered
from tests.tensorflow_live import attached

tf = pytest.importorskip("tensorflow", reason="needs TensorFlow")

RUNNER = """
import runpy, sys
from pathlib import Path

def listen():
    import tensorflow, keras, tf_keras
    from joulemap.frameworks.tensorflow.adapter import TensorFlowAdapter
    from tests.tensorflow_live import Heard

    class Tracing(Heard):
        # Traces every other step, as a recorder might.
        session = None
        def begin(self, label):
            super().begin(label)
            if self.depth == 1 and len(self.steps) % 2:
                self.session = Path(sys.argv[1]) / str(len(self.steps))
                adapter.start(self.session)
        def end(self, done=False):
            super().end(done)
            if self.depth == 0 and self.session:
                adapter.stop()
                self.session = None

    adapter = TensorFlowAdapter(Path(sys.argv[1]))
    for module in adapter.watches:
        adapter.attach(module, Tracing())
    return adapter

adapter = listen() if sys.argv[2] == "attached" else None
try:
    runpy.run_path("program.py", run_name="__main__")
finally:
    if adapter is not None:
        adapter.detach()
        assert not adapter.problems, adapter.problems
        assert list(Path(sys.argv[1]).rglob("*.xplane.pb"))
"""

PREAMBLE = """
import hashlib, os
import numpy as np
import tensorflow as tf
import keras

keras.utils.set_random_seed(7)
tf.config.experimental.enable_op_determinism()

def digest(*tensors):
    print([hashlib.sha256(np.asarray(one).tobytes()).hexdigest()[:16] for one in tensors])

def files(folder):
    for path in sorted(os.path.join(top, name) for top, _, names in os.walk(folder) for name in names):
        print(path, hashlib.sha256(open(path, "rb").read()).hexdigest()[:16])

x, y = np.random.rand(32, 8).astype("float32"), np.random.rand(32, 1).astype("float32")
"""

# A strategy's iterator is let go while it still fetches ahead: TensorFlow then says so, or has just ended.
RACE = r"(?m)^Local rendezvous is aborting with status: CANCELLED.*\n?(?:\t \[\[.*\n?)*"


def outcome(folder: Path, program: str, how: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a program, run plainly or with the adapter attached and tracing."""
    work = folder / how
    work.mkdir()
    (work / "program.py").write_text(PREAMBLE + textwrap.dedent(program))
    (work / "runner.py").write_text(RUNNER)
    root = Path(__file__).parents[1]
    ended = subprocess.run(
        [sys.executable, "runner.py", str(folder / "raw"), how],
        cwd=work,
        env={**uncovered(), "PYTHONPATH": str(root), "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    return ended.returncode, _comparable(ended.stdout, work), _comparable(ended.stderr, work)


def _comparable(text: str, work: Path) -> str:
    """Without what differs from run to run anyway: log stamps, addresses, folders."""
    text = re.sub(r"(?m)^[IWE]\d{4} .*?\] ", "", text.replace(str(work), ""))
    text = re.sub(r'0x[0-9a-f]{8,}\b(?!p)|(?<="shared_object_id": )\d+', "", text)
    text = re.sub(RACE, "", text)
    return "\n".join(line for line in text.splitlines() if not _said_by_time(line))


def _said_by_time(line: str) -> bool:
    """Abseil's remark on its own start comes once for each library that logs, whoever loads it; and others
    once in so many seconds."""
    words = (
        "All log messages before",
        "oneDNN custom",
        "cuda drivers",
        "This TensorFlow binary",
        "To enable the",
        "will not be optimized because the dataset",
    )
    return any(word in line for word in words)


def same(folder: Path, program: str) -> tuple[int, str, str]:
    plain, ours = outcome(folder, program, "plain"), outcome(folder, program, "attached")
    assert ours[0] == plain[0], ours[2]
    for before, after in zip(plain[1:], ours[1:], strict=True):
        difference = difflib.unified_diff(before.splitlines(), after.splitlines(), "plain", "attached", n=0)
        assert before == after, "\n".join(difference)
    return ours


def test_training_saving_and_looking_at_it(tmp_path: Path):
    code, out, err = same(
        tmp_path,
        """
        import copy, inspect, json, pickle, zipfile

        layers = keras.layers
        model = keras.Sequential([layers.Dense(16, "relu"), layers.Dropout(0.5), layers.Dense(1)])
        model.compile("adam", "mse", metrics=["mae"])
        history = model.fit(x, y, batch_size=8, epochs=2, validation_data=(x, y), verbose=0)
        print({name: [value.hex() for value in values] for name, values in history.history.items()})
        digest(*model.get_weights(), model.predict(x, verbose=0))
        print(json.dumps(model.get_config()), model.optimizer.get_config())
        print([inspect.signature(method) for method in (model.call, model.train_step, model.fit)])
        print(type(model.train_function), model.train_function.__name__, type(model.predict_function))
        print(sorted(vars(model)))
        model.save("model.keras")
        with zipfile.ZipFile("model.keras") as archive:
            print(archive.namelist(), archive.read("config.json"))
        tf.train.Checkpoint(model).write("checkpoint/c")
        print(tf.train.list_variables("checkpoint/c"))
        print(tf.train.load_checkpoint("checkpoint/c").get_tensor("_CHECKPOINTABLE_OBJECT_GRAPH"))
        model.export("exported", verbose=False)
        loaded = tf.saved_model.load("exported")
        digest(loaded.serve(x))
        tf.saved_model.save(tf.train.Checkpoint(v=tf.Variable(1.0)), "plain_saved")
        digest(*pickle.loads(pickle.dumps(model)).get_weights(), *copy.deepcopy(model).get_weights())
        digest(*keras.models.clone_model(model).get_weights())
        digest(*keras.models.load_model("model.keras").get_weights())
        """,
    )
    assert code == 0, err
    assert "val_mae" in out


def test_mixed_precision_in_a_loop_of_ones_own(tmp_path: Path):
    code, _, err = same(
        tmp_path,
        """
        import inspect

        keras.mixed_precision.set_global_policy("mixed_bfloat16")

        class Own(keras.Model):
            def train_step(self, data):
                x, y = data
                with tf.GradientTape() as tape:
                    loss = keras.ops.mean((self(x, training=True) - y) ** 2)
                self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
                return {"loss": loss}

        inputs = keras.Input((8,))
        model = Own(inputs, keras.layers.Dense(1, dtype="float32")(keras.layers.Dense(8)(inputs)))
        model.compile("adam")
        model.fit(x, y, batch_size=8, verbose=0)
        digest(*model.get_weights())
        optimizer, other = keras.optimizers.SGD(), keras.Sequential([keras.layers.Dense(1)])

        @tf.function(reduce_retracing=True)
        def step(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((tf.cast(other(x), "float32") - y) ** 2)
            weights = other.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
            return loss

        print([float(step(x, y)).hex() for _ in range(4)], step.experimental_get_tracing_count())
        print(inspect.signature(step), step.function_spec.fullargspec)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(other(x))
        digest(*tape.gradient(loss, other.trainable_variables))
        """,
    )
    assert code == 0, err


def test_a_strategy_on_two_virtual_processors(tmp_path: Path):
    code, _, err = same(
        tmp_path,
        """
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        with strategy.scope():
            model = keras.Sequential([keras.layers.Dense(8), keras.layers.Dense(1)])
            model.compile("adam", "mse")
        model.fit(x, y, batch_size=8, epochs=2, verbose=0)
        print(strategy.num_replicas_in_sync, float(model.evaluate(x, y, verbose=0)).hex())
        digest(*model.get_weights())
        """,
    )
    assert code == 0, err


def test_tf_keras_and_sessions(tmp_path: Path):
    pytest.importorskip("tf_keras", reason="needs tf_keras")
    code, _, err = same(
        tmp_path,
        """
        import tf_keras

        tf_keras.utils.set_random_seed(7)
        model = tf_keras.Sequential([tf_keras.layers.Dense(8, "relu"), tf_keras.layers.Dense(1)])
        model.compile("adam", "mse")
        model.fit(x, y, batch_size=8, epochs=2, verbose=0)
        digest(*model.get_weights(), model.predict(x, verbose=0))
        print(model.to_json())
        model.save("saved", save_format="tf")
        digest(tf_keras.models.load_model("saved").predict(x, verbose=0))
        v1 = tf.compat.v1
        with tf.Graph().as_default():
            v1.set_random_seed(7)
            v1.train.get_or_create_global_step()
            w = v1.get_variable("w", [8, 1])
            loss = tf.reduce_mean((tf.matmul(tf.constant(x), w) - y) ** 2)
            train = v1.train.AdamOptimizer().minimize(loss)
            with v1.train.MonitoredTrainingSession(checkpoint_dir="v1") as session:
                print([float(session.run([loss, train])[0]).hex() for _ in range(4)])
        """,
    )
    assert code == 0, err


def test_exceptions_and_their_tracebacks(tmp_path: Path):
    if sys.version_info < (3, 11):
        pytest.skip("before Python 3.11 our frame is in the traceback")
    code, out, err = same(
        tmp_path,
        """
        import traceback

        class Fails(keras.Model):
            def train_step(self, data):
                raise ValueError("from the program")

        def in_keras(**options):
            model = Fails()
            model.compile("sgd", **options)
            model.fit(x, y, verbose=0)

        @tf.function
        def fails(x):
            return tf.debugging.check_numerics(1.0 / x, "from the program")

        def in_a_session():
            with tf.Graph().as_default(), tf.compat.v1.Session() as session:
                session.run(tf.debugging.check_numerics(tf.constant(1.0) / 0.0, "from the program"))

        def in_a_gradient():
            with tf.GradientTape() as tape:
                loss = tf.constant(1.0)
            tape.gradient(loss, "nothing to differentiate by")

        zero = tf.constant(0.0)
        concrete = fails.get_concrete_function(zero)
        for fail in (
            in_keras,
            lambda: in_keras(run_eagerly=True),
            lambda: fails(zero),
            lambda: concrete(zero),
            in_a_session,
            in_a_gradient,
        ):
            try:
                fail()
            except Exception:
                print(traceback.format_exc())
        in_keras(run_eagerly=True)
        """,
    )
    assert code == 1
    assert out.count("Traceback") >= 6
    assert "from the program" in err


def attributes() -> dict[str, Any]:
    """Every attribute of every class and module that a hook is put into, and of their neighbours."""
    import keras
    import tf_keras

    places = [
        keras.src.backend.tensorflow.core.name_scope,
        keras.src.backend.tensorflow.trainer.TensorFlowTrainer,
        tf_keras.src.engine.base_layer_utils.CallContextManager,
        tf_keras.src.mixed_precision.autocast_variable.enable_auto_cast_variables,
        tf_keras.src.optimizers.optimizer._BaseOptimizer,
        tf_keras.src.optimizers.legacy.optimizer_v2.OptimizerV2,
        tf.GradientTape,
        tf.compat.v1.Session.__mro__[1],
        tf.profiler.experimental.Trace,
    ]
    from tensorflow.python.eager.polymorphic_function import (
        atomic_function,
        concrete_function,
        polymorphic_function,
    )
    from tensorflow.python.profiler.internal import _pywrap_profiler

    modules = [atomic_function, polymorphic_function, _pywrap_profiler]
    places += [concrete_function.ConcreteFunction, *modules]
    return {f"{place.__name__}.{name}": value for place in places for name, value in vars(place).items()}


def test_detaching_leaves_every_attribute_as_it_was(tmp_path: Path):
    pytest.importorskip("tf_keras", reason="needs tf_keras")
    before = attributes()
    with attached(tmp_path, "tensorflow", "keras", "tf_keras"):
        during = attributes()
        changed = {name for name in during if during[name] is not before.get(name)}
    after = attributes()
    assert len(changed) >= 15
    assert before.keys() == after.keys()
    assert all(after[name] is before[name] for name in before)


def test_what_others_put_over_ours_stays(tmp_path: Path):
    with attached(tmp_path, "tensorflow"):
        ours = tf.GradientTape.gradient
        theirs = lambda *args, **kwargs: ours(*args, **kwargs)  # noqa: E731
        tf.GradientTape.gradient = theirs
    try:
        assert tf.GradientTape.gradient is theirs
        x = tf.Variable(3.0)
        with tf.GradientTape() as tape:
            y = x * x
        assert float(tape.gradient(y, x)) == 6.0
    finally:
        tf.GradientTape.gradient = ours.__wrapped__
