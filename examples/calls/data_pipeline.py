"""A ``tf.data`` pipeline: pictures to disk and back, shuffled, changed by chance, and into a model.

python data_pipeline.py                about half a minute on two cores
joulemap run --calls tensorflow data_pipeline.py
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import tensorflow as tf
from made_up import pictures

options = argparse.ArgumentParser(description=__doc__)
options.add_argument("--samples", type=int, default=3000)
options.add_argument("--epochs", type=int, default=18)
options.add_argument("--side", type=int, default=40)
given = options.parse_args()


def write(path: Path, samples: int, side: int) -> None:
    """Pictures on disk."""
    tf.data.Dataset.from_tensor_slices(pictures(samples, side, seed=1)).save(str(path))


def change(image: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The same picture, a little different each time."""
    image = tf.image.random_brightness(tf.image.random_flip_left_right(image, seed=1), 0.1, seed=2)
    side = image.shape[0]
    return tf.image.resize(tf.image.resize(image, (2 * side, 2 * side)), (side, side)), label


def read(path: Path) -> tf.data.Dataset:
    """Batches of the pictures, shuffled and changed, made while the model is busy with those before."""
    pieces = tf.data.Dataset.load(str(path)).cache().shuffle(500, seed=0)
    return pieces.map(change, num_parallel_calls=2).batch(64).prefetch(2)


tf.keras.utils.set_random_seed(0)
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "pictures"
    write(path, given.samples, given.side)
    dataset = read(path)
    brightness = dataset.reduce(0.0, lambda total, batch: total + tf.reduce_sum(batch[0]))
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Conv2D(32, 3, activation="relu"),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Conv2D(64, 3, activation="relu"),
            tf.keras.layers.GlobalAveragePooling2D(),
            tf.keras.layers.Dense(4),
        ]
    )
    model.compile(optimizer="adam", loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    history = model.fit(dataset, epochs=given.epochs, shuffle=False, verbose=0)
    print(f"brightness {float(brightness) / given.samples:.1f}, loss {history.history['loss'][-1]:.3f}")
