"""A model with its own train_step: an autoencoder with noise, gradients clipped by hand, own metrics."""

import keras
import tensorflow as tf
from toys import images, show


class Denoiser(keras.Model):
    """Learns to remove the noise that its own train_step adds."""

    def __init__(self):
        super().__init__()
        self.noise = keras.layers.GaussianNoise(0.5, seed=1)
        self.encode = keras.layers.Dense(24, activation="relu")
        self.decode = keras.layers.Dense(144)
        self.error = keras.metrics.Mean(name="error")

    @property
    def metrics(self):
        return [self.error]

    def call(self, pictures):
        return self.decode(self.encode(pictures))

    def train_step(self, pictures):
        noisy = self.noise(pictures, training=True)
        with tf.GradientTape() as tape:
            error = tf.reduce_mean(tf.square(self(noisy, training=True) - pictures))
        gradients = tape.gradient(error, self.trainable_variables)
        clipped, _ = tf.clip_by_global_norm(gradients, 1.0)
        self.optimizer.apply_gradients(zip(clipped, self.trainable_variables, strict=True))
        self.error.update_state(error)
        return {"error": self.error.result()}

    def test_step(self, pictures):
        self.error.update_state(tf.reduce_mean(tf.square(self(pictures) - pictures)))
        return {"error": self.error.result()}


keras.utils.set_random_seed(7)
pictures = images(192)[0].reshape(192, 144)
model = Denoiser()
model.compile(keras.optimizers.Adam(0.003))
history = model.fit(pictures, batch_size=32, epochs=3, validation_data=(pictures[:32],), verbose=0)
show("error", *history.history["error"])
show("val_error", *history.history["val_error"])
