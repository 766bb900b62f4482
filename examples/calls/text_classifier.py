"""A text classifier in Keras: words to numbers, numbers to vectors, and is the sentence glad or sad?

python text_classifier.py              about half a minute on two cores
joulemap run --calls tensorflow text_classifier.py
"""

from __future__ import annotations

import argparse

import tensorflow as tf
from made_up import sentences

options = argparse.ArgumentParser(description=__doc__)
options.add_argument("--samples", type=int, default=5000)
options.add_argument("--epochs", type=int, default=9)
options.add_argument("--words", type=int, default=64)
given = options.parse_args()

tf.keras.utils.set_random_seed(0)
train_text, train_labels = sentences(given.samples, given.words, seed=1)
test_text, test_labels = sentences(given.samples // 5, given.words, seed=2)

vectorize = tf.keras.layers.TextVectorization(max_tokens=500, output_sequence_length=given.words)
vectorize.adapt(tf.constant(train_text))
train_tokens = vectorize(tf.constant(train_text))
test_tokens = vectorize(tf.constant(test_text))

model = tf.keras.Sequential(
    [
        tf.keras.layers.Embedding(500, 96),
        tf.keras.layers.Conv1D(192, 5, activation="relu"),
        tf.keras.layers.Conv1D(192, 5, activation="relu"),
        tf.keras.layers.GlobalMaxPooling1D(),
        tf.keras.layers.Dense(64, activation="relu"),
        tf.keras.layers.Dense(1),
    ]
)
model.compile(
    optimizer=tf.keras.optimizers.Adam(1e-3),
    loss=tf.keras.losses.BinaryCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
model.fit(train_tokens, train_labels, epochs=given.epochs, batch_size=64, verbose=0)
loss, accuracy = model.evaluate(test_tokens, test_labels, verbose=0)
print(f"loss {loss:.3f}, accuracy {accuracy:.3f}")
