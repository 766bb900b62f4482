"""ALBERT in Keras: BERT with one transformer layer used again and again, and small word vectors.

    python albert_keras.py --layers 4

Three things differ from `bert_keras.py`, whose options, heads and stages are used here:

* word vectors are narrow and mapped to the hidden size once (`embedding_hidden_mapping_in`);
* all layers are the same one, `encoder/transformer/group_0/inner_group_0`, so that a profile shows one layer
  called many times;
* attention is written with einsum, heads as an axis of their own.
"""

from __future__ import annotations

import bert_keras as bert
import keras
import tensorflow as tf
from keras import layers, ops

EMBEDDING = 64  # the width of a word vector, whatever the hidden size


class HeadProjection(layers.Layer):
    """A dense layer from the hidden size to several heads."""

    def __init__(self, heads: int, size: int, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.heads, self.size = heads, size

    def build(self, tokens: tuple[int | None, ...]) -> None:
        self.kernel = self.add_weight(
            shape=(tokens[-1], self.heads, self.size), initializer=bert.initial(), name="kernel"
        )
        self.bias = self.add_weight(shape=(self.heads, self.size), initializer="zeros", name="bias")

    def call(self, tokens: tf.Tensor) -> tf.Tensor:
        return ops.einsum("bfh,hnd->bfnd", tokens, self.kernel) + self.bias


class SelfAttention(layers.Layer):
    """Every token looks at all others; the heads are an axis that einsum carries along."""

    def __init__(self, hidden: int, heads: int, dropout: float, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.query = HeadProjection(heads, hidden // heads, name="query")
        self.key = HeadProjection(heads, hidden // heads, name="key")
        self.value = HeadProjection(heads, hidden // heads, name="value")
        self.dropout = layers.Dropout(dropout, name="dropout")
        self.scale = (hidden // heads) ** -0.5

    def call(self, tokens: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        scores = ops.einsum("bfnd,btnd->bnft", self.query(tokens), self.key(tokens)) * self.scale
        looks = self.dropout(ops.softmax(scores + mask))
        context = ops.einsum("bnft,btnd->bfnd", looks, self.value(tokens))
        return ops.reshape(context, (-1, *tokens.shape[1:]))


class Attention(layers.Layer):
    """Self-attention and its output."""

    def __init__(self, hidden: int, heads: int, dropout: float, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.self_attention = SelfAttention(hidden, heads, dropout, name="self")
        self.projection = bert.Output(hidden, dropout, name="output")

    def call(self, tokens: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        return self.projection(self.self_attention(tokens, mask), tokens)


class FeedForward(layers.Layer):
    """Two dense layers for each token alone."""

    def __init__(self, hidden: int, dropout: float, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.intermediate = bert.Intermediate(4 * hidden, name="intermediate")
        self.projection = bert.Output(hidden, dropout, name="output")

    def call(self, tokens: tf.Tensor) -> tf.Tensor:
        return self.projection(self.intermediate(tokens), tokens)


class InnerGroup(layers.Layer):
    """The transformer layer that all layers share."""

    def __init__(self, hidden: int, heads: int, dropout: float, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.attention = Attention(hidden, heads, dropout, name="attention_1")
        self.ffn = FeedForward(hidden, dropout, name="ffn_1")

    def call(self, tokens: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        return self.ffn(self.attention(tokens, mask))


class Group(layers.Layer):
    """Layers that take turns; ALBERT has a single group of one."""

    def __init__(self, hidden: int, heads: int, dropout: float, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.inner = InnerGroup(hidden, heads, dropout, name="inner_group_0")

    def call(self, tokens: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        return self.inner(tokens, mask)


class Transformer(layers.Layer):
    """The same group, as many times as there are layers."""

    def __init__(self, depth: int, hidden: int, heads: int, dropout: float, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.depth = depth
        self.group = Group(hidden, heads, dropout, name="group_0")

    def call(self, tokens: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        for _ in range(self.depth):
            tokens = self.group(tokens, mask)
        return tokens


class Encoder(layers.Layer):
    """From word vectors to the hidden size, then the transformer."""

    def __init__(self, depth: int, hidden: int, heads: int, dropout: float, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.mapping = bert.dense(hidden, "embedding_hidden_mapping_in")
        self.transformer = Transformer(depth, hidden, heads, dropout, name="transformer")

    def call(self, tokens: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        return self.transformer(self.mapping(tokens), mask)


class Albert(bert.Bert):
    """In and out as BERT; narrow words and one layer inside."""

    def __init__(
        self, vocabulary: int, seq: int, depth: int, hidden: int, heads: int, dropout: float
    ) -> None:
        keras.Model.__init__(self, name="bert")
        self.embeddings = bert.Embeddings(vocabulary, seq, EMBEDDING, dropout, name="embeddings")
        self.encoder = Encoder(depth, hidden, heads, dropout, name="encoder")
        self.pooler = bert.Pooler(hidden, name="pooler")


if __name__ == "__main__":
    bert.main(Albert)
