"""A loop of one's own around a tf.function, with tf.Module, plain variables and control flow in the graph."""

import tensorflow as tf
from toys import points, show


class Perceptron(tf.Module):
    """Two dense layers, by hand."""

    def __init__(self, features, hidden):
        super().__init__(name="perceptron")
        random = tf.random.Generator.from_seed(8)
        self.first = tf.Variable(random.normal((features, hidden), stddev=0.3), name="first")
        self.second = tf.Variable(random.normal((hidden, 1), stddev=0.3), name="second")

    @tf.Module.with_name_scope
    def __call__(self, inputs):
        return tf.squeeze(tf.nn.relu(inputs @ self.first) @ self.second, -1)


@tf.function
def train(model, inputs, targets, rate):
    """One step, made smaller until it is small enough."""
    with tf.GradientTape() as tape:
        losses = tf.nn.sigmoid_cross_entropy_with_logits(targets, model(inputs))
        loss = tf.reduce_mean(losses)
    gradients = tape.gradient(loss, model.trainable_variables)
    norm = tf.linalg.global_norm(gradients)
    while norm > 0.5:
        norm, rate = norm / 2, rate / 2
    for variable, gradient in zip(model.trainable_variables, gradients, strict=True):
        variable.assign_sub(rate * gradient)
    return loss


model = Perceptron(8, 16)
inputs, targets = points(512)
batches = tf.data.Dataset.from_tensor_slices((inputs, targets.astype("float32"))).batch(64)
for epoch in range(6):
    for batch_inputs, batch_targets in batches:
        loss = train(model, batch_inputs, batch_targets, tf.constant(0.5))
    show(f"epoch {epoch} loss", loss)
print("traced", train.experimental_get_tracing_count(), train.function_spec.fullargspec.args)
show("weights", model.first, model.second)
