"""Callbacks that steer: early stopping, a falling learning rate, a callback that counts, a progress bar."""

import re
import sys

import keras
from toys import points, show


class Counter(keras.callbacks.Callback):
    """Counts every border that Keras announces."""

    def __init__(self):
        super().__init__()
        self.seen = dict.fromkeys(("epochs", "batches", "tests"), 0)

    def on_epoch_end(self, epoch, logs=None):
        self.seen["epochs"] += 1
        show(f"epoch {epoch}", *(logs or {}).values())

    def on_train_batch_end(self, batch, logs=None):
        self.seen["batches"] += 1

    def on_test_batch_end(self, batch, logs=None):
        self.seen["tests"] += 1


class WithoutTimes:
    """Standard output less the milliseconds of the progress bar, which differ from run to run."""

    def __init__(self, stream):
        self.stream = stream

    def write(self, text):
        return self.stream.write(re.sub(r"\d+(ms|us|s)(?=[ /\x1b])", "T", text))

    def flush(self):
        self.stream.flush()


keras.utils.set_random_seed(12)
model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(1, "sigmoid")])
model.compile(keras.optimizers.SGD(1.0), "binary_crossentropy")
counter = Counter()
inputs, targets = points(128)
sys.stdout = WithoutTimes(sys.stdout)
model.fit(
    inputs,
    targets,
    epochs=20,
    validation_split=0.25,
    verbose=2,
    callbacks=[
        keras.callbacks.EarlyStopping(patience=2, restore_best_weights=True, verbose=1),
        keras.callbacks.ReduceLROnPlateau(patience=1, factor=0.5, verbose=1),
        counter,
    ],
)
print(counter.seen)
