"""Ends with an exit code of its own, after finally blocks and atexit functions."""

import atexit
import sys

import keras
from toys import points, show

atexit.register(print, "at exit: first registered, last called")
atexit.register(print, "at exit: last registered, first called")
keras.utils.set_random_seed(22)
model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(1, "sigmoid")])
model.compile("sgd", "binary_crossentropy")
try:
    show("loss", *model.fit(*points(128), epochs=2, verbose=0).history["loss"])
    sys.exit(3)
finally:
    print("finally")
