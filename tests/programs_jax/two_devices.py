"""Trains on two devices: sharded by the compiler, by hand, and by pmap; and many members at once."""

import functools
import os

os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count=2 {os.environ.get('XLA_FLAGS', '')}"

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from toys import points, show

mesh = Mesh(np.array(jax.devices()), ("half",))
everywhere, by_half = PartitionSpec(), PartitionSpec("half")
places, sides = points(32)
weights = {"up": jnp.ones((8, 16)) / 8, "down": jnp.ones((16,)) / 16}


def loss(weights, places, sides):
    """Of one member."""
    with jax.named_scope("net"):
        with jax.named_scope("up"):
            x = jnp.tanh(places @ weights["up"])
        with jax.named_scope("down"):
            x = x @ weights["down"]
    return ((x - sides) ** 2).mean()


def learned(weights, gradients):
    with jax.named_scope("optimizer"):
        return jax.tree.map(lambda weight, gradient: weight - 0.1 * gradient, weights, gradients)


@jax.jit
def by_compiler(weights, places, sides):
    return learned(weights, jax.grad(loss)(weights, places, sides))


@jax.jit
@functools.partial(
    jax.shard_map, mesh=mesh, in_specs=(everywhere, by_half, by_half), out_specs=everywhere, check_vma=False
)
def by_hand(weights, places, sides):
    return learned(weights, jax.lax.pmean(jax.grad(loss)(weights, places, sides), "half"))


@functools.partial(jax.pmap, axis_name="half")
def by_pmap(weights, places, sides):
    return learned(weights, jax.lax.pmean(jax.grad(loss)(weights, places, sides), "half"))


@jax.jit
def members(weights, places, sides):
    """Each has weights of its own."""
    return jax.vmap(lambda one: learned(one, jax.grad(loss)(one, places, sides)))(weights)


shared = jax.device_put((places, sides), NamedSharding(mesh, by_half))
halves = places.reshape(2, 16, 8), sides.reshape(2, 16)
one, other, both = weights, weights, jax.tree.map(lambda weight: jnp.stack([weight] * 2), weights)
many = jax.tree.map(lambda weight: jnp.stack([weight, weight / 2, weight / 3]), weights)
for _ in range(5):
    one, other = by_compiler(one, *shared), by_hand(other, places, sides)
    both, many = by_pmap(both, *halves), members(many, places, sides)
for name in ("up", "down"):
    show(name, one[name], other[name], both[name], many[name])
print(sorted(str(shard.device) for shard in one["up"].addressable_shards))
