"""Reads standard input, prints much to both streams, in text and in bytes, and keeps a log file."""

import logging
import os
import sys
import warnings

import keras
from toys import points, show

logging.basicConfig(filename="log.txt", level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
keras.utils.set_random_seed(24)
model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(1, "sigmoid")])
model.compile("sgd", "binary_crossentropy")
print("a terminal?", sys.stdin.isatty(), sys.stdout.isatty(), sys.stdout.encoding, sys.stdout.line_buffering)
for line in sys.stdin:
    seed = int(line)
    logging.info("seed %d", seed)
    show(f"seed {seed}", model.train_on_batch(*points(32, seed=seed)))
    print(f"seed {seed} done", file=sys.stderr)
for number in range(20_000):
    print(number, "ä€😀", "x" * (number % 50))
sys.stdout.flush()
os.write(1, b"\x00\xff raw bytes\n")
warnings.warn("the program's own warning", stacklevel=1)
