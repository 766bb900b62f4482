"""Everything eager: no tf.function anywhere, not even in Keras."""

import keras
import tensorflow as tf
from toys import points, show

keras.utils.set_random_seed(9)
model = keras.Sequential(
    [keras.layers.Dense(16, activation="tanh", name="inner"), keras.layers.Dense(1, name="outer")]
)
optimizer = keras.optimizers.Adam(0.02)
inputs, targets = points(128)
for step in range(12):
    with tf.GradientTape(persistent=True) as tape:
        scores = tf.squeeze(model(inputs, training=True), -1)
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(targets.astype("float32"), scores))
        penalty = sum(tf.reduce_sum(tf.square(weight)) for weight in model.trainable_weights)
        total = loss + 1e-3 * penalty
    gradients = tape.gradient(total, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    if step % 4 == 3:
        show(f"step {step}", loss, penalty, tape.gradient(loss, model.trainable_variables)[0])
model.compile("sgd", "mse", run_eagerly=True)
show("fit", *model.fit(inputs, targets, epochs=1, verbose=0).history["loss"])
