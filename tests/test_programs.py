"""Real TensorFlow programs, once plainly and once under ``joulemap run``: whatever can be seen of them is the
same, and the recording opens, conserves, and knows their steps and layers."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import pytest

import joulemap

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed"
)

PROGRAMS = Path(__file__).parent / "programs"
EXAMPLES = Path(__file__).parents[1] / "examples"
TINY = ("--steps", "10", "--layers", "2", "--hidden", "32", "--batch", "4", "--seq", "32")
BERT = "pretraining/bert/encoder/layer_1/attention/self/query"


@dataclass(frozen=True)
class Case:
    """A program, how it ends, and what its recording must know: labels of steps, and paths of layers."""

    script: str
    steps: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()
    code: int = 0
    dated: str = ""
    """A pattern for files that differ between two plain runs: there is a time in them, or chance."""
    arguments: tuple[str, ...] = ("one", "--two")
    options: tuple[str, ...] = ("--trace-all",)

    @property
    def path(self) -> Path:
        return next(
            folder / self.script for folder in (PROGRAMS, EXAMPLES) if (folder / self.script).exists()
        )


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


@dataclass(frozen=True)
class Seen:
    """All that can be seen of a program from outside."""

    code: int
    out: bytes
    errors: list[str]
    files: dict[str, str]


def run(command: list[str], folder: Path, dated: str) -> Seen:
    """Run it in a folder of its own, with something to read."""
    folder.mkdir()
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=environment,
        input=b"1\n2\n3\n",
        capture_output=True,
        timeout=300,
        check=False,
    )
    return Seen(done.returncode, done.stdout, without_chance(done.stderr), written(folder, dated))


def without_chance(errors: bytes) -> list[str]:
    """Lines less what differs from run to run anyway: times, process ids, addresses, made-up names."""
    text = errors.decode(errors="replace")
    text = re.sub(r"(?m)^([IWEF])\d{4} \d\d:\d\d:\d+\.\d+ +\d+ ", r"\1 ", text)
    return re.sub(r"0x[0-9a-f]{6,}|__autograph_generated_file\w+", "…", text).splitlines()


def written(folder: Path, dated: str) -> dict[str, str]:
    """What files there are, and a digest of each that can be the same twice."""
    files = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {
        re.sub(r"(tfevents)\.\S+", r"\1", name): "" if by_chance(name, dated) else digest(path)
        for name, path in files.items()
    }


def by_chance(name: str, dated: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in ("*tfevents*", *dated.split("|")))


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.script.removesuffix(".py"))
def test_a_program_runs_the_same_and_is_known(case: Case, tmp_path: Path) -> None:
    recording = tmp_path / "r.joulemap"
    program = [str(case.path), *case.arguments]
    ours = ["-m", "joulemap", "run", "--quiet", *case.options, "-o", str(recording)]
    plain = run(program, tmp_path / "plain", case.dated)
    recorded = run([*ours, *program], tmp_path / "recorded", case.dated)
    assert plain.code == case.code, plain.errors
    assert recorded.code == plain.code, recorded.errors
    assert recorded.out == plain.out
    assert recorded.errors == plain.errors
    assert recorded.files == plain.files
    check(joulemap.load(recording), case)


def check(recording: joulemap.Recording, case: Case) -> None:
    """It is complete, conserves, and knows the program's steps and layers."""
    assert recording.info.status == "complete"
    footprint = joulemap.account(recording)
    footprint.check()
    assert footprint.measured_j > 0
    assert set(case.steps) <= set(recording.steps().label.words)
    names = {row["name"] for row in footprint.to_records()}
    assert [layer for layer in case.layers if not any(name.startswith(f"{layer}/") for name in names)] == []


def test_every_program_is_run() -> None:
    there = {path.name for folder in (PROGRAMS, EXAMPLES) for path in folder.glob("*.py")}
    assert there - {"toys.py", "corpus.py", "__init__.py"} == {case.script for case in CASES}
