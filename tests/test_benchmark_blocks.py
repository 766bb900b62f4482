"""What recording costs, as ``benchmarks/blocks.py`` finds it: in a world whose truth is known."""

import importlib
import sys

import numpy as np
import pytest
from numpy.typing import NDArray

from .recordings import REPOSITORY

HOOKS, SESSION_S = 0.003, 0.33
GROUPS, TRACED = 300, (5, 150)


@pytest.fixture
def blocks(monkeypatch):
    monkeypatch.syspath_prepend(str(REPOSITORY / "benchmarks"))
    yield importlib.import_module("blocks")
    sys.modules.pop("blocks", None)


def world(seed: int) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], float]:
    """Groups of four blocks on a host that gets slower and faster, and is held up now and then: what they
    took, which were recorded, in which groups there was a session, and what recording cost in percent."""
    random = np.random.default_rng(seed)
    speed = np.zeros(4 * GROUPS)
    for number in range(1, len(speed)):
        speed[number] = 0.8 * speed[number - 1] + random.normal(0, 0.04)
    held_up = (random.random(len(speed)) < 0.05) * random.exponential(0.3, len(speed))
    took_s = (0.25 * (1.2 + np.abs(speed) + held_up)).reshape(-1, 4)
    first = random.random(GROUPS) < 0.5
    recorded = np.stack([first, ~first, ~first, first], axis=1)
    plain_s = took_s[~recorded].sum()
    took_s = np.where(recorded, (1 + HOOKS) * took_s, took_s)
    traced = np.isin(np.arange(GROUPS), TRACED)
    for group in TRACED:
        took_s[group, np.flatnonzero(recorded[group])[0]] += SESSION_S
    return took_s, recorded, traced, 100 * (HOOKS + len(TRACED) * SESSION_S / plain_s)


def test_what_recording_costs_is_found_however_the_host_is_held_up(blocks) -> None:
    mean, typical, held = [], [], []
    for seed in range(20):
        *seen, true_percent = world(seed)
        whole, middle = blocks._cost(*seen, 1.0), blocks._typical_cost(*seen, 1.0)
        mean.append(whole.percent - true_percent)
        typical.append(middle.percent - true_percent)
        held.append((whole.low <= true_percent <= whole.high, middle.low <= true_percent <= middle.high))
    assert abs(np.mean(typical)) < 0.15
    assert np.std(typical) < 0.7 * np.std(mean)
    assert np.mean(held, axis=0).min() >= 0.8
