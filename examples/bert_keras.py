"""BERT in Keras, from nothing: pre-training, fine-tuning and prediction on a made-up corpus.

    python bert_keras.py                                       pre-trains for about a minute on two cores
    python bert_keras.py --save bert.weights.h5                … and keeps what it learnt
    python bert_keras.py --stage finetune --load bert.weights.h5
    python bert_keras.py --stage predict --load bert.weights.h5

Pre-training hides 15 % of the word pieces and asks for them (`cls/predictions`), and asks whether the second
text goes on where the first one stopped (`cls/seq_relationship`). Fine-tuning puts a classifier on the pooled
first token: is the story gloomy or cheerful? Prediction reads stories with holes and fills them.

Layers carry the names of the original BERT, so that a profile reads like the paper's figures:
`bert/embeddings/word_embeddings`, `bert/encoder/layer_0/attention/self/query`, `bert/pooler`,
`cls/predictions`. The same seed gives the same numbers, to the last bit.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import tensorflow as tf
from corpus import MOODS, PAD, Corpus
from keras import layers, ops

SHOWN_EVERY = 10  # steps


def initial() -> keras.initializers.Initializer:
    """Small random weights, as BERT starts."""
    return keras.initializers.TruncatedNormal(stddev=0.02)


def dense(units: int, name: str, activation: str | None = None) -> layers.Dense:
    """A fully connected layer with BERT's first weights."""
    return layers.Dense(units, activation=activation, kernel_initializer=initial(), name=name)


def layer_norm() -> layers.LayerNormalization:
    """Layer normalisation under its name in BERT."""
    return layers.LayerNormalization(epsilon=1e-12, name="LayerNorm")


class Embeddings(layers.Layer):
    """Which piece, in which of the two texts, at which place: three vectors added up."""

    def __init__(self, vocabulary: int, seq: int, hidden: int, dropout: float, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.word_embeddings = layers.Embedding(vocabulary, hidden, initial(), name="word_embeddings")
        self.token_type_embeddings = layers.Embedding(2, hidden, initial(), name="token_type_embeddings")
        self.position_embeddings = layers.Embedding(seq, hidden, initial(), name="position_embeddings")
        self.norm = layer_norm()
        self.dropout = layers.Dropout(dropout, name="dropout")

    def call(self, tokens: tf.Tensor, segments: tf.Tensor) -> tf.Tensor:
        places = ops.arange(ops.shape(tokens)[1])
        words = self.word_embeddings(tokens) + self.token_type_embeddings(segments)
        return self.dropout(self.norm(words + self.position_embeddings(places)))


class SelfAttention(layers.Layer):
    """Every token looks at all others, with several heads at once."""

    def __init__(self, hidden: int, heads: int, dropout: float, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.heads = heads
        self.query = dense(hidden, "query")
        self.key = dense(hidden, "key")
        self.value = dense(hidden, "value")
        self.dropout = layers.Dropout(dropout, name="dropout")

    def call(self, tokens: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        query, key, value = (self._split(one(tokens)) for one in (self.query, self.key, self.value))
        scores = ops.matmul(query, ops.transpose(key, (0, 1, 3, 2))) * query.shape[-1] ** -0.5
        looks = self.dropout(ops.softmax(scores + mask))
        return self._join(ops.matmul(looks, value))

    def _split(self, tokens: tf.Tensor) -> tf.Tensor:
        """(batch, seq, hidden) to (batch, heads, seq, hidden / heads)."""
        _, seq, hidden = tokens.shape
        return ops.transpose(ops.reshape(tokens, (-1, seq, self.heads, hidden // self.heads)), (0, 2, 1, 3))

    def _join(self, parts: tf.Tensor) -> tf.Tensor:
        _, heads, seq, size = parts.shape
        return ops.reshape(ops.transpose(parts, (0, 2, 1, 3)), (-1, seq, heads * size))


class Output(layers.Layer):
    """Back to the hidden size, and added to what came in."""

    def __init__(self, hidden: int, dropout: float, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.dense = dense(hidden, "dense")
        self.dropout = layers.Dropout(dropout, name="dropout")
        self.norm = layer_norm()

    def call(self, inner: tf.Tensor, residual: tf.Tensor) -> tf.Tensor:
        return self.norm(self.dropout(self.dense(inner)) + residual)


class Attention(layers.Layer):
    """Self-attention and its output."""

    def __init__(self, hidden: int, heads: int, dropout: float, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.self_attention = SelfAttention(hidden, heads, dropout, name="self")
        self.projection = Output(hidden, dropout, name="output")

    def call(self, tokens: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        return self.projection(self.self_attention(tokens, mask), tokens)


class Intermediate(layers.Layer):
    """The wide middle of a transformer layer."""

    def __init__(self, width: int, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.dense = dense(width, "dense", activation="gelu")

    def call(self, tokens: tf.Tensor) -> tf.Tensor:
        return self.dense(tokens)


class TransformerLayer(layers.Layer):
    """Attention, then two dense layers for each token alone."""

    def __init__(self, hidden: int, heads: int, dropout: float, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.attention = Attention(hidden, heads, dropout, name="attention")
        self.intermediate = Intermediate(4 * hidden, name="intermediate")
        self.projection = Output(hidden, dropout, name="output")

    def call(self, tokens: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        attended = self.attention(tokens, mask)
        return self.projection(self.intermediate(attended), attended)


class Encoder(layers.Layer):
    """Transformer layers, one upon the other."""

    def __init__(self, depth: int, hidden: int, heads: int, dropout: float, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.stack = [TransformerLayer(hidden, heads, dropout, name=f"layer_{i}") for i in range(depth)]

    def call(self, tokens: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        for layer in self.stack:
            tokens = layer(tokens, mask)
        return tokens


class Pooler(layers.Layer):
    """The first token, [CLS], stands for the whole text."""

    def __init__(self, hidden: int, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.dense = dense(hidden, "dense", activation="tanh")

    def call(self, tokens: tf.Tensor) -> tf.Tensor:
        return self.dense(tokens[:, 0])


class Bert(keras.Model):
    """Tokens and segments in; a vector for each token, and one for the whole text, out."""

    def __init__(
        self, vocabulary: int, seq: int, depth: int, hidden: int, heads: int, dropout: float
    ) -> None:
        super().__init__(name="bert")
        self.embeddings = Embeddings(vocabulary, seq, hidden, dropout, name="embeddings")
        self.encoder = Encoder(depth, hidden, heads, dropout, name="encoder")
        self.pooler = Pooler(hidden, name="pooler")

    @property
    def word_table(self) -> keras.Variable:
        """The vectors of the word pieces, which predicting a piece uses again."""
        return self.embeddings.word_embeddings.embeddings

    def call(self, inputs: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        words = self.embeddings(inputs["tokens"], inputs["segments"])
        tokens = self.encoder(words, padding_mask(inputs["tokens"]))
        return tokens, self.pooler(tokens)


def padding_mask(tokens: tf.Tensor) -> tf.Tensor:
    """Added to attention scores: nobody looks at padding."""
    return ops.cast(ops.equal(tokens, PAD), "float32")[:, None, None, :] * -1e9


class Predictions(layers.Layer):
    """Which pieces are hidden at the masked positions?"""

    def __init__(self, vocabulary: int, width: int, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.transform = dense(width, "transform", activation="gelu")
        self.norm = layer_norm()
        self.bias = self.add_weight(shape=(vocabulary,), initializer="zeros", name="output_bias")

    def call(self, tokens: tf.Tensor, positions: tf.Tensor, word_table: tf.Tensor) -> tf.Tensor:
        hidden = ops.take_along_axis(tokens, positions[:, :, None], axis=1)
        return ops.matmul(self.norm(self.transform(hidden)), ops.transpose(word_table)) + self.bias


class PretrainingHeads(layers.Layer):
    """The two questions of pre-training."""

    def __init__(self, vocabulary: int, width: int, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.predictions = Predictions(vocabulary, width, name="predictions")
        self.seq_relationship = dense(2, "seq_relationship")

    def call(
        self, tokens: tf.Tensor, pooled: tf.Tensor, positions: tf.Tensor, word_table: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        return {
            "predictions": self.predictions(tokens, positions, word_table),
            "seq_relationship": self.seq_relationship(pooled),
        }


class Pretraining(keras.Model):
    """BERT with the heads for masked pieces and for the next sentence."""

    def __init__(self, bert: Bert) -> None:
        super().__init__(name="pretraining")
        self.bert = bert
        table = bert.embeddings.word_embeddings
        self.cls = PretrainingHeads(table.input_dim, table.output_dim, name="cls")

    def call(self, inputs: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        tokens, pooled = self.bert(inputs)
        return self.cls(tokens, pooled, inputs["positions"], self.bert.word_table)


class Classification(keras.Model):
    """BERT with a classifier on the pooled token."""

    def __init__(self, bert: Bert, classes: int) -> None:
        super().__init__(name="classification")
        self.bert = bert
        self.dropout = layers.Dropout(0.1, name="dropout")
        self.classifier = dense(classes, "classifier")

    def call(self, inputs: dict[str, tf.Tensor]) -> tf.Tensor:
        _, pooled = self.bert(inputs)
        return self.classifier(self.dropout(pooled))


class ShowLoss(keras.callbacks.Callback):
    """Prints what was learnt, every few steps."""

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        parts = "  ".join(f"{name} {value:.4f}" for name, value in (logs or {}).items())
        print(f"step {(epoch + 1) * SHOWN_EVERY:5}  {parts}", flush=True)


def optimizer(rate: float) -> keras.optimizers.Optimizer:
    """AdamW, with decay for matrices only, as BERT is trained."""
    decaying = keras.optimizers.AdamW(rate, weight_decay=0.01, global_clipnorm=1.0)
    decaying.exclude_from_weight_decay(var_names=["bias", "LayerNorm"])
    return decaying


def cross_entropy() -> keras.losses.Loss:
    """How surprising the right answers are, over those that count."""
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="mean_with_sample_weight")


def train(model: keras.Model, examples: tuple[object, ...], args: argparse.Namespace) -> None:
    """Shuffles the examples and trains for the steps asked for."""
    batches = tf.data.Dataset.from_tensor_slices(examples).shuffle(4096, seed=args.seed).repeat()
    batches = batches.batch(args.batch, drop_remainder=True).prefetch(2)
    model(next(iter(batches))[0])  # with all variables made beforehand, the step is traced only once
    model.optimizer.build(model.trainable_variables)
    model.fit(
        batches,
        epochs=max(1, args.steps // SHOWN_EVERY),
        steps_per_epoch=min(SHOWN_EVERY, args.steps),
        callbacks=[ShowLoss()],
        shuffle=False,
        verbose=0,
    )


def pretrain(model: Pretraining, corpus: Corpus, args: argparse.Namespace) -> None:
    """Fills holes and joins sentences until the steps are done."""
    model.compile(
        optimizer(5e-4),
        loss={"predictions": cross_entropy(), "seq_relationship": cross_entropy()},
        jit_compile=args.xla,
    )
    train(model, corpus.pretraining(args.batch * args.steps), args)
    if args.save:
        model.save_weights(args.save)
        print(f"saved {args.save}")


def finetune(pretrained: Pretraining, corpus: Corpus, args: argparse.Namespace) -> None:
    """Learns how a story feels, and says how often that is right on new stories."""
    model = Classification(pretrained.bert, len(MOODS))
    model.compile(optimizer(2e-4), loss=cross_entropy(), metrics=["accuracy"], jit_compile=args.xla)
    train(model, corpus.classification(args.batch * args.steps), args)
    stories, moods = corpus.classification(8 * args.batch)
    result = model.evaluate(stories, moods, batch_size=args.batch, verbose=0, return_dict=True)
    print(f"new stories: loss {result['loss']:.4f}  accuracy {result['accuracy']:.4f}")


def predict(model: Pretraining, corpus: Corpus, args: argparse.Namespace) -> None:
    """Fills the holes of new stories, batch by batch, and shows a story now and then."""
    model.compile(jit_compile=args.xla)
    for step in range(args.steps):
        stories, hidden, _ = corpus.pretraining(args.batch)
        found = model.predict_on_batch(stories)["predictions"].argmax(axis=-1)
        if step % SHOWN_EVERY == 0:
            holes = hidden["predictions"] != PAD
            right = (hidden["predictions"] == found)[holes].mean()
            print(f"step {step + 1:5}  right {right:.4f}")
            print(f"  {corpus.vocabulary.decode(stories['tokens'][0])}")
            print(f"  holes: {corpus.vocabulary.decode(found[0][holes[0]])}", flush=True)


STAGES = {"pretrain": pretrain, "finetune": finetune, "predict": predict}


def options() -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--stage", choices=STAGES, default="pretrain")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--seq", type=int, default=64, help="word pieces in an example")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--xla", action="store_true", help="compile the steps with XLA")
    parser.add_argument("--save", type=Path, metavar="FILE.weights.h5", help="keep the pre-trained weights")
    parser.add_argument("--load", type=Path, metavar="FILE.weights.h5", help="start from kept weights")
    return parser.parse_args()


def main(make_bert: Callable[..., Bert] = Bert) -> None:
    """Builds the model and runs one stage."""
    args = options()
    keras.utils.set_random_seed(args.seed)
    if not args.xla:  # Keras compiles nothing with XLA where determinism was asked for
        tf.config.experimental.enable_op_determinism()
    corpus = Corpus(args.seq, args.seed)
    bert = make_bert(len(corpus.vocabulary), args.seq, args.layers, args.hidden, args.heads, args.dropout)
    model = Pretraining(bert)
    if args.load:
        model(corpus.pretraining(1)[0])  # makes the weights, which the file then fills
        model.load_weights(args.load)
    STAGES[args.stage](model, corpus, args)


if __name__ == "__main__":
    main()
