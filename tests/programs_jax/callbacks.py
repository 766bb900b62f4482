"""Compiled functions that call back into Python: in order, in threads, and with an error that shows later."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from toys import show

heard = []


@jax.custom_jvp
def rounded(x):
    """Rounded by Python; its gradient is 1."""
    return jax.pure_callback(np.round, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


rounded.defjvp(lambda primals, tangents: (rounded(*primals), *tangents))


@jax.jit
def tells(x):
    with jax.named_scope("layer"):
        y = rounded(jnp.sin(x) * 3)
    io_callback(lambda value: heard.append(float(value)), None, y.sum(), ordered=True)
    return y


@jax.jit
def slopes(x):
    with jax.named_scope("slope"):
        return jax.grad(lambda x: rounded(x**2).sum())(x)


def refuse(x):
    raise ValueError("not today")


@jax.jit
def fails(x):
    with jax.named_scope("failing"):
        return jax.pure_callback(refuse, jax.ShapeDtypeStruct(x.shape, x.dtype), x) + 1


def failure(x):
    try:
        return fails(x).block_until_ready()
    except jax.errors.JaxRuntimeError as error:
        return "not today" in str(error)


x = jnp.arange(6.0)
for number in range(5):
    y, slope = tells(x + number), slopes(x + number)
jax.effects_barrier()
show("heard", y, slope, *heard)
for _ in range(3):
    print("failed", failure(x))
results = {}
threads = [
    threading.Thread(target=lambda n=n: results.update({n: [slopes(x * n) for _ in range(4)][-1]}))
    for n in range(3)
]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
show("threads", *(results[n] for n in range(3)))
