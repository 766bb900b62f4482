"""Data for the programs beside it: pictures, sentences and series, made up from a seed. Nothing is read."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

GOOD = "bright calm clever fair fine gentle glad happy kind lovely merry neat warm wise witty"
BAD = "bitter bleak cold cruel dark dull grim harsh lonely poor rough sad sour stale ugly"
PLAIN = "a the and of in house street dog cat walk table word song door hand tree day road river year"


def pictures(count: int, side: int, seed: int) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Grey pictures of a disc, a square, a cross or a ring, anywhere and of any size, under noise."""
    random = np.random.default_rng(seed)
    label = random.integers(0, 4, count)
    across, down = (random.uniform(0.3, 0.7, (count, 1, 1)) for _ in range(2))
    size = random.uniform(0.12, 0.28, (count, 1, 1))
    place = (np.arange(side) + 0.5) / side
    x, y = np.abs(place[None, None, :] - across), np.abs(place[None, :, None] - down)
    far = np.sqrt(x**2 + y**2)
    shapes = [far < size, np.maximum(x, y) < size, np.minimum(x, y) < size / 3, np.abs(far - size) < 0.05]
    drawn = np.select([label[:, None, None] == number for number in range(4)], shapes)
    noisy = drawn + random.normal(0, 0.2, drawn.shape)
    return noisy[..., None].astype(np.float32), label.astype(np.int32)


def sentences(count: int, words: int, seed: int) -> tuple[list[str], NDArray[np.int32]]:
    """Sentences of plain words with a few that say whether all is well."""
    random = np.random.default_rng(seed)
    label = random.integers(0, 2, count)
    moods = (np.array(BAD.split()), np.array(GOOD.split()))
    text = random.choice(np.array(PLAIN.split()), (count, words))
    for column in random.choice(words, 3, replace=False):
        text[:, column] = np.where(label == 1, random.choice(moods[1], count), random.choice(moods[0], count))
    return [" ".join(row) for row in text], label.astype(np.int32)


def series(count: int, length: int, seed: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Waves of two frequencies, and the value that comes next."""
    random = np.random.default_rng(seed)
    t = np.arange(length + 1) / 10
    slow, fast = random.uniform(0.2, 1.0, (count, 1)), random.uniform(1.0, 3.0, (count, 1))
    start = random.uniform(0, 6, (count, 1))
    wave = np.sin(slow * t + start) + 0.3 * np.sin(fast * t)
    return wave[:, :-1, None].astype(np.float32), wave[:, -1].astype(np.float32)
