"""TensorFlow 1: a graph, a plain session, then a monitored one with hooks, checkpoints and a saver."""

import tensorflow as tf
from toys import points, show

v1 = tf.compat.v1
v1.disable_eager_execution()
inputs, targets = points(256)

with tf.Graph().as_default():
    v1.set_random_seed(17)
    places = v1.placeholder(tf.float32, (None, 8), name="places")
    sides = v1.placeholder(tf.float32, (None,), name="sides")
    with v1.variable_scope("hidden"):
        kernel = v1.get_variable("kernel", (8, 16), initializer=v1.glorot_uniform_initializer(seed=1))
        hidden = tf.nn.relu(tf.matmul(places, kernel))
    with v1.variable_scope("output"):
        scores = tf.squeeze(tf.matmul(hidden, v1.get_variable("kernel", (16, 1))), -1)
    with tf.name_scope("loss"):
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=sides, logits=scores))
    step = v1.train.get_or_create_global_step()
    train = v1.train.AdamOptimizer(0.01).minimize(loss, global_step=step)
    with tf.control_dependencies([train]):
        trained = step.read_value()  # fetched beside it, the count would be that before or after by chance
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        for _ in range(10):
            _, now = session.run([train, loss], {places: inputs, sides: targets})
        show("plain session", now)
        feed = session.make_callable([loss, scores], [places, sides])
        show("callable", *feed(inputs, targets))
    hooks = [v1.train.StopAtStepHook(num_steps=10), v1.train.NanTensorHook(loss)]
    # Its counter of steps reads the global step while the optimizer writes it, and warns by chance: off.
    options = {"checkpoint_dir": "checkpoints", "hooks": hooks, "log_step_count_steps": None}
    with v1.train.MonitoredTrainingSession(**options) as session:
        while not session.should_stop():
            _, now, count = session.run([train, loss, trained], {places: inputs, sides: targets})
    show("monitored session", now, count)
