"""A ``tf.data`` pipeline: pictures into a record file, out again, changed by chance, and into a model.

python data_pipeline.py                about half a minute on two cores
joulemap run --calls tensorflow data_pipeline.py
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import tensorflow as tf
from made_up import pictures

options = argparse.ArgumentParser(description=__doc__)
options.add_argument("--samples", type=int, default=3000)
options.add_argument("--epochs", type=int, default=18)
options.add_argument("--side", type=int, default=40)
given = options.parse_args()
FEATURES = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}


def write(path: Path, samples: int, side: int) -> None:
    """Pictures as a file of records."""
    images, labels = pictures(samples, side, seed=1)
    pieces = tf.data.Dataset.from_tensor_slices((images, labels)).map(to_record)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in pieces.as_numpy_iterator():
            writer.write(record)


def to_record(image: tf.Tensor, label: tf.Tensor) -> tf.Tensor:
    """One picture as one string."""
    return tf.py_function(_example, [tf.io.serialize_tensor(image), label], tf.string)


def _example(image: tf.Tensor, label: tf.Tensor) -> bytes:
    feature = {
        "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image.numpy()])),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[int(label)])),
    }
    return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()


def read(path: Path, samples: int, side: int) -> tf.data.Dataset:
    """Batches of the pictures, shuffled, and every one of them changed a little."""

    def parse(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        found = tf.io.parse_single_example(record, FEATURES)
        image = tf.ensure_shape(tf.io.parse_tensor(found["image"], tf.float32), (side, side, 1))
        return image, tf.cast(found["label"], tf.int32)

    def change(image: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        image = tf.image.random_brightness(tf.image.random_flip_left_right(image, seed=1), 0.1, seed=2)
        return tf.image.resize(tf.image.resize(image, (2 * side, 2 * side)), (side, side)), label

    records = tf.data.TFRecordDataset(str(path)).map(parse, num_parallel_calls=2).cache()
    records = records.apply(tf.data.experimental.assert_cardinality(samples))
    return records.shuffle(500, seed=0).map(change, num_parallel_calls=2).batch(64).prefetch(2)


tf.keras.utils.set_random_seed(0)
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "pictures.tfrecord"
    write(path, given.samples, given.side)
    dataset = read(path, given.samples, given.side)
    brightness = dataset.reduce(0.0, lambda total, batch: total + tf.reduce_sum(batch[0]))
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Conv2D(32, 3, activation="relu"),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Conv2D(64, 3, activation="relu"),
            tf.keras.layers.GlobalAveragePooling2D(),
            tf.keras.layers.Dense(4),
        ]
    )
    model.compile(optimizer="adam", loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    history = model.fit(dataset, epochs=given.epochs, shuffle=False, verbose=0)
    print(f"brightness {float(brightness) / given.samples:.1f}, loss {history.history['loss'][-1]:.3f}")
