"""Calls of JAX in a real program: public names, traced code that is left alone, and results waited for."""

from __future__ import annotations

from collections import defaultdict

import pytest

pytest.importorskip("jax")

from .calls_programs import metered, recorded_calls, same, texts
from .environment import uncovered
from .test_run import program

PROGRAM = """
    import jax
    import jax.numpy as jnp

    def helper(x): return jnp.sin(x) + 1
    @jax.jit
    def step(x): return jnp.tanh(helper(x)).sum()

    x = jnp.ones((3, 4))
    print(step(x), step(x + 1))
    print(jax.grad(lambda x: jnp.cos(x).sum())(x).shape)
    print(jax.vmap(lambda row: jnp.dot(row, row))(x))
    print(jax.lax.scan(lambda sum, row: (sum + jnp.exp(row).sum(), None), 0.0, x)[0])
    print(jax.make_jaxpr(step)(x))
    print(jnp.stack([x, x]).shape, x.sum().item(), x.block_until_ready().shape)
"""

AHEAD = """
    import jax, jax.numpy as jnp

    @jax.jit
    def later(x): return jax.lax.fori_loop(0, 30, lambda _, x: x @ x / 400, x)

    x = jnp.ones((400, 400))
    for _ in range(6):
        result = later(x)
        result.block_until_ready()
"""


def test_what_is_traced_is_left_alone_and_the_rest_has_names(tmp_path):
    program(tmp_path, PROGRAM)
    calls = same(tmp_path, "program.py", calls="jax", env=uncovered())
    called = texts(calls)
    found = dict(zip(called, calls.api, strict=True))
    assert called.count("step") == 2
    assert found["jnp.stack"] == "jax.numpy.stack"
    assert found["jax.lax.scan"] == "jax.lax.scan"
    assert found["jnp.ones"] == "jax.numpy.ones"
    assert found["x.sum"] == "jax.Array.sum"
    assert found["x.block_until_ready"] == "jax.Array.block_until_ready"
    objects = dict(zip(called, calls.object_bytes.tolist(), strict=True))
    assert objects["x.block_until_ready"] == objects["x.sum"] == 48
    assert not {"jnp.sin", "jnp.tanh", "jnp.cos", "jnp.dot", "jnp.exp"} & set(called)


def test_with_a_fence_a_call_lasts_until_its_result_is_there(tmp_path):
    program(tmp_path, AHEAD)
    done = metered(tmp_path, "--fence", "program.py", calls="jax", env=uncovered())
    assert done.returncode == 0, done.stderr
    calls = recorded_calls(tmp_path)
    took_ns = defaultdict(list)
    for text, length_ns in zip(texts(calls), (calls.end_ns - calls.start_ns).tolist(), strict=True):
        took_ns[text].append(length_ns)
    assert len(took_ns["later"]) == len(took_ns["result.block_until_ready"]) == 6
    assert min(took_ns["later"]) > 5 * min(took_ns["result.block_until_ready"])  # where nothing came between
