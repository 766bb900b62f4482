"""A recurrent network of linen, scanned over time; it says its own sequel until it has enough of it."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from toys import sequences, show

given, wanted = sequences(16, length=6)


class Reader(nn.Module):
    """A layer over time, and the next symbol."""

    @nn.compact
    def __call__(self, symbols):
        x = nn.Embed(10, 8, name="symbols")(symbols)
        x = nn.RNN(nn.SimpleCell(8, name="cell"), name="memory")(x)
        return nn.Dense(10, name="next")(x[:, -1])


model, learning = Reader(), optax.sgd(0.1, momentum=0.9)
weights = model.init(jax.random.key(0), given)
state = learning.init(weights)


@jax.jit
def train_step(weights, state):
    """One step, without a gradient where it would not be finite."""

    def loss(weights):
        return optax.softmax_cross_entropy_with_integer_labels(model.apply(weights, given), wanted).mean()

    value, gradients = jax.value_and_grad(loss)(weights)
    with jax.named_scope("careful"):
        gradients = jax.lax.cond(
            jnp.isfinite(value), lambda g: g, lambda g: jax.tree.map(jnp.zeros_like, g), gradients
        )
    updates, state = learning.update(gradients, state, weights)
    return optax.apply_updates(weights, updates), state, value


@jax.jit
def go_on(weights, symbols):
    """Says symbols until one comes twice in a row, or six of them."""

    def say(state):
        said, symbols = state
        symbol = model.apply(weights, symbols).argmax(-1)
        return said + 1, jnp.concatenate((symbols[:, 1:], symbol[:, None]), 1)

    def has_more(state):
        return (state[0] < 6) & (state[1][:, -1] != state[1][:, -2]).any()

    return jax.lax.while_loop(has_more, say, (0, symbols))


for _ in range(6):
    weights, state, value = train_step(weights, state)
show("loss", value)
for _ in range(3):
    said, symbols = go_on(weights, given)
show("said", said, symbols)
