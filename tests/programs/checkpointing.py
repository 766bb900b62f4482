"""Checkpoints: the best weights, a backup, a CSV log, a CheckpointManager, and a fresh start from them."""

import keras
import tensorflow as tf
from toys import points, show


def make():
    """The same model with the same first weights."""
    keras.utils.set_random_seed(11)
    model = keras.Sequential(
        [keras.layers.Input((8,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(1, "sigmoid")]
    )
    model.compile("adam", "binary_crossentropy")
    return model


inputs, targets = points(256)
model = make()
model.fit(
    inputs,
    targets,
    epochs=4,
    validation_split=0.25,
    verbose=0,
    callbacks=[
        keras.callbacks.ModelCheckpoint("best.weights.h5", save_best_only=True, save_weights_only=True),
        keras.callbacks.BackupAndRestore("backup", delete_checkpoint=False),
        keras.callbacks.CSVLogger("log.csv"),
    ],
)
manager = tf.train.CheckpointManager(tf.train.Checkpoint(model=model), "manager", max_to_keep=2)
for _ in range(3):
    manager.save()
again = make()
again.load_weights("best.weights.h5")
show("best", again.evaluate(inputs, targets, verbose=0))
tf.train.Checkpoint(model=again).restore(manager.latest_checkpoint).expect_partial()
show("last", again.evaluate(inputs, targets, verbose=0), model.evaluate(inputs, targets, verbose=0))
print(manager.checkpoints)
