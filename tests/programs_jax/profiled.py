"""Profiles itself, marks its steps for the profiler, and trains on."""

import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
from toys import points, show

places, sides = points(64)


@jax.jit
def train_step(weights):
    with jax.named_scope("model"):
        return weights - 0.1 * jax.grad(lambda w: ((places @ w - sides) ** 2).mean())(weights)


weights = jnp.zeros(8)
for number in range(10):
    with jax.profiler.StepTraceAnnotation("train", step_num=number):
        weights = train_step(weights)
with jax.profiler.trace("profile"):
    for number in range(10, 14):
        with jax.profiler.StepTraceAnnotation("train", step_num=number):
            weights = train_step(weights)
print("files", len(list(Path("profile").rglob("*.pb"))))
shutil.rmtree("profile")  # their names have the time in them
try:
    jax.profiler.stop_trace()
except RuntimeError as error:
    print(error)
for number in range(14, 20):
    with jax.profiler.StepTraceAnnotation("train", step_num=number):
        weights = train_step(weights)
show("weights", weights)
