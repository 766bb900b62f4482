"""Models from a factory: a function makes them, and a table says with which sizes. They forecast waves.

python model_factory.py                about half a minute on two cores
joulemap run --calls tensorflow model_factory.py
"""

from __future__ import annotations

import argparse

import tensorflow as tf
from made_up import series

options = argparse.ArgumentParser(description=__doc__)
options.add_argument("--samples", type=int, default=3000)
options.add_argument("--epochs", type=int, default=7)
options.add_argument("--length", type=int, default=48)
given = options.parse_args()

RECIPES = {"small": ("GRU", 24), "large": ("LSTM", 96)}


def build(kind: str, units: int) -> tf.keras.Model:
    """A recurrent model, by the name of its layer."""
    recurrent = getattr(tf.keras.layers, kind)
    model = tf.keras.Sequential(
        [recurrent(units, return_sequences=True), recurrent(units), tf.keras.layers.Dense(1)]
    )
    model.compile(optimizer="adam", loss="mse")
    return model


tf.keras.utils.set_random_seed(0)
waves, following = series(given.samples, given.length, seed=1)
for name, recipe in RECIPES.items():
    model = build(*recipe)
    history = model.fit(waves, following, epochs=given.epochs, batch_size=64, verbose=0)
    error = model.evaluate(waves[:500], following[:500], verbose=0)
    print(f"{name}: loss {history.history['loss'][-1]:.4f}, error {error:.4f}")
