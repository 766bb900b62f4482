"""Real TensorFlow programs, once plainly and once under ``joulemap run``: whatever can be seen of them is the
same, and the recording opens, conserves, and knows their steps and layers."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from .same_programs import EXAMPLES, TESTS, Case, Home

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed"
)

HOME = Home(
    TESTS / "programs",
    {"TF_CPP_MIN_LOG_LEVEL": "3"},
    made_up=r"0x[0-9a-f]{6,}|__autograph_generated_file\w+",
)
TINY = ("--steps", "10", "--layers", "2", "--hidden", "32", "--batch", "4", "--seq", "32")
BERT = "pretraining/bert/encoder/layer_1/attention/self/query"

CASES = [
    Case("accumulation.py", ("train", "step"), ("sequential/dense_1",)),
    Case("checkpointing.py", ("train", "test"), ("sequential/dense_1",), dated="manager/checkpoint"),
    Case("cnn.py", ("train", "test"), ("sequential/conv2d_1", "sequential/dense")),
    Case("custom_loop.py", ("train",), ("perceptron",)),
    Case("custom_train_step.py", ("train", "test"), ("denoiser/dense", "denoiser/dense_1")),
    Case("eager_loop.py", (), ("sequential/inner", "sequential/outer")),
    Case("early_stopping.py", ("train", "test"), ("sequential/dense",)),
    Case("exits.py", ("train",), ("sequential/dense",), code=3),
    Case("functional.py", ("train", "test"), ("two_branches/shared", "two_branches/side")),
    Case("gan.py", ("duel",), ("generator/conv2d_transpose", "judge/conv2d")),
    Case("input_pipeline.py", ("train",), ("sequential/dense_1", "input pipeline")),
    Case("keras2.py", ("train", "test", "step"), ("classifier/first", "classifier/again")),
    Case("looks_inside.py", ("train",), ("sequential/four",)),
    Case("mixed_precision.py", ("train",), ("sequential/conv2d",)),
    Case("multi_output.py", ("train",), ("functional/look", "functional/feel")),
    Case("profiled.py", ("train",)),
    Case("raises.py", ("train",), ("sequential_1/dense_1",), code=1),
    Case("rnn.py", ("train",), ("sequential/both_ways", "sequential/summary")),
    Case("saved_model.py", ("train", "predict"), ("sequential/dense",), dated="exported/*|model.keras"),
    Case("subclassed.py", ("train",), ("residual_net/block_1/conv2d_3", "residual_net/dense")),
    Case("talks.py", ("train",), ("sequential/dense",)),
    Case("two_devices.py", ("train", "distributed"), ("sequential/dense_1",)),
    Case("v1_session.py", ("session.run",), ("hidden", "output")),
    Case("workers_fork.py", ("train",), ("sequential/dense",)),
    Case("workers_spawn.py", ("train",), ("sequential/dense",)),
    Case("xla.py", ("train", "power"), ("sequential/inner", "sequential/outer")),
    Case("bert_keras.py", ("train",), (BERT, "pretraining/cls/predictions"), arguments=TINY, options=()),
    Case(
        "albert_keras.py", ("train",), ("pretraining/bert/encoder/transformer",), arguments=TINY, options=()
    ),
    Case(
        "bert_v1_session.py",
        ("session.run",),
        ("bert/encoder/layer_1/attention",),
        arguments=TINY,
        options=(),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_program_runs_the_same_and_is_known(case: Case, tmp_path: Path) -> None:
    HOME.check(case, tmp_path)


def test_every_program_is_run() -> None:
    others = re.compile("torch|jax|flax")  # those of other frameworks, which have tests of their own
    examples = {path for path in EXAMPLES.glob("*.py") if not others.search(path.stem)}
    there = {path.name for path in {*HOME.folder.glob("*.py"), *examples}}
    assert there - {"toys.py", "corpus.py"} == {case.script for case in CASES}
