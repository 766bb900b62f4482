"""MirroredStrategy over two virtual CPUs: Keras' fit, and a loop of one's own with strategy.run."""

import keras
import tensorflow as tf
from toys import points, show

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
keras.utils.set_random_seed(13)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
print("replicas", strategy.num_replicas_in_sync)
inputs, targets = points(256)
with strategy.scope():
    model = keras.Sequential(
        [keras.layers.Input((8,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(1, "sigmoid")]
    )
    model.compile("adam", "binary_crossentropy")
history = model.fit(inputs, targets, batch_size=32, epochs=3, verbose=0)
show("loss", *history.history["loss"])

with strategy.scope():
    weights = tf.Variable(tf.zeros((8,)), aggregation=tf.VariableAggregation.MEAN)


def step(places, sides):
    """One replica's share of a step."""
    with tf.GradientTape() as tape:
        scores = tf.linalg.matvec(places, weights)
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(tf.cast(sides, tf.float32), scores))
    weights.assign_sub(0.5 * tape.gradient(loss, weights))
    return loss


@tf.function
def distributed(batch):
    """The same step on both devices, and the mean of their losses."""
    return strategy.reduce("MEAN", strategy.run(step, args=batch), axis=None)


batches = tf.data.Dataset.from_tensor_slices((inputs, targets)).batch(64)
for batch in strategy.experimental_distribute_dataset(batches):
    show("own loop", distributed(batch))
show("weights", weights)
