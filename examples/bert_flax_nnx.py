"""The model of `bert_flax.py` in flax nnx: plain objects that hold their parts as attributes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from bert_flax_linen import Batch, Functions, Size, padding_mask
from flax import nnx


def dense(size: Size, inputs: int, units: int, rngs: nnx.Rngs) -> nnx.Linear:
    """A fully connected layer with BERT's first weights."""
    start = nnx.initializers.truncated_normal(0.02)
    return nnx.Linear(inputs, units, dtype=size.dtype, kernel_init=start, rngs=rngs)


def embedding(size: Size, rows: int, rngs: nnx.Rngs) -> nnx.Embed:
    """A table of vectors."""
    start = nnx.initializers.truncated_normal(0.02)
    return nnx.Embed(rows, size.hidden, dtype=size.dtype, embedding_init=start, rngs=rngs)


def layer_norm(size: Size, rngs: nnx.Rngs) -> nnx.LayerNorm:
    """Layer normalisation as BERT has it."""
    return nnx.LayerNorm(size.hidden, epsilon=1e-12, dtype=size.dtype, rngs=rngs)


class Embeddings(nnx.Module):
    """Which piece, in which of the two texts, at which place: three vectors added up."""

    def __init__(self, size: Size, rngs: nnx.Rngs) -> None:
        self.word_embeddings = embedding(size, size.vocabulary, rngs)
        self.token_type_embeddings = embedding(size, 2, rngs)
        self.position_embeddings = embedding(size, size.seq, rngs)
        self.LayerNorm = layer_norm(size, rngs)
        self.dropout = nnx.Dropout(size.dropout)

    def __call__(self, tokens: jax.Array, segments: jax.Array, rngs: nnx.Rngs | None) -> jax.Array:
        places = jnp.arange(tokens.shape[1])
        words = self.word_embeddings(tokens) + self.token_type_embeddings(segments)
        words = self.LayerNorm(words + self.position_embeddings(places))
        return self.dropout(words, deterministic=rngs is None, rngs=rngs)


class SelfAttention(nnx.Module):
    """Every token looks at all others, with several heads at once."""

    def __init__(self, size: Size, rngs: nnx.Rngs) -> None:
        self.heads = size.heads
        self.query = dense(size, size.hidden, size.hidden, rngs)
        self.key = dense(size, size.hidden, size.hidden, rngs)
        self.value = dense(size, size.hidden, size.hidden, rngs)
        self.dropout = nnx.Dropout(size.dropout)

    def __call__(self, tokens: jax.Array, mask: jax.Array, rngs: nnx.Rngs | None) -> jax.Array:
        parts = (self.query(tokens), self.key(tokens), self.value(tokens))
        query, key, value = (part.reshape(*part.shape[:2], self.heads, -1) for part in parts)
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) * query.shape[-1] ** -0.5
        looks = nnx.softmax(scores + mask.astype(scores.dtype))
        looks = self.dropout(looks, deterministic=rngs is None, rngs=rngs)
        return jnp.einsum("bhqk,bkhd->bqhd", looks, value).reshape(tokens.shape)


class Output(nnx.Module):
    """Back to the hidden size, and added to what came in."""

    def __init__(self, size: Size, inputs: int, rngs: nnx.Rngs) -> None:
        self.dense = dense(size, inputs, size.hidden, rngs)
        self.LayerNorm = layer_norm(size, rngs)
        self.dropout = nnx.Dropout(size.dropout)

    def __call__(self, inner: jax.Array, residual: jax.Array, rngs: nnx.Rngs | None) -> jax.Array:
        inner = self.dropout(self.dense(inner), deterministic=rngs is None, rngs=rngs)
        return self.LayerNorm(inner + residual)


class Attention(nnx.Module):
    """Self-attention and its output."""

    def __init__(self, size: Size, rngs: nnx.Rngs) -> None:
        self.self = SelfAttention(size, rngs)
        self.output = Output(size, size.hidden, rngs)

    def __call__(self, tokens: jax.Array, mask: jax.Array, rngs: nnx.Rngs | None) -> jax.Array:
        return self.output(self.self(tokens, mask, rngs), tokens, rngs)


class Intermediate(nnx.Module):
    """The wide middle of a transformer layer."""

    def __init__(self, size: Size, rngs: nnx.Rngs) -> None:
        self.dense = dense(size, size.hidden, 4 * size.hidden, rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        return nnx.gelu(self.dense(tokens))


class TransformerLayer(nnx.Module):
    """Attention, then two dense layers for each token alone."""

    def __init__(self, size: Size, rngs: nnx.Rngs) -> None:
        self.attention = Attention(size, rngs)
        self.intermediate = Intermediate(size, rngs)
        self.output = Output(size, 4 * size.hidden, rngs)

    def __call__(self, tokens: jax.Array, mask: jax.Array, rngs: nnx.Rngs | None) -> jax.Array:
        attended = self.attention(tokens, mask, rngs)
        return self.output(self.intermediate(attended), attended, rngs)


class Encoder(nnx.Module):
    """Transformer layers, one upon the other."""

    def __init__(self, size: Size, rngs: nnx.Rngs) -> None:
        self.layer = nnx.List([TransformerLayer(size, rngs) for _ in range(size.depth)])

    def __call__(self, tokens: jax.Array, mask: jax.Array, rngs: nnx.Rngs | None) -> jax.Array:
        for layer in self.layer:
            tokens = layer(tokens, mask, rngs)
        return tokens


class Pooler(nnx.Module):
    """The first token, [CLS], stands for the whole text."""

    def __init__(self, size: Size, rngs: nnx.Rngs) -> None:
        self.dense = dense(size, size.hidden, size.hidden, rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        return jnp.tanh(self.dense(tokens[:, 0]))


class Bert(nnx.Module):
    """Tokens and segments in; a vector for each token, and one for the whole text, out."""

    def __init__(self, size: Size, rngs: nnx.Rngs) -> None:
        self.embeddings = Embeddings(size, rngs)
        self.encoder = Encoder(size, rngs)
        self.pooler = Pooler(size, rngs)

    def __call__(self, batch: Batch, rngs: nnx.Rngs | None) -> tuple[jax.Array, jax.Array]:
        words = self.embeddings(batch["tokens"], batch["segments"], rngs)
        tokens = self.encoder(words, padding_mask(batch["tokens"]), rngs)
        return tokens, self.pooler(tokens)


class Predictions(nnx.Module):
    """Which pieces are hidden at the masked positions?"""

    def __init__(self, size: Size, rngs: nnx.Rngs) -> None:
        self.transform = dense(size, size.hidden, size.hidden, rngs)
        self.LayerNorm = layer_norm(size, rngs)
        self.bias = nnx.Param(jnp.zeros(size.vocabulary))

    def __call__(self, tokens: jax.Array, positions: jax.Array, table: jax.Array) -> jax.Array:
        hidden = nnx.gelu(self.transform(jnp.take_along_axis(tokens, positions[:, :, None], axis=1)))
        hidden = self.LayerNorm(hidden)
        return hidden @ table.T.astype(hidden.dtype) + self.bias[...].astype(hidden.dtype)


class PretrainingHeads(nnx.Module):
    """The two questions of pre-training."""

    def __init__(self, size: Size, rngs: nnx.Rngs) -> None:
        self.predictions = Predictions(size, rngs)
        self.seq_relationship = dense(size, size.hidden, 2, rngs)

    def __call__(self, tokens: jax.Array, pooled: jax.Array, positions: jax.Array, table: jax.Array) -> Any:
        return {
            "predictions": self.predictions(tokens, positions, table),
            "seq_relationship": self.seq_relationship(pooled),
        }


class Pretraining(nnx.Module):
    """BERT with the heads for masked pieces and for the next sentence."""

    def __init__(self, size: Size, rngs: nnx.Rngs) -> None:
        self.bert = Bert(size, rngs)
        self.cls = PretrainingHeads(size, rngs)

    def __call__(self, batch: Batch, rngs: nnx.Rngs | None) -> dict[str, jax.Array]:
        tokens, pooled = self.bert(batch, rngs)
        table = self.bert.embeddings.word_embeddings.embedding[...]
        return self.cls(tokens, pooled, batch["positions"], table)


class Classification(nnx.Module):
    """BERT with a classifier on the pooled token."""

    def __init__(self, size: Size, rngs: nnx.Rngs) -> None:
        self.bert = Bert(size, rngs)
        self.dropout = nnx.Dropout(0.1)
        self.classifier = dense(size, size.hidden, size.classes, rngs)

    def __call__(self, batch: Batch, rngs: nnx.Rngs | None) -> jax.Array:
        _, pooled = self.bert(batch, rngs)
        return self.classifier(self.dropout(pooled, deterministic=rngs is None, rngs=rngs))


def pretraining(size: Size, _: Batch) -> Functions:
    """The first weights and the answers of the model with both heads."""
    return _functions(lambda rngs: Pretraining(size, rngs))


def classification(size: Size, _: Batch) -> Functions:
    """Those of the model with a classifier."""
    return _functions(lambda rngs: Classification(size, rngs))


def _functions(make: Callable[[nnx.Rngs], nnx.Module]) -> Functions:
    graph = nnx.graphdef(nnx.eval_shape(lambda: make(nnx.Rngs(0))))

    def start(key: jax.Array) -> Any:
        return nnx.to_pure_dict(nnx.state(make(nnx.Rngs(key)), nnx.Param))

    def answer(weights: Any, batch: Batch, key: jax.Array | None) -> Any:
        return nnx.merge(graph, weights)(batch, None if key is None else nnx.Rngs(dropout=key))

    return start, answer
