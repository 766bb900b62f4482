"""Reads standard input, talks on both streams, computes in threads, ends with a code of its own."""

import atexit
import sys
import threading
import warnings

import jax
import jax.numpy as jnp
from toys import points, show

atexit.register(print, "at exit: first registered, last called")
atexit.register(print, "at exit: last registered, first called")


@jax.jit
def train_step(weights, places, sides):
    with jax.named_scope("line"):
        return weights - 0.1 * jax.grad(lambda w: ((places @ w - sides) ** 2).mean())(weights)


weights = jnp.zeros(8)
for line in sys.stdin:
    for _ in range(3):
        weights = train_step(weights, *points(32, seed=int(line)))
    show(f"seed {int(line)}", weights)
    print(f"seed {int(line)} done", file=sys.stderr)
warnings.warn("the program's own warning", stacklevel=1)
results = {}
threads = [
    threading.Thread(target=lambda n=n: results.update({n: train_step(weights, *points(32, seed=n))}))
    for n in range(3)
]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
show("threads", *(results[n] for n in range(3)))
try:
    sys.exit(3)
finally:
    print("finally")
