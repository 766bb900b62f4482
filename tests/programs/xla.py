"""XLA: Keras with jit_compile, and a function compiled on its own."""

import keras
import tensorflow as tf
from toys import images, show

keras.utils.set_random_seed(15)
model = keras.Sequential(
    [
        keras.layers.Input((12, 12, 1)),
        keras.layers.Flatten(),
        keras.layers.Dense(32, "gelu", name="inner"),
        keras.layers.Dense(4, "softmax", name="outer"),
    ]
)
model.compile("adam", "sparse_categorical_crossentropy", jit_compile=True)
history = model.fit(*images(256), batch_size=32, epochs=3, verbose=0)
show("loss", *history.history["loss"])


@tf.function(jit_compile=True)
def power(matrix, times):
    """A matrix multiplied with itself in a compiled loop."""
    result = matrix
    for _ in tf.range(times):
        result = tf.tanh(result @ matrix)
    return result


matrix = tf.reshape(tf.linspace(-0.1, 0.1, 64 * 64), (64, 64))
for _ in range(4):
    matrix = power(matrix, 5)
show("power", matrix)
