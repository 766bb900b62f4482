"""tf.data with a generator, interleaving, parallel maps, Python functions, cache, shuffle, prefetch."""

import keras
import numpy as np
import tensorflow as tf
from toys import images, show

keras.utils.set_random_seed(10)
pictures, labels = images(192)


def shard(number):
    """A quarter of the pictures, read one after the other."""
    part = tf.data.Dataset.from_tensor_slices((pictures, labels)).shard(4, number)
    return part.map(lambda picture, label: (picture * 0.5 + 0.5, label), num_parallel_calls=2)


def turn(picture):
    """Plain NumPy in the middle of the pipeline."""
    return np.ascontiguousarray(picture[:, ::-1])


@tf.function
def augment(picture, label):
    """A mirrored picture with a little contrast."""
    mirrored = tf.numpy_function(turn, [picture], tf.float32)
    return tf.image.adjust_contrast(tf.ensure_shape(mirrored, (12, 12, 1)), 1.2), label


batches = (
    tf.data.Dataset.range(4)
    .interleave(shard, cycle_length=2, num_parallel_calls=2, deterministic=True)
    .cache()
    .shuffle(192, seed=1)
    .map(augment, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    .repeat()
    .batch(32)
    .prefetch(tf.data.AUTOTUNE)
)
model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(16, "relu"), keras.layers.Dense(4)])
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
history = model.fit(batches, epochs=3, steps_per_epoch=6, shuffle=False, verbose=0)
show("loss", *history.history["loss"])
show("counted", sum(1 for _ in tf.data.Dataset.from_generator(lambda: iter(range(50)), tf.int32)))
