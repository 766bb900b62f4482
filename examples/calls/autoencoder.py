"""A denoising autoencoder in Keras: a model as a class, which learns to draw noisy pictures clean.

python autoencoder.py                  about half a minute on two cores
joulemap run --calls tensorflow autoencoder.py
"""

from __future__ import annotations

import argparse

import tensorflow as tf
from made_up import pictures

options = argparse.ArgumentParser(description=__doc__)
options.add_argument("--samples", type=int, default=3000)
options.add_argument("--epochs", type=int, default=14)
options.add_argument("--side", type=int, default=40)
given = options.parse_args()


class Autoencoder(tf.keras.Model):
    """Down to a small picture, and up again."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = tf.keras.Sequential(
            [
                tf.keras.layers.Conv2D(32, 3, activation="relu", padding="same", strides=2),
                tf.keras.layers.Conv2D(16, 3, activation="relu", padding="same", strides=2),
            ]
        )
        self.decoder = tf.keras.Sequential(
            [
                tf.keras.layers.Conv2DTranspose(16, 3, activation="relu", padding="same", strides=2),
                tf.keras.layers.Conv2DTranspose(32, 3, activation="relu", padding="same", strides=2),
                tf.keras.layers.Conv2D(1, 3, activation="sigmoid", padding="same"),
            ]
        )

    def call(self, images: tf.Tensor) -> tf.Tensor:
        return self.decoder(self.encoder(images))


tf.keras.utils.set_random_seed(0)
images, _ = pictures(given.samples, given.side, seed=1)
clean = tf.clip_by_value(images, 0.0, 1.0)
noisy = tf.clip_by_value(clean + 0.2 * tf.random.normal(clean.shape, seed=3), 0.0, 1.0)

model = Autoencoder()
model.compile(optimizer="adam", loss=tf.keras.losses.MeanSquaredError())
model.fit(noisy, clean, epochs=given.epochs, batch_size=32, verbose=0)
drawn = model.predict(noisy[:512], verbose=0)
print(f"error {float(tf.reduce_mean(tf.square(drawn - clean[:512]))):.4f}")
