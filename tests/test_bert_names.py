"""One BERT in TensorFlow, PyTorch and JAX: their recordings have the same layers, one to one."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from argparse import Namespace
from collections import defaultdict
from pathlib import Path

import pytest
from click.testing import CliRunner

import joulemap
from joulemap.cli import commands

from .environment import uncovered

EXAMPLES = Path(__file__).parents[1] / "examples"
SIZE = {"layers": 2, "hidden": 32, "heads": 2, "seq": 32, "batch": 4}
FRAMEWORKS = {"torch": ("torch", "transformers"), "keras": ("tensorflow",), "flax": ("jax", "flax", "optax")}
QUICKLY = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"

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


def below_the_model(names: set[str]) -> set[str]:
    """Without what the model is called, and with layers numbered as a part of their own."""
    return {
        re.sub(r"\blayer_(\d+)", r"layer/\1", re.sub(r"^pretraining/", "", name, flags=re.IGNORECASE))
        for name in names
    }


def innermost(paths: set[str]) -> set[str]:
    """Paths of layers that have none inside, the head's inside and dropout left out."""
    found = {re.sub(r"^(cls/predictions)/.*", r"\1", path) for path in below_the_model(paths)}
    found = {path for path in found if not path.endswith("dropout")}
    return {path for path in found if not any(other.startswith(f"{path}/") for other in found)}


def record(framework: str, path: Path) -> Path:
    """Three steps of pre-training, all traced."""
    size = [word for name, value in SIZE.items() for word in (f"--{name}", str(value))]
    program = [str(EXAMPLES / f"bert_{framework}.py"), *size, "--steps", "3", "--dropout", "0"]
    ours = [sys.executable, "-m", "joulemap", "run", "--quiet", "--trace-all", "-o", str(path)]
    environment = {**uncovered(), "XLA_FLAGS": QUICKLY}
    subprocess.run([*ours, *program], env=environment, capture_output=True, timeout=300, check=True)
    return path


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    missing = [one for needs in FRAMEWORKS.values() for one in needs if importlib.util.find_spec(one) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    folder = tmp_path_factory.mktemp("bert")
    return {name: record(name, folder / f"{name}.joulemap") for name in FRAMEWORKS}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_each_has_all_layers_in_both_passes(framework: str, recorded: dict[str, Path]) -> None:
    rows = joulemap.account(recorded[framework]).to_records()
    for phase in ("forward", "backward"):
        names = below_the_model({row["name"] for row in rows if row["phase"] == phase})
        assert [one for one in LAYERS if not any(name.startswith(f"{one}/") for name in names)] == [], phase


def test_compare_matches_them_one_to_one(recorded: dict[str, Path]) -> None:
    options = ["--all", "--depth", "7", "--per", "step", "--json"]
    done = CliRunner().invoke(commands, ["compare", *map(str, recorded.values()), *options])
    assert done.exit_code == 0, done.output
    for comparison in json.loads(done.stdout)["comparisons"]:
        rows = {row["name"]: row for row in comparison["rows"]}
        assert rows.keys() >= LAYERS
        assert all(rows[name]["base_j"] > 0 and rows[name]["variant_j"] > 0 for name in LAYERS)


def test_of_linens_work_nearly_all_has_a_name(recorded: dict[str, Path]) -> None:
    """As if no thread had waited for a core: each operation as quick as the quickest of its name."""
    events = joulemap.load(recorded["flax"]).events()
    lengths = defaultdict(list)
    for name, phase, kind, length_ns in zip(
        events.name, events.phase, events.kind, (events.end_ns - events.start_ns).tolist(), strict=True
    ):
        if kind == "op" and not name.startswith("(compilation)"):
            lengths[name, phase].append(length_ns)
    undisturbed = {key: len(its) * min(its) for key, its in lengths.items()}
    unnamed = sum(length for (name, _), length in undisturbed.items() if name.startswith("(unnamed)"))
    assert unnamed < 0.03 * sum(undisturbed.values())


def test_in_nnx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in FRAMEWORKS["flax"]:
        pytest.importorskip(name)
    import jax

    from joulemap.frameworks.jax.names import read_stack
    from tests.jax_live import attached

    monkeypatch.syspath_prepend(str(EXAMPLES))
    import bert_flax
    from corpus import Corpus

    with attached(tmp_path):
        corpus = Corpus(SIZE["seq"], 7)
        args = Namespace(**SIZE, dropout=0.1, seed=7, load=None, api="nnx", dtype="float32")
        model, weights = bert_flax.pretrained(corpus, args)
        batch = bert_flax.with_holes(corpus, 2)
        text = (
            jax.jit(lambda weights: model.answer(weights, batch, None))
            .lower(weights)
            .as_text(debug_info=True)
        )
    stacks = {read_stack(name) for name in re.findall(r'"(jit\([^"]*)"', text)}
    assert innermost({"/".join(stack.scopes) for stack in stacks if stack.scopes}) == LAYERS
