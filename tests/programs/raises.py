"""Raises inside a layer while Keras traces it, catches that, and then dies of an error in a callback."""

import sys
import traceback

import keras
from toys import points, show


class Broken(keras.layers.Layer):
    """A layer that cannot be called."""

    def call(self, inputs):
        raise ValueError("this layer is broken")


class Stop(keras.callbacks.Callback):
    """Gives up in the middle of an epoch."""

    def on_train_batch_end(self, batch, logs=None):
        if batch == 5:
            raise RuntimeError("given up in batch 5")


keras.utils.set_random_seed(23)
inputs, targets = points(256)
broken = keras.Sequential([keras.layers.Dense(4), Broken()])
broken.compile("sgd", "mse")
try:
    broken.fit(inputs, targets, verbose=0)
except ValueError as error:
    print("caught", error)
    print([(frame.name, frame.lineno) for frame in traceback.extract_tb(sys.exc_info()[2])])
model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(1, "sigmoid")])
model.compile("sgd", "binary_crossentropy")
show("loss", *model.fit(inputs, targets, epochs=1, verbose=0).history["loss"])
model.fit(inputs, targets, verbose=0, callbacks=[Stop()])
