"""Profiler sessions of ours: complete files, no noise, and the program's own come first."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import time
import types
from pathlib import Path
from typing import Any

import pytest

from joulemap.frameworks.adapter import TracerBusy
from tests.environment import uncovered
from tests.tensorflow_live import attached, event_names, graphs

tf = pytest.importorskip("tensorflow", reason="needs TensorFlow")


@pytest.fixture
def busy() -> Any:
    return tf.function(lambda x: tf.matmul(x, x, name="the_product"))


def test_a_session_leaves_complete_files(tmp_path: Path, busy: Any):
    with attached(tmp_path, "tensorflow") as (adapter, _):
        busy(tf.ones((8, 8)))
        before_ns = time.time_ns()
        adapter.start(tmp_path / "0")
        busy(tf.ones((8, 8)))
        adapter.stop()
        after_ns = time.time_ns()
        assert any("the_product" in name for name in event_names(tmp_path / "0"))
        session = json.loads((tmp_path / "0" / "session.json").read_text())
        assert session["format"] == 1
        assert before_ns <= session["start_ns"] <= session["stop_ns"] <= after_ns
        assert any(node[0] == "the_product" for graph in graphs(tmp_path) for node in graph["nodes"])


def test_graphs_traced_before_attaching_do_no_harm(tmp_path: Path):
    traced = tf.function(lambda x: x + 1)
    traced(1.0)
    with attached(tmp_path, "tensorflow") as (adapter, heard):
        adapter.start(tmp_path / "0")
        traced(1.0)
        adapter.stop()
    assert len(heard.steps) == 1


def test_we_do_not_disturb_a_session_of_the_program(tmp_path: Path, busy: Any):
    with attached(tmp_path, "tensorflow") as (adapter, _):
        tf.profiler.experimental.start(str(tmp_path / "theirs"))
        with pytest.raises(TracerBusy) as busy_error:
            adapter.start(tmp_path / "0")
        busy(tf.ones((8, 8)))
        tf.profiler.experimental.stop()
        assert busy_error.value.hint
        assert any("the_product" in name for name in event_names(tmp_path / "theirs"))
        adapter.start(tmp_path / "1")
        adapter.stop()


def test_we_give_way_to_a_session_of_the_program(tmp_path: Path, busy: Any):
    with attached(tmp_path, "tensorflow") as (adapter, _):
        adapter.start(tmp_path / "0")
        with tf.profiler.experimental.Profile(str(tmp_path / "theirs")):
            busy(tf.ones((8, 8)))
        assert any("the_product" in name for name in event_names(tmp_path / "theirs"))
        assert not (tmp_path / "0").exists()
        with pytest.raises(TracerBusy):
            adapter.stop()
        adapter.start(tmp_path / "1")
        adapter.stop()


def test_stopping_what_the_program_did_not_start_fails_as_ever(tmp_path: Path):
    with attached(tmp_path, "tensorflow") as (adapter, _):
        adapter.start(tmp_path / "0")
        with pytest.raises(tf.errors.UnavailableError):
            tf.profiler.experimental.stop()
        adapter.stop()


def test_detaching_ends_a_session(tmp_path: Path, busy: Any):
    with attached(tmp_path, "tensorflow") as (adapter, _):
        adapter.start(tmp_path / "0")
    with tf.profiler.experimental.Profile(str(tmp_path / "theirs")):
        busy(tf.ones((8, 8)))
    assert any("the_product" in name for name in event_names(tmp_path / "theirs"))


@pytest.mark.parametrize("package", ["keras", "tf_keras"])
def test_eager_layers_and_phases_are_ranges_in_the_trace(tmp_path: Path, package: str):
    keras = pytest.importorskip(package, reason=f"needs {package}")
    model = keras.Sequential([keras.layers.Dense(4, name="dense")], name="model")
    optimizer = keras.optimizers.SGD(name="descent")

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(tf.ones((2, 4))))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    with attached(tmp_path, "tensorflow", package) as (adapter, heard):
        step()
        adapter.start(tmp_path / "0")
        step()
        adapter.stop()
        step()
        ours = {name for name in event_names(tmp_path / "0") if name.startswith("joulemap")}
    assert {"joulemap:model", "joulemap:model/dense", "joulemap:descent"} <= ours
    assert {"joulemap-phase:backward", "joulemap-phase:optimizer"} <= ours
    assert [step for step in heard.steps if "update_step" not in step] == []


def run(program: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    script = folder / "program.py"
    script.write_text(textwrap.dedent(program))
    root = Path(__file__).parents[1]
    loud = {name: value for name, value in uncovered().items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    return subprocess.run(
        [sys.executable, str(script), str(folder)],
        env={**loud, "PYTHONPATH": str(root), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_sessions_say_nothing_on_stderr(tmp_path: Path):
    program = """
        import sys
        from pathlib import Path
        import tensorflow as tf
        from tests.tensorflow_live import attached
        folder = Path(sys.argv[1])
        with attached(folder, "tensorflow") as (adapter, _):
            tf.ones(3) + 1
            print("from here", file=sys.stderr, flush=True)
            for i in range(3):
                adapter.start(folder / str(i))
                adapter.stop()
            adapter.start(folder / "dropped")
        print("to here", file=sys.stderr, flush=True)
        tf.profiler.experimental.start(str(folder / "theirs"))
        tf.profiler.experimental.stop()
    """
    ended = run(program, tmp_path)
    assert ended.returncode == 0, ended.stderr
    before, after = ended.stderr.split("from here\n")[1].split("to here\n")
    assert before == ""
    assert "Profiler session" in after  # the program's own is as loud as ever


def test_a_forked_child_is_left_alone(tmp_path: Path):
    program = """
        import os, sys
        from pathlib import Path
        import tensorflow as tf
        from tests.tensorflow_live import attached
        folder = Path(sys.argv[1])
        with attached(folder, "tensorflow") as (adapter, heard):
            adapter.start(folder / "0")
            child = os.fork()
            if child == 0:
                with tf.profiler.experimental.Trace("a step", step_num=1, _r=1):
                    pass
                os._exit(len(heard.steps))
            _, status = os.waitpid(child, 0)
            print("steps in the child:", os.waitstatus_to_exitcode(status))
            with tf.profiler.experimental.Trace("a step", step_num=1, _r=1):
                pass
            adapter.stop()
        print("steps in the parent:", len(heard.steps))
        print("files:", len(list((folder / "0").rglob("*.xplane.pb"))))
    """
    ended = run(program, tmp_path)
    assert ended.stdout.splitlines() == ["steps in the child: 0", "steps in the parent: 1", "files: 1"], (
        ended.stderr
    )


def test_a_child_that_ends_by_itself_ends_well_and_silently(tmp_path: Path):
    program = """
        import os, sys
        from pathlib import Path
        import tensorflow as tf
        from joulemap.frameworks.tensorflow.adapter import TensorFlowAdapter
        from tests.tensorflow_live import Heard
        folder = Path(sys.argv[1])
        adapter = TensorFlowAdapter(folder)
        adapter.attach("tensorflow", Heard())
        adapter.start(folder / "0")
        print("from here", file=sys.stderr, flush=True)
        child = os.fork()
        if child == 0:
            sys.exit(5)
        _, status = os.waitpid(child, 0)
        adapter.stop()
        adapter.detach()
        print("to here", file=sys.stderr, flush=True)
        print(os.waitstatus_to_exitcode(status))
    """
    ended = run(program, tmp_path)
    assert ended.stdout == "5\n", ended.stderr
    assert ended.stderr.split("from here\n")[1].split("to here\n")[0] == ""


def test_keras_on_another_backend_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    keras = types.ModuleType("keras")
    keras.__version__, keras.config = "3.15.1", types.SimpleNamespace(backend=lambda: "jax")
    monkeypatch.setitem(sys.modules, "keras", keras)
    before = dict(vars(keras))
    with attached(tmp_path, "keras"):
        assert vars(keras) == before
