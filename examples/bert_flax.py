"""BERT in JAX, from nothing: one model in flax linen and in flax nnx, three stages on a made-up corpus.

    python bert_flax.py                                        pre-trains for about a minute on two cores
    python bert_flax.py --api nnx                              … the same model, written with nnx
    python bert_flax.py --save bert.npz                        … and keeps what it learnt
    python bert_flax.py --stage finetune --load bert.npz
    python bert_flax.py --stage predict --load bert.npz
    python bert_flax.py --layers 12 --hidden 768 --heads 12 --seq 128 --batch 32 --dtype bfloat16

Pre-training hides 15 % of the word pieces and asks for them (`cls/predictions`), and asks whether the second
text goes on where the first one stopped (`cls/seq_relationship`). Fine-tuning puts a classifier on the pooled
first token: is the story gloomy or cheerful? Prediction reads stories with holes and fills them.

Layers carry the names of the original BERT. Linen's modules have names, which the program gives them:
`bert/encoder/layer_0/attention/self/query`. Those of nnx have none, but attributes that lead to them:
`bert/encoder/layer/0/attention/self/query`. The same seed gives the same numbers, to the last bit.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bert_flax_linen
import bert_flax_nnx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from corpus import MOODS, PAD, Arrays, Corpus

SHOWN_EVERY = 10  # steps
DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}

Weights = Any
Batch = dict[str, jax.Array]


@dataclass(frozen=True)
class Model:
    """A model as two functions: its first weights, and its answers."""

    start: Callable[[jax.Array], Weights]
    answer: Callable[[Weights, Batch, jax.Array | None], Any]


def surprise(scores: jax.Array, right: jax.Array, counts: jax.Array) -> jax.Array:
    """How surprising the right answers are, over those that count."""
    each = optax.softmax_cross_entropy_with_integer_labels(scores.astype(jnp.float32), right)
    return (each * counts).sum() / jnp.maximum(counts.sum(), 1)


def pretraining_loss(answers: dict[str, jax.Array], batch: Batch) -> jax.Array:
    """Both questions of pre-training."""
    words = surprise(answers["predictions"], batch["hidden"], batch["counts"])
    return words + surprise(answers["seq_relationship"], batch["other"], jnp.ones(len(batch["other"])))


def mood_loss(scores: jax.Array, batch: Batch) -> jax.Array:
    """How surprising the mood of a story is."""
    return surprise(scores, batch["mood"], jnp.ones(len(batch["mood"])))


def optimizer(rate: float) -> optax.GradientTransformation:
    """AdamW, with decay for matrices only, as BERT is trained."""

    def decays(weights: Weights) -> Any:
        return jax.tree.map(lambda weight: weight.ndim > 1, weights)

    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(rate, weight_decay=0.01, mask=decays))


def with_holes(corpus: Corpus, count: int) -> Arrays:
    """Pairs of texts with holes, what was there before, and whether they belong together."""
    inputs, targets, counts = corpus.pretraining(count)
    hidden, other = targets["predictions"], targets["seq_relationship"]
    return {**inputs, "hidden": hidden, "counts": counts["predictions"], "other": other}


def with_moods(corpus: Corpus, count: int) -> Arrays:
    """Stories, and how they feel."""
    inputs, moods = corpus.classification(count)
    return {**inputs, "mood": moods}


def batches(examples: Arrays, args: argparse.Namespace) -> Iterator[Arrays]:
    """The examples in some order, a batch at a time."""
    order = np.random.default_rng(args.seed).permutation(len(examples["tokens"]))
    for start in range(0, len(order), args.batch):
        chosen = order[start : start + args.batch]
        yield {name: values[chosen] for name, values in examples.items()}


def train(
    model: Model,
    loss_of: Callable[[Any, Batch], jax.Array],
    weights: Weights,
    examples: Arrays,
    rate: float,
    args: argparse.Namespace,
) -> Weights:
    """Learns from the examples, batch by batch, and says how it goes."""
    learning = optimizer(rate)

    @jax.jit
    def train_step(weights: Weights, state: Any, batch: Batch, key: jax.Array) -> tuple[Any, ...]:
        def loss(weights: Weights) -> jax.Array:
            return loss_of(model.answer(weights, batch, key), batch)

        value, gradients = jax.value_and_grad(loss)(weights)
        updates, state = learning.update(gradients, state, weights)
        return optax.apply_updates(weights, updates), state, value

    state, key = learning.init(weights), jax.random.key(args.seed)
    losses = []
    for step, batch in enumerate(batches(examples, args), 1):
        weights, state, value = train_step(weights, state, batch, jax.random.fold_in(key, step))
        losses.append(value)
        if step % SHOWN_EVERY == 0:
            print(f"step {step:5}  loss {np.mean(jax.device_get(losses)):.4f}", flush=True)
            losses.clear()
    return weights


def pretrain(corpus: Corpus, args: argparse.Namespace) -> None:
    """Fills holes and joins sentences until the steps are done."""
    model, weights = pretrained(corpus, args)
    examples = with_holes(corpus, args.batch * args.steps)
    weights = train(model, pretraining_loss, weights, examples, 5e-4, args)
    if args.save:
        np.savez(args.save, *map(np.asarray, jax.tree.leaves(weights)))
        print(f"saved {args.save}")


def finetune(corpus: Corpus, args: argparse.Namespace) -> None:
    """Learns how a story feels, and says how often that is right on new stories."""
    _, weights = pretrained(corpus, args)
    model = classification(corpus, args)
    start = {**model.start(jax.random.key(args.seed)), "bert": weights["bert"]}
    weights = train(model, mood_loss, start, with_moods(corpus, args.batch * args.steps), 2e-4, args)

    @jax.jit
    def test_step(weights: Weights, batch: Batch) -> tuple[jax.Array, jax.Array]:
        scores = model.answer(weights, batch, None)
        return mood_loss(scores, batch), (scores.argmax(-1) == batch["mood"]).mean()

    found = [test_step(weights, batch) for batch in batches(with_moods(corpus, 8 * args.batch), args)]
    loss, right = np.mean(jax.device_get(found), axis=0)
    print(f"new stories: loss {loss:.4f}  accuracy {right:.4f}")


def predict(corpus: Corpus, args: argparse.Namespace) -> None:
    """Fills the holes of new stories, batch by batch, and shows a story now and then."""
    model, weights = pretrained(corpus, args)

    @jax.jit
    def predict_step(weights: Weights, batch: Batch) -> jax.Array:
        return model.answer(weights, batch, None)["predictions"].argmax(-1)

    for step in range(args.steps):
        stories = with_holes(corpus, args.batch)
        found = np.asarray(predict_step(weights, stories))
        if step % SHOWN_EVERY == 0:
            holes = stories["hidden"] != PAD
            print(f"step {step + 1:5}  right {(stories['hidden'] == found)[holes].mean():.4f}")
            print(f"  {corpus.vocabulary.decode(stories['tokens'][0])}")
            print(f"  holes: {corpus.vocabulary.decode(found[0][holes[0]])}", flush=True)


def pretrained(corpus: Corpus, args: argparse.Namespace) -> tuple[Model, Weights]:
    """The model with both heads, and its weights: a beginner's, or those that were kept."""
    model = Model(*APIS[args.api].pretraining(size(corpus, args), corpus.pretraining(1)[0]))
    weights = model.start(jax.random.key(args.seed))
    if args.load:
        with np.load(args.load) as kept:
            weights = jax.tree.unflatten(
                jax.tree.structure(weights), [jnp.asarray(kept[name]) for name in kept]
            )
    return model, weights


def classification(corpus: Corpus, args: argparse.Namespace) -> Model:
    """The model with a classifier on the pooled token."""
    return Model(*APIS[args.api].classification(size(corpus, args), corpus.classification(1)[0]))


def size(corpus: Corpus, args: argparse.Namespace) -> bert_flax_linen.Size:
    """How large the model is to be."""
    return bert_flax_linen.Size(
        vocabulary=len(corpus.vocabulary),
        seq=args.seq,
        depth=args.layers,
        hidden=args.hidden,
        heads=args.heads,
        dropout=args.dropout,
        classes=len(MOODS),
        dtype=DTYPES[args.dtype],
    )


APIS = {"linen": bert_flax_linen, "nnx": bert_flax_nnx}
STAGES = {"pretrain": pretrain, "finetune": finetune, "predict": predict}


def options() -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--stage", choices=STAGES, default="pretrain")
    parser.add_argument("--api", choices=APIS, default="linen", help="how the model is written")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--seq", type=int, default=64, help="word pieces in an example")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument(
        "--dtype", choices=DTYPES, default="float32", help="of what is computed; weights are float32"
    )
    parser.add_argument("--save", type=Path, metavar="FILE.npz", help="keep the pre-trained weights")
    parser.add_argument("--load", type=Path, metavar="FILE.npz", help="start from kept weights")
    return parser.parse_args()


def main() -> None:
    """Runs one stage."""
    args = options()
    STAGES[args.stage](Corpus(args.seq, args.seed), args)


if __name__ == "__main__":
    main()
