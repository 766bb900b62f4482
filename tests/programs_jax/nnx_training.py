"""Trains modules of nnx that inherit, share, count and normalise; a class is made while it runs."""

import jax
import optax
from flax import nnx
from toys import points, show


class Scaled(nnx.Linear):
    """A linear layer that calls its parent."""

    def __call__(self, x):
        return 2 * super().__call__(x)


class Block(nnx.Module):
    """A layer, a norm, and a count of calls."""

    def __init__(self, rngs):
        self.layer = Scaled(16, 16, rngs=rngs)
        self.norm = nnx.BatchNorm(16, rngs=rngs)
        self.calls = nnx.Variable(jax.numpy.zeros(()))

    def __call__(self, x):
        self.calls[...] += 1
        return nnx.relu(self.norm(self.layer(x)))


class Net(nnx.Module):
    """Blocks in a list, one of them used twice."""

    def __init__(self, rngs):
        self.entry = nnx.Linear(8, 16, rngs=rngs)
        self.blocks = nnx.List([Block(rngs) for _ in range(2)])
        self.head = nnx.Sequential(nnx.Dropout(0.1, rngs=rngs), nnx.Linear(16, 2, rngs=rngs))

    def __call__(self, x):
        x = self.entry(x)
        for block in [*self.blocks, self.blocks[0]]:
            x = block(x)
        return self.head(x)


places, sides = points(64)
model = Net(nnx.Rngs(3))
learning = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)


@nnx.jit
def train_step(model, learning):
    """One step."""

    def loss(model):
        return optax.softmax_cross_entropy_with_integer_labels(model(places), sides).mean()

    value, gradients = nnx.value_and_grad(loss)(model)
    learning.update(model, gradients)
    return value


for _ in range(12):
    value = train_step(model, learning)
show("loss", value, model.blocks[0].calls[...])
model.eval()
show("eager", model(places))
late = type("Late", (nnx.Linear,), {"__call__": lambda self, x: -nnx.Linear.__call__(self, x)})
negative = late(8, 2, rngs=nnx.Rngs(4))
show("late", jax.jit(lambda x: negative(x))(places))
print(Block.__call__.__qualname__, Block.__call__.__doc__, nnx.Linear.__call__.__module__)
