"""One BERT in TensorFlow, PyTorch and JAX: their layers have the same names, one to one."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
SMALL = {"layers": 2, "hidden": 16, "heads": 2, "seq": 8, "batch": 2, "dropout": 0.1, "seed": 7, "load": None}

PARTS = ["attention/self/query", "attention/self/key", "attention/self/value", "attention/output/dense"]
PARTS += ["attention/output/LayerNorm", "intermediate/dense", "output/dense", "output/LayerNorm"]
EMBEDDINGS = ["word_embeddings", "token_type_embeddings", "position_embeddings", "LayerNorm"]
LAYERS = {
    *(f"bert/embeddings/{part}" for part in EMBEDDINGS),
    *(f"bert/encoder/layer/{number}/{part}" for number in range(2) for part in PARTS),
    "bert/pooler/dense",
    "cls/predictions",
    "cls/seq_relationship",
}
"""As in the original BERT, which the paper draws."""


def same(paths: set[str]) -> set[str]:
    """Paths below the model, layers numbered as a part of their own, the head's inside left out."""
    found = set()
    for path in paths:
        path = re.sub(r"^pretraining/", "", path, flags=re.IGNORECASE)
        path = re.sub(r"\blayer_(\d+)", r"layer/\1", path)
        path = re.sub(r"^(cls/predictions)/.*", r"\1", path)
        if not path.endswith("dropout"):
            found.add(path)
    return {path for path in found if not any(other.startswith(f"{path}/") for other in found)}


@pytest.mark.parametrize("api", ["linen", "nnx"])
def test_in_jax(api: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("jax", "flax", "optax"):
        pytest.importorskip(name)
    import jax

    from joulemap.frameworks.jax.names import read_stack
    from tests.jax_live import attached

    monkeypatch.syspath_prepend(str(EXAMPLES))
    import bert_flax
    from corpus import Corpus

    with attached(tmp_path):
        corpus = Corpus(SMALL["seq"], 7)
        model, weights = bert_flax.pretrained(corpus, Namespace(**SMALL, api=api, dtype="float32"))
        batch = bert_flax.with_holes(corpus, 2)
        text = (
            jax.jit(lambda weights: model.answer(weights, batch, None))
            .lower(weights)
            .as_text(debug_info=True)
        )
    stacks = {read_stack(name) for name in re.findall(r'"(jit\([^"]*)"', text)}
    assert same({"/".join(stack.scopes) for stack in stacks if stack.scopes}) == LAYERS


def test_in_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import bert_torch

    model = bert_torch.make_bert(100, Namespace(**SMALL))
    paths = {name.replace(".", "/") for name, one in model.named_modules() if not list(one.children())}
    paths = {path for path in paths if not path.endswith(("act_fn", "activation", "predictions"))}
    assert same(paths - {"bert/embeddings/position_ids"}) == LAYERS


def test_in_keras() -> None:
    if importlib.util.find_spec("tensorflow") is None:
        pytest.skip("TensorFlow is not installed")
    done = subprocess.run(
        [sys.executable, "-c", KERAS], cwd=EXAMPLES, capture_output=True, text=True, timeout=300, check=True
    )
    assert same(set(json.loads(done.stdout.splitlines()[-1]))) == LAYERS


KERAS = """
import json
import bert_keras
from corpus import Corpus
corpus = Corpus(8, 7)
model = bert_keras.Pretraining(bert_keras.Bert(len(corpus.vocabulary), 8, 2, 16, 2, 0.1))
model(corpus.pretraining(1)[0])
variables = {variable.path.rpartition("/")[0] for variable in model.variables}
print(json.dumps(sorted(path for path in variables if path.startswith("pretraining/"))))
"""
