"""Trains a small network of linen with donated weights, a function compiled ahead, and pickled results."""

import pickle

import flax.linen as nn
import jax
import optax
from toys import images, show


class Net(nn.Module):
    """Two convolutions and a head."""

    @nn.compact
    def __call__(self, pictures, train):
        x = nn.relu(nn.Conv(4, (3, 3), name="first")(pictures))
        x = nn.relu(nn.Conv(8, (3, 3), strides=2, name="second")(x))
        x = nn.Dropout(0.1, name="dropout")(x.reshape(len(x), -1), deterministic=not train)
        return nn.Dense(4, name="head")(x)


pictures, classes = images(64)
model, learning = Net(), optax.adamw(1e-2)
weights = model.init(jax.random.key(1), pictures, False)
state = learning.init(weights)


def loss(weights, key):
    scores = model.apply(weights, pictures, True, rngs={"dropout": key})
    return optax.softmax_cross_entropy_with_integer_labels(scores, classes).mean()


def train_step(weights, state, key):
    value, gradients = jax.value_and_grad(loss)(weights, key)
    updates, state = learning.update(gradients, state, weights)
    return optax.apply_updates(weights, updates), state, value


step = jax.jit(train_step, donate_argnums=(0, 1))
first = jax.tree.leaves(weights)[0]
for number in range(12):
    weights, state, value = step(weights, state, jax.random.key(number))
show("loss", value)
print("donated", first.is_deleted())
predict = jax.jit(lambda weights: model.apply(weights, pictures, False)).lower(weights).compile()
for _ in range(5):
    scores = predict(weights)
show("scores", scores, pickle.loads(pickle.dumps(scores)))
print("kept", step._cache_size(), pickle.loads(pickle.dumps(jax.tree.structure(weights))) is not None)
