"""A language model that reads a prompt (prefill) and goes on with it, token by token (decode), in plain JAX.

    python llm_jax.py                                   a tiny one, on a CPU
    python llm_jax.py --size 1b --dtype bfloat16        1.2 billion parameters, on a GPU

The model is a Llama of plain functions over a tree of arrays, with random weights: nothing is downloaded, and
what it says makes no sense; what it costs does. Prompts and answers follow from the seed. Layers are scopes
(`jax.named_scope`); where there is none, a recording has the names of the functions.

Energy per token is read from a recording afterwards. Both phases are named with `joulemap.measure`, which
they tell of every token that went through the model, so that

    joulemap run -o llm.joulemap llm_jax.py
    joulemap show llm.joulemap --by region

has the energy of `prefill` and of `decode`, and of each token in them. Every prompt and every new token is a
step of its own: they are calls of two compiled functions, `read_prompt` and `next_token`.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import joulemap

DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}

Weights = dict[str, Any]
Cache = list[tuple[jax.Array, jax.Array]]


@dataclass(frozen=True)
class Size:
    """How large a model is."""

    vocabulary: int
    hidden: int
    wide: int
    layers: int
    heads: int
    groups: int

    @property
    def head(self) -> int:
        """The size of one head."""
        return self.hidden // self.heads


SIZES = {"tiny": Size(4096, 256, 704, 4, 8, 2), "1b": Size(128256, 2048, 8192, 16, 32, 8)}


@dataclass
class Phase:
    """Tokens that went through the model in a phase, and how long that took."""

    name: str
    tokens: int = 0
    seconds: float = 0.0

    def add(self, tokens: int, since_s: float) -> None:
        """Some more tokens, and the time since then."""
        self.tokens += tokens
        self.seconds += time.perf_counter() - since_s

    def __str__(self) -> str:
        return f"{self.name:7} {self.tokens:6} tokens  {self.tokens / self.seconds:.1f} tokens/s"


@partial(jax.jit, static_argnums=(0, 2))
def make_llm(size: Size, key: jax.Array, dtype: Any) -> Weights:
    """Random weights."""
    keys = iter(jax.random.split(key, 2 + 7 * size.layers))

    def matrix(rows: int, columns: int) -> jax.Array:
        return (jax.random.normal(next(keys), (rows, columns)) * rows**-0.5).astype(dtype)

    kept = size.groups * size.head
    layers = [
        {
            "q_proj": matrix(size.hidden, size.hidden),
            "k_proj": matrix(size.hidden, kept),
            "v_proj": matrix(size.hidden, kept),
            "o_proj": matrix(size.hidden, size.hidden),
            "gate_proj": matrix(size.hidden, size.wide),
            "up_proj": matrix(size.hidden, size.wide),
            "down_proj": matrix(size.wide, size.hidden),
        }
        for _ in range(size.layers)
    ]
    return {
        "embed_tokens": matrix(size.vocabulary, size.hidden),
        "layers": layers,
        "lm_head": matrix(size.hidden, size.vocabulary),
    }


def project(weights: Weights, name: str, tokens: jax.Array) -> jax.Array:
    """A matrix product under the name of its matrix."""
    with jax.named_scope(name):
        return tokens @ weights[name]


def norm(tokens: jax.Array) -> jax.Array:
    """To length one, on average."""
    with jax.named_scope("norm"):
        wide = tokens.astype(jnp.float32)
        return (wide * jax.lax.rsqrt((wide**2).mean(-1, keepdims=True) + 1e-5)).astype(tokens.dtype)


def rotate(heads: jax.Array, start: jax.Array) -> jax.Array:
    """Where a token is, told by turning its vector."""
    with jax.named_scope("rotary_emb"):
        half = heads.shape[-1] // 2
        places = start + jnp.arange(heads.shape[1])
        angles = places[:, None] * 10000.0 ** (-jnp.arange(half) / half)
        sine, cosine = (turn(angles)[None, :, None].astype(heads.dtype) for turn in (jnp.sin, jnp.cos))
        left, right = heads[..., :half], heads[..., half:]
        return jnp.concatenate((left * cosine - right * sine, right * cosine + left * sine), -1)


@jax.named_scope("self_attn")
def attend(
    size: Size, weights: Weights, tokens: jax.Array, kept: tuple[jax.Array, jax.Array], start: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """Every token looks at those before it, of which keys and values were kept."""
    batch, count, _ = tokens.shape
    query, key, value = (
        project(weights, name, tokens).reshape(batch, count, -1, size.head)
        for name in ("q_proj", "k_proj", "v_proj")
    )
    query, key = rotate(query, start), rotate(key, start)
    keys, values = (
        jax.lax.dynamic_update_slice(old, new, (0, start, 0, 0))
        for old, new in zip(kept, (key, value), strict=True)
    )
    query = query.reshape(batch, count, size.groups, -1, size.head)
    scores = jnp.einsum("bqghd,bkgd->bghqk", query, keys) * size.head**-0.5
    before = jnp.arange(keys.shape[1]) <= (start + jnp.arange(count))[:, None]
    looks = jax.nn.softmax(jnp.where(before, scores.astype(jnp.float32), -jnp.inf)).astype(tokens.dtype)
    found = jnp.einsum("bghqk,bkgd->bqghd", looks, values).reshape(batch, count, -1)
    return project(weights, "o_proj", found), (keys, values)


@jax.named_scope("mlp")
def widen(weights: Weights, tokens: jax.Array) -> jax.Array:
    """Two wide products, one of which opens the other."""
    gate = jax.nn.silu(project(weights, "gate_proj", tokens))
    return project(weights, "down_proj", gate * project(weights, "up_proj", tokens))


def model(
    size: Size, weights: Weights, tokens: jax.Array, cache: Cache, start: jax.Array
) -> tuple[jax.Array, Cache]:
    """The scores of what may come after the last token, and the cache with these tokens in it."""
    with jax.named_scope("model/embed_tokens"):
        vectors = weights["embed_tokens"][tokens]
    kept = []
    for number, layer in enumerate(weights["layers"]):
        with jax.named_scope(f"model/layers/{number}"):
            found, mine = attend(size, layer, norm(vectors), cache[number], start)
            kept.append(mine)
            vectors = vectors + found
            vectors = vectors + widen(layer, norm(vectors))
    return project(weights, "lm_head", norm(vectors[:, -1])), kept


@partial(jax.jit, static_argnums=0, donate_argnums=3)
def read_prompt(size: Size, weights: Weights, prompt: jax.Array, cache: Cache) -> tuple[jax.Array, Cache]:
    """The first new token, and the cache."""
    scores, cache = model(size, weights, prompt, cache, jnp.int32(0))
    return scores.argmax(-1, keepdims=True), cache


@partial(jax.jit, static_argnums=0, donate_argnums=3)
def next_token(
    size: Size, weights: Weights, token: jax.Array, cache: Cache, start: jax.Array
) -> tuple[jax.Array, Cache]:
    """One more token, and the cache."""
    scores, cache = model(size, weights, token, cache, start)
    return scores.argmax(-1, keepdims=True), cache


def prefill(
    size: Size, weights: Weights, prompt: jax.Array, cache: Cache, phase: Phase
) -> tuple[jax.Array, Cache]:
    """Reads the prompt at once and gives the first new token."""
    start_s = time.perf_counter()
    with joulemap.measure("prefill", unit="token") as tokens:
        token, cache = jax.block_until_ready(read_prompt(size, weights, prompt, cache))
        tokens.add(prompt.size)
    phase.add(prompt.size, start_s)
    return token, cache


def decode(
    size: Size, weights: Weights, token: jax.Array, cache: Cache, start: int, count: int, phase: Phase
) -> np.ndarray:
    """Goes on for so many tokens, each from all before it."""
    start_s = time.perf_counter()
    answer = [token]
    with joulemap.measure("decode", unit="token") as tokens:
        for number in range(count):
            token, cache = next_token(size, weights, token, cache, jnp.int32(start + number))
            answer.append(token)
        said = np.concatenate(jax.device_get(answer), axis=1)
        tokens.add(count * len(said))
    phase.add(count * len(said), start_s)
    return said


def empty_cache(size: Size, args: argparse.Namespace) -> Cache:
    """Room for the keys and values of all tokens to come."""
    shape = (args.batch, args.prompt + args.tokens, size.groups, size.head)
    return [
        (jnp.zeros(shape, DTYPES[args.dtype]), jnp.zeros(shape, DTYPES[args.dtype]))
        for _ in range(size.layers)
    ]


def options() -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--prompt", type=int, default=128, help="tokens of a prompt")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of an answer")
    parser.add_argument("--batch", type=int, default=4, help="prompts at once")
    parser.add_argument("--rounds", type=int, default=4, help="how often")
    parser.add_argument("--seed", type=int, default=7)
    return parser.parse_args()


def digest(answer: np.ndarray) -> str:
    """A short name for what was said: the same answer, the same name."""
    return hashlib.sha256(answer.tobytes()).hexdigest()[:16]


def main() -> None:
    """Answers some rounds of prompts, and says how quick each phase was."""
    args = options()
    size = SIZES[args.size]
    weights = make_llm(size, jax.random.key(args.seed), DTYPES[args.dtype])
    reading, saying = Phase("prefill"), Phase("decode")
    rng = np.random.default_rng(args.seed)
    for number in range(args.rounds):
        prompt = jnp.asarray(rng.integers(size.vocabulary, size=(args.batch, args.prompt)))
        token, cache = prefill(size, weights, prompt, empty_cache(size, args), reading)
        answer = decode(size, weights, token, cache, args.prompt, args.tokens - 1, saying)
        start = " ".join(map(str, answer[0, :6].tolist()))
        print(f"round {number + 1:3}  {start} …  {digest(answer)}", flush=True)
    print(reading)
    print(saying)


if __name__ == "__main__":
    main()
