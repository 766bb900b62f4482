"""Less memory for more time: gradients accumulated over batches, activations computed again in backward."""

import keras
import tensorflow as tf
from toys import points, show

keras.utils.set_random_seed(19)
inputs, targets = points(256)

model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(1)])
accumulating = keras.optimizers.Adam(0.01, gradient_accumulation_steps=4, use_ema=True)
model.compile(accumulating, keras.losses.BinaryCrossentropy(from_logits=True))
show("accumulated", *model.fit(inputs, targets, batch_size=16, epochs=2, verbose=0).history["loss"])

random = tf.random.Generator.from_seed(2)
weights = [tf.Variable(random.normal((8, 8), stddev=0.5)) for _ in range(4)]


def layer(hidden, weight):
    """One of several layers that are forgotten and computed again."""
    return tf.tanh(hidden @ weight) + hidden


@tf.function
def step(places, sides):
    """Forward twice, backward once."""
    with tf.GradientTape() as tape:
        hidden = places
        for weight in weights:
            hidden = tf.recompute_grad(lambda inner, weight=weight: layer(inner, weight))(hidden)
        scores = tf.reduce_sum(hidden, -1)
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(sides, scores))
    for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
        weight.assign_sub(0.1 * gradient)
    return loss


for _ in range(8):
    loss = step(inputs, targets.astype("float32"))
show("recomputed", loss)
