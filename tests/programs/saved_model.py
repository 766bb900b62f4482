"""A model trained, saved, exported, loaded again in three ways, and served."""

import json

import keras
import numpy as np
import tensorflow as tf
from toys import points, show


@keras.saving.register_keras_serializable("programs")
class Scale(keras.layers.Layer):
    """A layer of one's own that can be saved."""

    def __init__(self, factor=2.0, **kwargs):
        super().__init__(**kwargs)
        self.factor = factor

    def call(self, inputs):
        return inputs * self.factor

    def get_config(self):
        return {**super().get_config(), "factor": self.factor}


keras.utils.set_random_seed(14)
model = keras.Sequential(
    [keras.layers.Input((8,)), Scale(0.5), keras.layers.Dense(16, "relu"), keras.layers.Dense(2, "softmax")]
)
model.compile("adam", "sparse_categorical_crossentropy")
inputs, targets = points(128)
model.fit(inputs, targets, epochs=2, verbose=0)
print(json.dumps(json.loads(model.to_json()), sort_keys=True))

model.save("model.keras")
model.export("exported", verbose=False)
kept = keras.models.load_model("model.keras")
served = tf.saved_model.load("exported")
fresh = keras.models.clone_model(model)
fresh.set_weights(model.get_weights())
truth = model.predict(inputs, verbose=0)
show("scores", truth)
for scores in (kept.predict(inputs, verbose=0), fresh(inputs), served.serve(inputs)):
    print(
        "same", np.array_equal(np.asarray(scores), truth) or np.abs(np.asarray(scores) - truth).max() < 1e-6
    )
print(sorted(served.signatures), served.signatures["serving_default"].structured_outputs)
for start in range(0, 128, 32):
    show("serve", served.serve(inputs[start : start + 32]))
