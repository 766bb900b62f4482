"""Half-precision arithmetic with full-precision weights, and loss scaling."""

import keras
from toys import images, show

keras.utils.set_random_seed(6)
keras.mixed_precision.set_global_policy("mixed_bfloat16")
model = keras.Sequential(
    [
        keras.layers.Input((12, 12, 1)),
        keras.layers.Conv2D(8, 3, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(32, activation="relu"),
        keras.layers.Dense(4, dtype="float32", activation="softmax"),
    ]
)
optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.003), initial_scale=1024.0)
model.compile(optimizer, "sparse_categorical_crossentropy")
history = model.fit(*images(192), epochs=2, verbose=0)
show("loss", *history.history["loss"])
print([(layer.name, layer.compute_dtype, layer.variable_dtype) for layer in model.layers])
show("scores", model.predict(images(8, seed=1)[0], verbose=0))
