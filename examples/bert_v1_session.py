"""BERT in TensorFlow's first style: a graph, a session, and hooks that trace it.

    python bert_v1_session.py
    python bert_v1_session.py --traces traces                  a timeline of every tenth step
    python bert_v1_session.py --traces traces --as metadata    … as RunMetadata protos instead

This is how the SMARAGDINE paper looked at BERT: `MonitoredTrainingSession` runs the steps, and a hook asks
for a full trace of some of them. `joulemap import --events` reads the files. Under `joulemap run` no hook is
needed.

Names come from variable scopes: `bert/encoder/layer_0/attention/self/query/MatMul`, gradients under
`gradients/`, the optimizer's under `Adam/`. Pre-training only; `bert_keras.py` has all stages.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from corpus import PAD, Corpus

v1 = tf.compat.v1
SHOWN_EVERY = 10  # steps


def weights(name: str, *shape: int) -> tf.Tensor:
    """A matrix of small random numbers."""
    return v1.get_variable(name, shape, initializer=v1.truncated_normal_initializer(stddev=0.02))


def dense(inputs: tf.Tensor, units: int, name: str) -> tf.Tensor:
    """A fully connected layer over the last axis of two or three."""
    with v1.variable_scope(name):
        kernel = weights("kernel", inputs.shape[-1], units)
        bias = v1.get_variable("bias", [units], initializer=v1.zeros_initializer())
        flat = tf.reshape(inputs, (-1, inputs.shape[-1]))
        outputs = tf.nn.bias_add(tf.matmul(flat, kernel), bias)
        return tf.reshape(outputs, (*inputs.shape[:-1], units))


def layer_norm(inputs: tf.Tensor) -> tf.Tensor:
    """Each vector with mean 0 and variance 1, then scaled and moved."""
    with v1.variable_scope("LayerNorm"):
        gamma = v1.get_variable("gamma", inputs.shape[-1:], initializer=v1.ones_initializer())
        beta = v1.get_variable("beta", inputs.shape[-1:], initializer=v1.zeros_initializer())
        mean, variance = tf.nn.moments(inputs, axes=[-1], keepdims=True)
        return tf.nn.batch_normalization(inputs, mean, variance, beta, gamma, 1e-12)


def embeddings(tokens: tf.Tensor, segments: tf.Tensor, vocabulary: int, hidden: int) -> tuple[tf.Tensor, ...]:
    """The embedded text, and the table of word vectors."""
    with v1.variable_scope("embeddings"):
        table = weights("word_embeddings", vocabulary, hidden)
        with tf.name_scope("word_embeddings_lookup"):
            words = tf.gather(table, tokens)
        with tf.name_scope("token_type_embeddings_lookup"):
            types = tf.gather(weights("token_type_embeddings", 2, hidden), segments)
        return layer_norm(words + types + weights("position_embeddings", tokens.shape[1], hidden)), table


def self_attention(tokens: tf.Tensor, mask: tf.Tensor, heads: int) -> tf.Tensor:
    """Every token looks at all others."""
    batch, seq, hidden = tokens.shape

    def split(inputs: tf.Tensor) -> tf.Tensor:
        return tf.transpose(tf.reshape(inputs, (batch, seq, heads, hidden // heads)), (0, 2, 1, 3))

    with v1.variable_scope("self"):
        query, key, value = (split(dense(tokens, hidden, name)) for name in ("query", "key", "value"))
        scores = tf.matmul(query, key, transpose_b=True) * (hidden // heads) ** -0.5
        context = tf.matmul(tf.nn.softmax(scores + mask), value)
        return tf.reshape(tf.transpose(context, (0, 2, 1, 3)), (batch, seq, hidden))


def output(inner: tf.Tensor, residual: tf.Tensor, dropout: float) -> tf.Tensor:
    """Back to the hidden size, and added to what came in."""
    with v1.variable_scope("output"):
        return layer_norm(tf.nn.dropout(dense(inner, residual.shape[-1], "dense"), dropout) + residual)


def transformer_layer(tokens: tf.Tensor, mask: tf.Tensor, heads: int, dropout: float) -> tf.Tensor:
    """Attention, then two dense layers for each token alone."""
    with v1.variable_scope("attention"):
        attended = output(self_attention(tokens, mask, heads), tokens, dropout)
    with v1.variable_scope("intermediate"):
        wide = tf.nn.gelu(dense(attended, 4 * tokens.shape[-1], "dense"))
    return output(wide, attended, dropout)


def bert(inputs: dict[str, tf.Tensor], vocabulary: int, args: argparse.Namespace) -> tuple[tf.Tensor, ...]:
    """A vector for each token, one for the whole text, and the table of word vectors."""
    with v1.variable_scope("bert"):
        tokens, table = embeddings(inputs["tokens"], inputs["segments"], vocabulary, args.hidden)
        with v1.variable_scope("encoder"):
            padding = tf.cast(tf.equal(inputs["tokens"], PAD), tf.float32)
            mask = padding[:, None, None, :] * -1e9
            for i in range(args.layers):
                with v1.variable_scope(f"layer_{i}"):
                    tokens = transformer_layer(tokens, mask, args.heads, args.dropout)
        with v1.variable_scope("pooler"):
            pooled = tf.tanh(dense(tokens[:, 0], args.hidden, "dense"))
    return tokens, pooled, table


def cross_entropy(logits: tf.Tensor, targets: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
    """How surprising the right answers are, over those that count."""
    each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=targets, logits=logits)
    return tf.reduce_sum(each * counts) / tf.reduce_sum(counts)


def pretraining_loss(
    inputs: tuple[dict[str, tf.Tensor], ...], vocabulary: int, args: argparse.Namespace
) -> tf.Tensor:
    """The two questions of pre-training, and how wrong the answers are."""
    texts, targets, counts = inputs
    tokens, pooled, table = bert(texts, vocabulary, args)
    with v1.variable_scope("cls"):
        with v1.variable_scope("predictions"):
            hidden = tf.gather(tokens, texts["positions"], batch_dims=1)
            with v1.variable_scope("transform"):
                hidden = layer_norm(tf.nn.gelu(dense(hidden, args.hidden, "dense")))
            bias = v1.get_variable("output_bias", [vocabulary], initializer=v1.zeros_initializer())
            logits = tf.einsum("bph,vh->bpv", hidden, table) + bias
            pieces = cross_entropy(logits, targets["predictions"], counts["predictions"])
        with v1.variable_scope("seq_relationship"):
            logits = dense(pooled, 2, "output")
            relationship = cross_entropy(logits, targets["seq_relationship"], counts["seq_relationship"])
    return pieces + relationship


def batches(corpus: Corpus, args: argparse.Namespace) -> tuple[dict[str, tf.Tensor], ...]:
    """The next batch, as tensors of the graph."""
    examples = corpus.pretraining(args.batch * args.steps)
    data = tf.data.Dataset.from_tensor_slices(examples).repeat().batch(args.batch, drop_remainder=True)
    return v1.data.make_one_shot_iterator(data.prefetch(2)).get_next()


class ShowLoss(v1.train.SessionRunHook):
    """Prints the mean loss every few steps."""

    def __init__(self, loss: tf.Tensor) -> None:
        self._loss = loss
        self._seen: list[float] = []

    def before_run(self, run_context: v1.train.SessionRunContext) -> v1.train.SessionRunArgs:
        return v1.train.SessionRunArgs(self._loss)

    def after_run(
        self, run_context: v1.train.SessionRunContext, run_values: v1.train.SessionRunValues
    ) -> None:
        self._seen.append(run_values.results)
        if len(self._seen) % SHOWN_EVERY == 0:
            print(f"step {len(self._seen):5}  loss {np.mean(self._seen[-SHOWN_EVERY:]):.4f}", flush=True)


class RunMetadataHook(v1.train.SessionRunHook):
    """Traces every n-th step in full and keeps its RunMetadata, as the paper's hook does."""

    def __init__(self, folder: Path, every: int) -> None:
        self._folder, self._every, self._step = folder, every, 0

    def before_run(self, run_context: v1.train.SessionRunContext) -> v1.train.SessionRunArgs | None:
        self._step += 1
        if self._step % self._every:
            return None
        full = v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE)
        return v1.train.SessionRunArgs([], options=full)

    def after_run(
        self, run_context: v1.train.SessionRunContext, run_values: v1.train.SessionRunValues
    ) -> None:
        if self._step % self._every == 0:
            file = self._folder / f"run-metadata-{self._step}.pb"
            file.write_bytes(run_values.run_metadata.SerializeToString())


def tracing_hooks(args: argparse.Namespace) -> list[v1.train.SessionRunHook]:
    """What the command line asks to be traced."""
    if not args.traces:
        return []
    args.traces.mkdir(parents=True, exist_ok=True)
    if args.trace_as == "metadata":
        return [RunMetadataHook(args.traces, args.every)]
    return [v1.train.ProfilerHook(save_steps=args.every, output_dir=str(args.traces))]


def options() -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--seq", type=int, default=64, help="word pieces in an example")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--traces", type=Path, metavar="FOLDER", help="trace some steps into this folder")
    parser.add_argument("--every", type=int, default=10, help="trace each n-th step")
    parser.add_argument("--as", dest="trace_as", choices=["timeline", "metadata"], default="timeline")
    return parser.parse_args()


def main() -> None:
    """Builds the graph and trains in a monitored session."""
    args = options()
    tf.config.experimental.enable_op_determinism()
    corpus = Corpus(args.seq, args.seed)
    with tf.Graph().as_default():
        v1.set_random_seed(args.seed)
        loss = pretraining_loss(batches(corpus, args), len(corpus.vocabulary), args)
        step = v1.train.get_or_create_global_step()
        train = v1.train.AdamOptimizer(5e-4).minimize(loss, global_step=step)
        hooks = [v1.train.StopAtStepHook(args.steps), ShowLoss(loss), *tracing_hooks(args)]
        with v1.train.MonitoredTrainingSession(hooks=hooks) as session:
            while not session.should_stop():
                session.run(train)


if __name__ == "__main__":
    main()
