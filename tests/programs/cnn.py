"""A convolutional classifier: fit, evaluate, predict."""

import keras
from toys import images, show

keras.utils.set_random_seed(1)
model = keras.Sequential(
    [
        keras.layers.Input((12, 12, 1)),
        keras.layers.Conv2D(8, 3, activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Conv2D(16, 3, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dropout(0.2),
        keras.layers.Dense(4),
    ]
)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile("adam", loss, metrics=["accuracy"])
history = model.fit(*images(256), batch_size=32, epochs=3, verbose=0)
show("loss", *history.history["loss"])
show("test", *model.evaluate(*images(64, seed=1), verbose=0))
show("scores", model.predict(images(40, seed=2)[0], verbose=0))
