"""The Keras of before: tf_keras, a subclassed model, fit and a hand-written loop."""

import tensorflow as tf
import tf_keras as keras
from toys import points, show

keras.utils.set_random_seed(16)


class Classifier(keras.Model):
    """Two dense layers, one of them used twice."""

    def __init__(self):
        super().__init__(name="classifier")
        self.first = keras.layers.Dense(16, activation="relu", name="first")
        self.again = keras.layers.Dense(16, activation="relu", name="again")
        self.last = keras.layers.Dense(1, name="last")

    def call(self, inputs):
        return self.last(self.again(self.again(self.first(inputs))))


inputs, targets = points(256)
model = Classifier()
model.compile("adam", keras.losses.BinaryCrossentropy(from_logits=True), metrics=["accuracy"])
history = model.fit(inputs, targets, batch_size=32, epochs=3, verbose=0)
show("loss", *history.history["loss"])
show("test", *model.evaluate(inputs[:64], targets[:64], verbose=0))

optimizer = keras.optimizers.SGD(0.1)


@tf.function
def step(places, sides):
    """One step by hand."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(
            keras.losses.binary_crossentropy(sides[:, None], model(places), from_logits=True)
        )
    variables = model.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
    return loss


for start in range(0, 256, 64):
    show("step", step(inputs[start : start + 64], targets[start : start + 64]))
model.save_weights("weights/model")
