"""A training loop by hand: a helper takes the model as a parameter, and calls it as it likes.

python custom_loop.py                  about half a minute on two cores
joulemap run --calls tensorflow custom_loop.py
"""

from __future__ import annotations

import argparse

import tensorflow as tf
from made_up import pictures

options = argparse.ArgumentParser(description=__doc__)
options.add_argument("--samples", type=int, default=4000)
options.add_argument("--epochs", type=int, default=7)
options.add_argument("--side", type=int, default=32)
given = options.parse_args()


def train(
    model: tf.keras.Model, images: tf.Tensor, labels: tf.Tensor, epochs: int, batch: int = 100
) -> float:
    """Fit a model, whichever it is: forward under a tape, backward, and a step of the optimizer."""
    objective = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = tf.keras.optimizers.Adam(1e-3)
    loss = tf.constant(0.0)
    for _ in range(epochs):
        for begin in range(0, len(images), batch):
            with tf.GradientTape() as tape:
                logits = model(images[begin : begin + batch], training=True)
                loss = objective(labels[begin : begin + batch], logits)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return float(loss)


def accuracy(model: tf.keras.Model, images: tf.Tensor, labels: tf.Tensor) -> float:
    """The share that the model gets right."""
    right = tf.equal(tf.argmax(model(images), axis=1, output_type=tf.int32), labels)
    return float(tf.reduce_mean(tf.cast(right, tf.float32)))


def main() -> None:
    """Two models of different kinds, trained by the same helper."""
    tf.keras.utils.set_random_seed(0)
    images, labels = (tf.constant(part) for part in pictures(given.samples, given.side, seed=1))
    dense = tf.keras.Sequential(
        [
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(1024, activation="relu"),
            tf.keras.layers.Dense(512, activation="relu"),
            tf.keras.layers.Dense(4),
        ]
    )
    convolutional = tf.keras.Sequential(
        [
            tf.keras.layers.Conv2D(32, 3, activation="relu"),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Conv2D(32, 3, activation="relu"),
            tf.keras.layers.GlobalMaxPooling2D(),
            tf.keras.layers.Dense(4),
        ]
    )
    for name, model in (("dense", dense), ("convolutional", convolutional)):
        loss = train(model, images, labels, given.epochs)
        print(f"{name}: loss {loss:.3f}, accuracy {accuracy(model, images[:1000], labels[:1000]):.3f}")


if __name__ == "__main__":
    main()
