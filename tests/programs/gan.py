"""Two networks against each other: two optimizers, two tapes, one tf.function, random numbers."""

import keras
import tensorflow as tf
from toys import images, show

keras.utils.set_random_seed(18)
generator = keras.Sequential(
    [
        keras.layers.Input((8,)),
        keras.layers.Dense(36 * 4, "relu"),
        keras.layers.Reshape((6, 6, 4)),
        keras.layers.Conv2DTranspose(1, 3, strides=2, padding="same"),
    ],
    name="generator",
)
judge = keras.Sequential(
    [
        keras.layers.Input((12, 12, 1)),
        keras.layers.Conv2D(8, 3, strides=2),
        keras.layers.LeakyReLU(),
        keras.layers.Flatten(),
        keras.layers.Dense(1),
    ],
    name="judge",
)
making, judging = keras.optimizers.Adam(1e-3), keras.optimizers.Adam(1e-3)
error = keras.losses.BinaryCrossentropy(from_logits=True)
noise = tf.random.Generator.from_seed(1)


@tf.function
def duel(real):
    """One step for each side."""
    with tf.GradientTape() as for_maker, tf.GradientTape() as for_judge:
        fake = generator(noise.normal((32, 8)), training=True)
        says_real, says_fake = judge(real, training=True), judge(fake, training=True)
        maker_loss = error(tf.ones_like(says_fake), says_fake)
        judge_loss = error(tf.ones_like(says_real), says_real) + error(tf.zeros_like(says_fake), says_fake)
    making.apply(for_maker.gradient(maker_loss, generator.trainable_variables), generator.trainable_variables)
    judging.apply(for_judge.gradient(judge_loss, judge.trainable_variables), judge.trainable_variables)
    return maker_loss, judge_loss


for pictures in tf.data.Dataset.from_tensor_slices(images(192)[0]).batch(32).repeat(3):
    losses = duel(pictures)
show("losses", *losses)
show("picture", generator(tf.ones((1, 8))))
