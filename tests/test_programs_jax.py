"""Real JAX programs, once plainly and once under ``joulemap run``: whatever can be seen of them is the same,
and the recording opens, conserves, and knows their steps and layers."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

import joulemap

from .command_line import joulemap as run_joulemap
from .same_programs import EXAMPLES, TESTS, Case, Home

MISSING = [name for name in ("jax", "flax", "optax") if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")

HOME = Home(
    TESTS / "programs_jax",
    {
        "PYTHONPATH": str(TESTS / "programs"),  # toys.py is there
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true",
    },
    made_up=r"0x[0-9a-f]{6,}",
)
GLUE = re.compile(
    r"\b(?:while|cond|branch_\d+_fun|body|closed_call|eval_jaxpr|checkpoint|pjit|shard_map|xla_pmap)/|\w\(|:"
)
"""What JAX and XLA put into names: none of the layers that the program has."""
TINY = ("--steps", "10", "--layers", "2", "--hidden", "32", "--heads", "2", "--batch", "4", "--seq", "32")
TINY += ("--dropout", "0")  # compiling what makes chance takes longest
TINY_LLM = ("--prompt", "16", "--tokens", "8", "--batch", "2", "--rounds", "3")

CASES = [
    Case("callbacks.py", ("tells", "slopes"), ("layer", "slope")),
    Case("exits.py", ("train_step",), ("line",), code=3),
    Case("keras_fit.py", ("train", "test", "predict"), ("conv", "classes", "optimizer")),
    Case(
        "linen_training.py", ("train_step", "<lambda>"), ("Net/first", "Net/head", "optimizer/scale_by_adam")
    ),
    Case("looks_inside.py", ("step", "<lambda>")),
    Case("nnx_training.py", ("train_step",), ("Net/entry", "Net/blocks/1/layer", "Net/head/layers/1")),
    Case("profiled.py", ("train",), ("model",)),
    Case("raises.py", ("step",), ("Layer",), code=1),
    Case(
        "recurrent.py",
        ("train_step", "go_on"),
        ("Reader/symbols", "Reader/memory/cell/h", "Reader/next", "careful", "go_on/say"),
    ),
    Case("transformations.py", ("scanned", "each", "halves"), ("stack/layer", "layer")),
    Case(
        "two_devices.py",
        ("by_compiler", "by_hand", "members"),
        ("net/up", "net/down", "optimizer", "by_hand/loss", "by_pmap"),
    ),
    Case(
        "bert_flax.py",
        ("train_step",),
        ("Pretraining/bert/encoder/layer_1/attention/self/query", "Pretraining/cls/predictions"),
        arguments=TINY,
    ),
    Case(
        "bert_flax.py",
        ("predict_step",),
        ("Pretraining/bert/encoder/layer/1/attention/self/query", "Pretraining/cls/predictions"),
        arguments=(*TINY, "--api", "nnx", "--stage", "predict"),
    ),
    Case(
        "llm_jax.py",
        ("read_prompt", "next_token"),
        ("model/layers/3/self_attn/q_proj", "lm_head"),
        timed=r"\S+ tokens/s",
        arguments=TINY_LLM,
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_program_runs_the_same_and_is_known(case: Case, tmp_path: Path) -> None:
    HOME.check(case, tmp_path)
    names = joulemap.load(tmp_path / "r.joulemap").program().operations
    assert [name for name in names if GLUE.search(name)] == []


ONE_CALL = """
import os, sys, time
from pathlib import Path
import jax

@jax.jit
def train(x):
    def turn(x):
        with jax.named_scope("layer"):
            return jax.numpy.tanh(x @ x)
    return jax.lax.while_loop(lambda x: x.sum() < 1e9, turn, x)  # it never is

def sessions():
    return len(list(Path(sys.argv[1]).rglob("*.xplane.pb")))

result = train(jax.numpy.eye(300))
before = sessions()
while sessions() < before + 2:  # the second began after the call
    time.sleep(0.1)
os._exit(0)
"""


def test_a_program_that_computes_everything_in_one_call_is_sliced(tmp_path: Path) -> None:
    path, program = tmp_path / "r.joulemap", tmp_path / "train.py"
    program.write_text(ONE_CALL)
    run_joulemap("run", "-q", "--trace-all", "-o", path, program, path, JAX_PLATFORMS="cpu")
    recording = joulemap.load(path)
    steps = recording.steps()
    assert steps is not None
    assert set(steps.label) == {"slice"}
    assert "layer/dot_general" in set(recording.events().name)


def test_every_program_is_run() -> None:
    there = {path.name for path in (*HOME.folder.glob("*.py"), *EXAMPLES.glob("*_jax.py"))}
    assert there | {"bert_flax.py"} == {case.script for case in CASES}
