"""Uses TensorFlow's profiler itself: started by hand, with own ranges, and as a block."""

import shutil
from pathlib import Path

import keras
import tensorflow as tf
from toys import points, show

keras.utils.set_random_seed(25)
inputs, targets = points(512)
model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(16), keras.layers.Dense(1, "sigmoid")])
model.compile("adam", "binary_crossentropy")
show("warm", *model.fit(inputs, targets, epochs=1, verbose=0).history["loss"])
tf.profiler.experimental.start("by-hand")
try:
    tf.profiler.experimental.start("twice")
except tf.errors.AlreadyExistsError as error:
    print("one at a time:", error.message)
with tf.profiler.experimental.Trace("own", step_num=1):
    show("traced", *model.fit(inputs, targets, epochs=1, verbose=0).history["loss"])
tf.profiler.experimental.stop()
with tf.profiler.experimental.Profile("in-a-block"):
    show("in a block", *model.fit(inputs, targets, epochs=1, verbose=0).history["loss"])
for folder in ("by-hand", "in-a-block"):
    profiles = list(Path(folder).rglob("*.xplane.pb"))
    print(folder, len(profiles), all(file.stat().st_size > 1000 for file in profiles))
    shutil.rmtree(folder)
