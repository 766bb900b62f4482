"""Loops, branches, vmap, recomputing, own gradients, two devices: what JAX does to functions."""

import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from toys import points, show

places = jnp.asarray(points(16)[0])
weights = jax.random.normal(jax.random.key(1), (4, 8, 8)) / 3


@jax.custom_vjp
def clipped(x):
    """Its gradient is never large."""
    return x**3


clipped.defvjp(lambda x: (x**3, x), lambda x, g: (jnp.clip(3 * g * x**2, -1, 1),))


def layer(x, weight):
    with jax.named_scope("layer"):
        return clipped(jnp.tanh(x @ weight)), None


@jax.jit
def scanned(weights):
    """The gradient of a loop that computes its inside again."""

    def loss(weights):
        with jax.named_scope("stack"):
            x, _ = jax.lax.scan(jax.checkpoint(layer), places, weights)
        return jax.lax.cond(x.sum() > 0, lambda: (x**2).sum(), lambda: jnp.abs(x).sum())

    return jax.grad(loss)(weights)


@jax.jit
def each(x):
    """One gradient for each place."""
    return jax.vmap(jax.grad(lambda one: layer(one[None], weights[0])[0].sum()))(x)


@jax.jit
def halves(x):
    """Until it is small."""
    return jax.lax.while_loop(lambda x: jnp.abs(x).max() > 0.01, lambda x: x / 2, x)


mesh = Mesh(np.array(jax.devices()), ("half",))
summed = jax.jit(
    jax.shard_map(
        lambda x: jax.lax.psum(layer(x, weights[1])[0], "half"),
        mesh=mesh,
        in_specs=PartitionSpec("half"),
        out_specs=PartitionSpec(),
    )
)
apart = jax.pmap(lambda x: layer(x, weights[2])[0])
inner = jax.jit(jnp.sin)
for _ in range(8):
    results = scanned(weights), each(places), halves(places), summed(places), apart(places.reshape(2, 8, 8))
    eager = jax.grad(lambda x: inner(x).sum())(places)
show("results", *results, eager)
