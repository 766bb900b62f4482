"""Two inputs, two outputs, a loss and a metric for each, and class weights."""

import keras
import numpy as np
from keras import layers
from toys import images, points, show

keras.utils.set_random_seed(5)
picture = keras.Input((12, 12, 1), name="picture")
place = keras.Input((8,), name="place")
seen = layers.GlobalMaxPooling2D()(layers.Conv2D(8, 3, activation="relu", name="look")(picture))
both = layers.Concatenate()([seen, layers.Dense(8, activation="tanh", name="feel")(place)])
model = keras.Model(
    {"picture": picture, "place": place},
    {"kind": layers.Dense(4, name="kind")(both), "side": layers.Dense(1, name="side")(both)},
)
model.compile(
    "adam",
    loss={
        "kind": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "side": keras.losses.BinaryCrossentropy(from_logits=True),
    },
    loss_weights={"kind": 1.0, "side": 0.5},
    metrics={"kind": ["accuracy"], "side": [keras.metrics.BinaryAccuracy(threshold=0.0)]},
)
pictures, kinds = images(128)
places, sides = points(128)
history = model.fit(
    {"picture": pictures, "place": places},
    {"kind": kinds, "side": sides.astype("float32")},
    sample_weight={"kind": np.where(kinds == 0, 2.0, 1.0), "side": np.ones(128)},
    epochs=3,
    verbose=0,
)
for name in sorted(history.history):
    show(name, *history.history[name])
