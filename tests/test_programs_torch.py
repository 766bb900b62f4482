"""Real PyTorch programs, once plainly and once under ``joulemap run``: whatever can be seen of them is the
same, and the recording opens, conserves, and knows their steps and layers."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest

from joulemap.frameworks.torch import provenance

from .same_programs import EXAMPLES, TESTS, Case, Home

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")

HOME = Home(
    TESTS / "programs_torch",
    {
        "PYTHONPATH": str(TESTS / "programs"),  # toys.py is there
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    },
    made_up=r"0x[0-9a-f]{6,}|(?m:^USDT:\S+ \S+ \d+:\d+)|\[W\d+ \d\d:\d\d:\d+\.\d+",
    said_once=r"ERROR:\S+ \S+ \d+:\d+ DeviceProperties\.cpp",  # PyTorch for GPUs, where there is none
)
NEEDS = {"hf_generate.py": "transformers", "hf_trainer.py": "accelerate", "lightning_fit.py": "lightning"}
TINY = ("--steps", "10", "--layers", "2", "--hidden", "32", "--heads", "2", "--batch", "4", "--seq", "32")
TINY_LLM = ("--prompt", "16", "--tokens", "8", "--batch", "2", "--rounds", "2")
TINY_CNN = ("--steps", "10", "--width", "4", "--blocks", "1", "--batch", "8")

CASES = [
    Case("accumulation.py", ("train", "train 2"), ("0", "optimizer/SGD", "optimizer/LBFGS")),
    Case("amp.py", ("train", "inference"), ("0", "1", "optimizer/AdamW")),
    Case("cnn.py", ("train", "inference"), ("0", "4", "loss/CrossEntropyLoss", "optimizer/Adam")),
    Case("compiled.py", ("train",), ("0", "2", "compiled region 1")),
    Case("exits.py", ("train",), ("(model)",), code=3),
    Case("functional_calls.py", ("inference",), ("Sequential/0",)),
    Case("gan.py", ("train", "train 2", "inference"), ("Sequential/0", "Sequential (2)/3")),
    Case("hf_generate.py", ("inference", "inference (2 numbers)"), ("model/layers/1/mlp", "lm_head")),
    Case(
        "hf_trainer.py",
        ("train", "inference"),
        ("bert/encoder/layer/1/attention/self/query", "classifier", "input pipeline/DataLoader"),
        dated="*/trainer_state.json",
        timed=r"\w+_(runtime|per_second)': '\S+'",
    ),
    Case("inference.py", ("inference",), ("Sequential/0", "Sequential/1", "Conv2d")),
    Case(
        "lightning_fit.py", ("train", "inference"), ("0", "input pipeline/DataLoader"), dated="kept/last.ckpt"
    ),
    Case("loader_workers.py", ("train",), ("1", "3", "input pipeline/DataLoader")),
    Case("looks_inside.py", ("train",), ("four",)),
    Case("lstm.py", ("train",), ("symbols", "both_ways", "summary", "next_symbol")),
    Case("own_autograd.py", ("train",), ("linear", "head")),
    Case("own_hooks.py", ("train",), ("0", "2", "optimizer/Adam")),
    Case("profiled.py", ("train",), dated="trace.json"),
    Case("raises.py", ("train",), ("0/inner", "2"), code=1),
    Case("recompute.py", ("train",), ("Deep/blocks/3/linear",)),
    Case("saving.py", ("train", "inference"), ("Net/body/0", "Net (2)/head")),
    Case("scripted.py", ("train",), ("RecursiveScriptModule",)),
    Case("sparse.py", ("train",), ("bag", "one", "head", "optimizer/SparseAdam")),
    Case("threads.py", ("train", "inference"), ("Sequential/0", "Sequential (3)/0")),
    Case(
        "transformer.py",
        ("train", "inference"),
        ("transformer/encoder/layers/0", "transformer/decoder/layers/1", "head"),
    ),
    Case("two_processes.py", ("inference",), ("(model)",)),
    Case(
        "bert_torch.py",
        ("train",),
        ("bert/encoder/layer/1/attention/self/query", "cls/predictions"),
        arguments=TINY,
        options=(),
    ),
    Case("cnn_torch.py", ("train", "inference"), ("layer3/0/conv2", "fc"), arguments=TINY_CNN, options=()),
    Case(
        "llm_torch.py",
        ("prefill", "decode"),
        ("model/layers/3/self_attn/q_proj", "lm_head"),
        timed=r"\S+ tokens/s",
        arguments=TINY_LLM,
        options=(),
    ),
]


def skip_what_cannot_run(case: Case) -> None:
    if case.name == "compiled" and shutil.which("g++") is None:
        pytest.skip("inductor needs a C++ compiler, and there is no g++")
    pytest.importorskip(NEEDS.get(case.script, "torch"))
    if case.name == "compiled" and not provenance.tells():
        pytest.skip("inductor does not tell what kernels are made from")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_program_runs_the_same_and_is_known(case: Case, tmp_path: Path) -> None:
    skip_what_cannot_run(case)
    HOME.check(case, tmp_path)


def test_every_program_is_run() -> None:
    there = {path.name for path in (*HOME.folder.glob("*.py"), *EXAMPLES.glob("*_torch.py"))}
    assert there == {case.script for case in CASES}
