"""A model of its own class, with residual blocks and batch normalisation, trained batch by batch."""

import keras
from toys import images, show


class Block(keras.layers.Layer):
    """Two convolutions around a shortcut."""

    def __init__(self, filters, **kwargs):
        super().__init__(**kwargs)
        self.first = keras.layers.Conv2D(filters, 3, padding="same")
        self.second = keras.layers.Conv2D(filters, 3, padding="same")
        self.norm = keras.layers.BatchNormalization()

    def call(self, inputs, training=False):
        inner = keras.ops.relu(self.norm(self.first(inputs), training=training))
        return inputs + self.second(inner)


class ResidualNet(keras.Model):
    """A stem, some blocks and a head."""

    def __init__(self, blocks):
        super().__init__()
        self.stem = keras.layers.Conv2D(8, 3, strides=2)
        self.blocks = [Block(8) for _ in range(blocks)]
        self.head = keras.layers.Dense(4, activation="softmax")

    def call(self, inputs, training=False):
        hidden = self.stem(inputs)
        for block in self.blocks:
            hidden = block(hidden, training=training)
        return self.head(keras.ops.mean(hidden, axis=(1, 2)))


keras.utils.set_random_seed(4)
model = ResidualNet(2)
model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "sparse_categorical_crossentropy")
pictures, labels = images(160)
for start in range(0, 160, 16):
    show("batch", model.train_on_batch(pictures[start : start + 16], labels[start : start + 16]))
show("test", model.test_on_batch(*images(16, seed=1)))
show("scores", model.predict_on_batch(images(16, seed=1)[0]))
print([weight.path for weight in model.trainable_weights])
