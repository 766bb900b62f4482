"""Keras 3 on JAX, with no TensorFlow at all."""

import os
import sys

os.environ["KERAS_BACKEND"] = "jax"
sys.modules["tensorflow"] = None

import keras  # noqa: E402
from toys import images, show  # noqa: E402

keras.utils.set_random_seed(5)
model = keras.Sequential(
    [
        keras.layers.Conv2D(4, 3, activation="relu", name="conv"),
        keras.layers.Flatten(),
        keras.layers.Dense(4, name="classes"),
    ],
    name="net",
)
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
pictures, classes = images(64)
history = model.fit(pictures, classes, batch_size=8, epochs=2, verbose=0)
show("loss", *history.history["loss"])
show("new", *model.evaluate(*images(32, seed=1), batch_size=8, verbose=0))
show("said", model.predict(pictures, batch_size=8, verbose=0))
