"""An image classifier in Keras: a small convolutional network tells shapes apart.

python image_cnn.py                    about half a minute on two cores
joulemap run --calls tensorflow image_cnn.py
"""

from __future__ import annotations

import argparse

import tensorflow as tf
from made_up import pictures

options = argparse.ArgumentParser(description=__doc__)
options.add_argument("--samples", type=int, default=6000)
options.add_argument("--epochs", type=int, default=10)
options.add_argument("--side", type=int, default=40)
given = options.parse_args()

tf.keras.utils.set_random_seed(0)
train_images, train_labels = pictures(given.samples, given.side, seed=1)
test_images, test_labels = pictures(given.samples // 5, given.side, seed=2)

model = tf.keras.models.Sequential()
model.add(tf.keras.layers.Input((given.side, given.side, 1)))
model.add(tf.keras.layers.Conv2D(32, 3, activation="relu"))
model.add(tf.keras.layers.MaxPooling2D())
model.add(tf.keras.layers.Conv2D(64, 3, activation="relu"))
model.add(tf.keras.layers.MaxPooling2D())
model.add(tf.keras.layers.Conv2D(64, 3, activation="relu"))
model.add(tf.keras.layers.Flatten())
model.add(tf.keras.layers.Dense(64, activation="relu"))
model.add(tf.keras.layers.Dense(4))

model.compile(
    optimizer="adam",
    loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
model.fit(train_images, train_labels, epochs=given.epochs, batch_size=64, verbose=0)
loss, accuracy = model.evaluate(test_images, test_labels, verbose=0)
print(f"loss {loss:.3f}, accuracy {accuracy:.3f}")
