"""Processes beside training, started afresh: a pool prepares batches while the model learns."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import numpy as np
from toys import points, show


def prepare(seed):
    """One batch, made in another process."""
    inputs, targets = points(64, seed=seed)
    return inputs / np.abs(inputs).max(), targets


def main():
    import keras

    keras.utils.set_random_seed(20)
    model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(1, "sigmoid")])
    model.compile("adam", "binary_crossentropy")
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        for inputs, targets in pool.map(prepare, range(6)):
            show("batch", model.train_on_batch(inputs, targets))


if __name__ == "__main__":
    main()
