"""A functional model: two branches, a layer used twice, a skip connection."""

import keras
from keras import layers
from toys import points, show

keras.utils.set_random_seed(3)
inputs = keras.Input((8,), name="points")
shared = layers.Dense(16, activation="relu", name="shared")
left = shared(inputs)
right = shared(layers.Dense(8, name="turn")(inputs))
joined = layers.Concatenate(name="joined")([left, right])
wide = layers.Dense(32, activation="gelu", name="wide")(joined)
outputs = layers.Dense(1, activation="sigmoid", name="side")(layers.Add(name="skip")([wide, joined]))
model = keras.Model(inputs, outputs, name="two_branches")
model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
model.summary(line_length=80)
history = model.fit(*points(256), batch_size=32, epochs=3, validation_split=0.25, verbose=0)
for name, values in history.history.items():
    show(name, *values)
