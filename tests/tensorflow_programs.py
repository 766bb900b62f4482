"""Small real TensorFlow programs, run under the live adapter so that they leave raw folders behind.

``python -m tests.tensorflow_programs FOLDER PROGRAM…``: one process, since TensorFlow is slow to import.
"""

import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

LAYERS, HIDDEN, HEADS, SEQUENCE, BATCH, WORDS = 2, 64, 2, 32, 8, 200


class NoListener:
    def begin(self, label):
        pass

    def end(self, done=False):
        pass

    def compiled(self):
        pass


def main(folder, programs):
    import keras
    import tensorflow  # noqa: F401

    from joulemap.frameworks.tensorflow.adapter import TensorFlowAdapter

    for program in programs:
        adapter = TensorFlowAdapter(folder / program)
        adapter.attach("tensorflow", NoListener())
        adapter.attach("keras", NoListener())
        keras.utils.set_random_seed(1)
        warm_up, traced = PROGRAMS[program]()
        warm_up()
        adapter.start(folder / program / "0")
        traced()
        adapter.stop()
        adapter.detach()
        assert not adapter.problems, adapter.problems


def bert():
    """A BERT in small: subclassed layers in layers, with names as in the paper."""
    import keras
    import tensorflow as tf

    layers = keras.layers

    class Self(layers.Layer):
        def __init__(self, **options):
            super().__init__(**options)
            self.query = layers.Dense(HIDDEN, name="query")
            self.key = layers.Dense(HIDDEN, name="key")
            self.value = layers.Dense(HIDDEN, name="value")

        def call(self, x):
            def heads(t):
                return tf.transpose(tf.reshape(t, (-1, SEQUENCE, HEADS, HIDDEN // HEADS)), (0, 2, 1, 3))

            query, key, value = heads(self.query(x)), heads(self.key(x)), heads(self.value(x))
            scores = tf.nn.softmax(tf.matmul(query, key, transpose_b=True))
            return tf.reshape(tf.transpose(tf.matmul(scores, value), (0, 2, 1, 3)), (-1, SEQUENCE, HIDDEN))

    class Block(layers.Layer):
        def __init__(self, **options):
            super().__init__(**options)
            self.attention = Self(name="attention")
            self.norm = layers.LayerNormalization(name="norm")
            self.intermediate = layers.Dense(4 * HIDDEN, activation="gelu", name="intermediate")
            self.outer = layers.Dense(HIDDEN, name="output")

        def call(self, x):
            return self.norm(x + self.outer(self.intermediate(x + self.attention(x))))

    class Bert(keras.Model):
        def __init__(self, **options):
            super().__init__(**options)
            self.embeddings = layers.Embedding(WORDS, HIDDEN, name="embeddings")
            self.blocks = [Block(name=f"layer_{i}") for i in range(LAYERS)]
            self.predictions = layers.Dense(WORDS, name="predictions")

        def call(self, x):
            x = self.embeddings(x)
            for block in self.blocks:
                x = block(x)
            return self.predictions(x)

    return Bert(name="bert")


def words(steps):
    import numpy as np

    return np.random.default_rng(1).integers(0, WORDS, (BATCH * steps, SEQUENCE))


def loss():
    import keras

    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def fit(**options):
    import tensorflow as tf

    model = bert()
    model.compile("adam", loss(), metrics=["accuracy"], **options)
    data = tf.data.Dataset.from_tensor_slices((words(6), words(6)))
    data = data.map(lambda x, y: (x, y + tf.cast(tf.linalg.trace(tf.ones((300, 300))), tf.int64) * 0))
    data = data.batch(BATCH).prefetch(2)
    return (lambda: model.fit(data.take(3), verbose=0)), lambda: model.fit(data, verbose=0)


def xla():
    return fit(jit_compile=True)


def train_step():
    import keras
    import tensorflow as tf

    model, optimizer, measure = bert(), keras.optimizers.SGD(momentum=0.9, name="descent"), loss()
    x = tf.constant(words(1))

    def step(x, y):
        with tf.GradientTape() as tape:
            value = measure(y, model(x))
        gradients = tape.gradient(value, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return value

    return step, x


def function():
    import tensorflow as tf

    step, x = train_step()
    step = tf.function(step)
    return (lambda: step(x, x)), lambda: [step(x, x) for _ in range(2)]


def eager():
    step, x = train_step()
    return (lambda: step(x, x)), lambda: step(x, x)


def loops():
    import keras

    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Embedding(WORDS, HIDDEN, name="embeddings"),
            layers.LSTM(8 * HIDDEN, name="lstm"),  # TensorFlow says nothing of what it takes for cheap
            layers.Dense(2, name="out"),
        ],
        name="rnn",
    )
    model.compile("rmsprop", loss())
    x, y = words(4), words(4)[:, 0] % 2

    def train():
        model.fit(x, y, batch_size=BATCH, verbose=0)

    return train, train


def recompute():
    import keras
    import numpy as np
    import tensorflow as tf

    layers = keras.layers

    class Block(layers.Layer):
        def __init__(self, **options):
            super().__init__(**options)
            self.first = layers.Dense(64, activation="gelu", name="first")
            self.second = layers.Dense(64, name="second")

        def build(self, shape):
            self.first.build(shape)
            self.second.build(shape)

        def call(self, x):
            return x + tf.recompute_grad(lambda t: self.second(self.first(t)))(x)

    model = keras.Sequential([Block(name="one"), Block(name="two"), layers.Dense(1, name="head")], name="net")
    model.compile("adam", "mse")
    x = np.ones((32, 64), "float32")

    def train():
        model.fit(x, x[:, :1], batch_size=8, verbose=0)

    return train, train


def plain():
    """No layers, no scopes, no optimizer: what runs twice and updates by hand are all that there is."""
    import tensorflow as tf

    kernels = [tf.Variable(tf.random.normal((64, 64), stddev=0.1)) for _ in range(4)]

    def block(first, second):
        return tf.recompute_grad(lambda x: tf.nn.relu(tf.matmul(tf.nn.relu(tf.matmul(x, first)), second)))

    one, two = block(*kernels[:2]), block(*kernels[2:])

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            scores = tf.reduce_sum(two(one(x)), -1)
            value = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(tf.ones_like(scores), scores))
        for kernel, gradient in zip(kernels, tape.gradient(value, kernels), strict=True):
            kernel.assign_sub(0.1 * gradient)
        return value

    x = tf.ones((32, 64))
    return (lambda: step(x)), lambda: [step(x) for _ in range(3)]


def session():
    import numpy as np
    import tensorflow as tf

    v1 = tf.compat.v1
    with tf.Graph().as_default():
        x = v1.placeholder(tf.float32, (8, 64))
        y = x
        for i in range(3):
            with v1.variable_scope(f"layer_{i}"):
                kernel = v1.get_variable("kernel", (64, 64))
                y = tf.nn.relu(tf.matmul(y, kernel))
        with tf.name_scope("loss"):
            value = tf.reduce_mean(y**2)
        train = v1.train.AdamOptimizer().minimize(value)
        run = v1.Session()
        run.run(v1.global_variables_initializer())
    feed = {x: np.ones((8, 64))}
    return (lambda: run.run(train, feed)), lambda: [run.run(train, feed) for _ in range(3)]


PROGRAMS = {each.__name__: each for each in (fit, xla, function, eager, loops, recompute, plain, session)}

if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
