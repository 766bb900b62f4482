"""The model of `bert_flax.py` in flax linen: modules that name their parts where they use them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from corpus import PAD

Batch = dict[str, jax.Array]


@dataclass(frozen=True)
class Size:
    """How large a BERT is."""

    vocabulary: int
    seq: int
    depth: int
    hidden: int
    heads: int
    dropout: float
    classes: int
    dtype: Any = jnp.float32


def dense(size: Size, units: int, name: str) -> nn.Dense:
    """A fully connected layer with BERT's first weights."""
    return nn.Dense(units, dtype=size.dtype, kernel_init=nn.initializers.truncated_normal(0.02), name=name)


def embedding(size: Size, rows: int, name: str) -> nn.Embed:
    """A table of vectors."""
    start = nn.initializers.truncated_normal(0.02)
    return nn.Embed(rows, size.hidden, dtype=size.dtype, embedding_init=start, name=name)


def layer_norm(size: Size) -> nn.LayerNorm:
    """Layer normalisation under its name in BERT."""
    return nn.LayerNorm(epsilon=1e-12, dtype=size.dtype, name="LayerNorm")


class Embeddings(nn.Module):
    """Which piece, in which of the two texts, at which place: three vectors added up."""

    size: Size

    def setup(self) -> None:
        self.word_embeddings = embedding(self.size, self.size.vocabulary, None)
        self.token_type_embeddings = embedding(self.size, 2, None)
        self.position_embeddings = embedding(self.size, self.size.seq, None)
        self.LayerNorm = nn.LayerNorm(epsilon=1e-12, dtype=self.size.dtype)
        self.dropout = nn.Dropout(self.size.dropout)

    def __call__(self, tokens: jax.Array, segments: jax.Array, fixed: bool) -> jax.Array:
        places = jnp.arange(tokens.shape[1])
        words = self.word_embeddings(tokens) + self.token_type_embeddings(segments)
        return self.dropout(self.LayerNorm(words + self.position_embeddings(places)), deterministic=fixed)

    def table(self) -> jax.Array:
        """The vectors of the word pieces, which predicting a piece uses again."""
        return self.word_embeddings.embedding


class SelfAttention(nn.Module):
    """Every token looks at all others, with several heads at once."""

    size: Size

    @nn.compact
    def __call__(self, tokens: jax.Array, mask: jax.Array, fixed: bool) -> jax.Array:
        parts = (dense(self.size, self.size.hidden, name)(tokens) for name in ("query", "key", "value"))
        query, key, value = (part.reshape(*part.shape[:2], self.size.heads, -1) for part in parts)
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) * query.shape[-1] ** -0.5
        looks = nn.softmax(scores + mask.astype(scores.dtype))
        looks = nn.Dropout(self.size.dropout, name="dropout")(looks, deterministic=fixed)
        return jnp.einsum("bhqk,bkhd->bqhd", looks, value).reshape(tokens.shape)


class Output(nn.Module):
    """Back to the hidden size, and added to what came in."""

    size: Size

    @nn.compact
    def __call__(self, inner: jax.Array, residual: jax.Array, fixed: bool) -> jax.Array:
        inner = dense(self.size, self.size.hidden, "dense")(inner)
        inner = nn.Dropout(self.size.dropout, name="dropout")(inner, deterministic=fixed)
        return layer_norm(self.size)(inner + residual)


class Attention(nn.Module):
    """Self-attention and its output."""

    size: Size

    @nn.compact
    def __call__(self, tokens: jax.Array, mask: jax.Array, fixed: bool) -> jax.Array:
        looked = SelfAttention(self.size, name="self")(tokens, mask, fixed)
        return Output(self.size, name="output")(looked, tokens, fixed)


class Intermediate(nn.Module):
    """The wide middle of a transformer layer."""

    size: Size

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        return nn.gelu(dense(self.size, 4 * self.size.hidden, "dense")(tokens))


class TransformerLayer(nn.Module):
    """Attention, then two dense layers for each token alone."""

    size: Size

    @nn.compact
    def __call__(self, tokens: jax.Array, mask: jax.Array, fixed: bool) -> jax.Array:
        attended = Attention(self.size, name="attention")(tokens, mask, fixed)
        wide = Intermediate(self.size, name="intermediate")(attended)
        return Output(self.size, name="output")(wide, attended, fixed)


class Encoder(nn.Module):
    """Transformer layers, one upon the other."""

    size: Size

    @nn.compact
    def __call__(self, tokens: jax.Array, mask: jax.Array, fixed: bool) -> jax.Array:
        for number in range(self.size.depth):
            tokens = TransformerLayer(self.size, name=f"layer_{number}")(tokens, mask, fixed)
        return tokens


class Pooler(nn.Module):
    """The first token, [CLS], stands for the whole text."""

    size: Size

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        return jnp.tanh(dense(self.size, self.size.hidden, "dense")(tokens[:, 0]))


class Bert(nn.Module):
    """Tokens and segments in; a vector for each token, and one for the whole text, out."""

    size: Size

    def setup(self) -> None:
        self.embeddings = Embeddings(self.size)
        self.encoder = Encoder(self.size)
        self.pooler = Pooler(self.size)

    def __call__(self, batch: Batch, fixed: bool) -> tuple[jax.Array, jax.Array]:
        words = self.embeddings(batch["tokens"], batch["segments"], fixed)
        tokens = self.encoder(words, padding_mask(batch["tokens"]), fixed)
        return tokens, self.pooler(tokens)

    def table(self) -> jax.Array:
        """The vectors of the word pieces."""
        return self.embeddings.table()


def padding_mask(tokens: jax.Array) -> jax.Array:
    """Added to attention scores: nobody looks at padding."""
    return (tokens == PAD)[:, None, None, :] * -1e9


class Predictions(nn.Module):
    """Which pieces are hidden at the masked positions?"""

    size: Size

    @nn.compact
    def __call__(self, tokens: jax.Array, positions: jax.Array, table: jax.Array) -> jax.Array:
        hidden = jnp.take_along_axis(tokens, positions[:, :, None], axis=1)
        hidden = nn.gelu(dense(self.size, self.size.hidden, "transform")(hidden))
        bias = self.param("bias", nn.initializers.zeros, (self.size.vocabulary,))
        return layer_norm(self.size)(hidden) @ table.T.astype(self.size.dtype) + bias.astype(self.size.dtype)


class PretrainingHeads(nn.Module):
    """The two questions of pre-training."""

    size: Size

    @nn.compact
    def __call__(self, tokens: jax.Array, pooled: jax.Array, positions: jax.Array, table: jax.Array) -> Any:
        return {
            "predictions": Predictions(self.size, name="predictions")(tokens, positions, table),
            "seq_relationship": dense(self.size, 2, "seq_relationship")(pooled),
        }


class Pretraining(nn.Module):
    """BERT with the heads for masked pieces and for the next sentence."""

    size: Size

    def setup(self) -> None:
        self.bert = Bert(self.size)
        self.cls = PretrainingHeads(self.size)

    def __call__(self, batch: Batch, fixed: bool) -> dict[str, jax.Array]:
        tokens, pooled = self.bert(batch, fixed)
        return self.cls(tokens, pooled, batch["positions"], self.bert.table())


class Classification(nn.Module):
    """BERT with a classifier on the pooled token."""

    size: Size

    def setup(self) -> None:
        self.bert = Bert(self.size)
        self.dropout = nn.Dropout(0.1)
        self.classifier = nn.Dense(self.size.classes, dtype=self.size.dtype)

    def __call__(self, batch: Batch, fixed: bool) -> jax.Array:
        _, pooled = self.bert(batch, fixed)
        return self.classifier(self.dropout(pooled, deterministic=fixed))


Functions = tuple[Callable[..., Any], Callable[..., Any]]


def pretraining(size: Size, example: Batch) -> Functions:
    """The first weights and the answers of the model with both heads."""
    return _functions(Pretraining(size), example)


def classification(size: Size, example: Batch) -> Functions:
    """Those of the model with a classifier."""
    return _functions(Classification(size), example)


def _functions(model: nn.Module, example: Batch) -> Functions:
    def start(key: jax.Array) -> Any:
        return jax.jit(model.init, static_argnums=2)(key, example, True)["params"]

    def answer(weights: Any, batch: Batch, key: jax.Array | None) -> Any:
        chance = {} if key is None else {"dropout": key}
        return model.apply({"params": weights}, batch, key is None, rngs=chance)

    return start, answer
