"""Finds a NaN where it looks for them, and then dies of an error while a function is traced."""

import jax
import jax.numpy as jnp
from flax import nnx
from toys import show


class Layer(nnx.Module):
    """Fails on the second shape."""

    def __call__(self, x):
        if x.ndim > 1:
            raise ValueError("too many dimensions")
        return jnp.log(x)


@jax.jit
def step(x):
    return Layer()(x).sum()


for number in range(6):
    value = step(jnp.arange(1.0, 5.0) + number)
show("value", value)
with jax.debug_nans(True):
    try:
        step(-jnp.ones(4))
    except FloatingPointError as error:
        print("found", error)
for number in range(3):
    value = step(jnp.arange(1.0, 5.0) + number)
show("value", value, step(-jnp.ones(4)))
step(jnp.ones((2, 2)))
