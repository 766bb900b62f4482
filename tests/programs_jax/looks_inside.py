"""Looks at itself: what JAX's functions look like, what they compile to, what is in memory and in threads."""

import inspect
import os
import sys
import threading

import jax
import jax.numpy as jnp
from toys import show

print(__name__, __file__ == sys.argv[0], sys.argv[1:], sys.path[0] == __file__.rpartition("/")[0])
print("threads to wait for", [one.name for one in threading.enumerate() if not one.daemon])
print("environment", sorted(name for name in os.environ if "JOULEMAP" in name or "XLA" in name))


@jax.jit
def step(x, *, power=2):
    """A function with a docstring."""
    jax.debug.print("the sum is {}", x.sum())
    return x**power


quiet = jax.jit(lambda x: x * 2, static_argnames=())
x = jnp.arange(4.0)
for _ in range(4):
    y = step(x)
    z = quiet(x)
jax.effects_barrier()
show("values", y, z)
print(
    type(step).__name__,
    step.__name__,
    step.__doc__,
    inspect.signature(step),
    inspect.unwrap(step) is not step,
)
print(sorted(vars(step)), step._cache_size(), quiet._cache_size(), quiet.__wrapped__(3))
print(jax.make_jaxpr(quiet)(x))
print(quiet.lower(x).as_text())
print(quiet.lower(x).compile().cost_analysis() is not None, len(jax.live_arrays()))
print(jax.jit.__qualname__, inspect.signature(jax.jit).parameters.keys())
print(inspect.signature(jax.profiler.StepTraceAnnotation), jax.config.jax_debug_nans)
print(jax.block_until_ready.__module__, jax.profiler.start_trace.__qualname__)
