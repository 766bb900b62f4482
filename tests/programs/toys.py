"""Small made-up data for the programs, and exact printing: two runs can be compared to the last bit."""

from __future__ import annotations

import hashlib

import numpy as np


def show(name: str, *values: object) -> None:
    """Prints every number of the values exactly: floats in hexadecimal, large arrays as a digest."""
    print(name, *(_exact(np.asarray(value)) for value in values))


def _exact(value: np.ndarray) -> str:
    if value.size > 8:
        return hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()[:16]
    numbers = value.reshape(-1).tolist()
    return ",".join(number.hex() if isinstance(number, float) else str(number) for number in numbers)


def images(count: int, classes: int = 4, side: int = 12, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Noisy pictures, each with a bright bar where its class says."""
    random = np.random.default_rng(seed)
    labels = random.integers(classes, size=count)
    pictures = random.normal(0, 0.3, (count, side, side, 1)).astype("float32")
    for picture, label in zip(pictures, labels, strict=True):
        picture[label * side // classes] += 1
    return pictures, labels.astype("int32")


def points(count: int, features: int = 8, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Points on two sides of a curved border."""
    random = np.random.default_rng(seed)
    places = random.normal(size=(count, features)).astype("float32")
    return places, (places[:, 0] * places[:, 1] + places[:, 2] > 0).astype("int32")


def sequences(
    count: int, length: int = 12, symbols: int = 10, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Symbols that count up by a step of their own; the next one is asked for."""
    random = np.random.default_rng(seed)
    starts, steps = random.integers(symbols, size=(2, count, 1))
    whole = (starts + steps * np.arange(length + 1)) % symbols
    return whole[:, :-1].astype("int32"), whole[:, -1].astype("int32")
