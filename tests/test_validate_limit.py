"""A GPU at its power limit, where truths are not what they seem, and what waits say about it."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from joulemap.devices import Domain
from joulemap.recorder.experiment import PLAIN, WAITING
from joulemap.recording import Recording, RecordingInfo, RecordingWriter
from joulemap.traces import PowerTrace
from joulemap.validating.limit import Limit, is_reached, limit_of
from joulemap.validating.plan import WAIT, WAITING_PART, WAITS_A_ROUND, Turns, Wanted, times
from joulemap.validating.referee import Referee
from joulemap.validating.target import Target
from joulemap.validating.truth import Stretch, Truth, plain, truths

GPU = Domain("GPU:0", "GPU:0")
S = 1_000_000_000
LIMIT_W, IDLE_W = 700.0, 120.0
FACTS = [
    (0, "GPU:0 power_limit_w", LIMIT_W),
    (0, "GPU:0 sm_clock_mhz", 1980.0),
    (S, "GPU:0 sm_clock_mhz", 1410.0),
]
PLAINLY = [Stretch(target=PLAIN, start_ns=0, end_ns=4 * S, steps=40, seen={}, extra=0)]
STEP = {0: (0.030, 30.0), 1: (0.010, 4.0), 2: (0.008, 5.0)}
"""Seconds and joules of three operations at the highest clocks: together 812 W."""


def clocked(parts: list[tuple[float, float]], clock: float) -> tuple[float, float]:
    """Seconds and joules of some operations at a part of the highest clocks."""
    return sum(one[0] for one in parts) * clock**-0.7, sum(one[1] for one in parts) * clock**0.9


def at_limit(parts: list[tuple[float, float]], wait_s: float = 0.0) -> tuple[float, float, float]:
    """Seconds, joules and clocks of a step, as a controller sets them that allows no more than the limit."""
    low, high = 0.3, 1.0
    for _ in range(60):
        clock = (low + high) / 2
        seconds, joules = clocked(parts, clock)
        draws_w = (joules + wait_s * IDLE_W) / (seconds + wait_s)
        low, high = (clock, high) if draws_w < LIMIT_W else (low, clock)
    return seconds + wait_s, joules + wait_s * IDLE_W, clock


def experiment(blocks: int = 4) -> tuple[list[Stretch], PowerTrace]:
    """Each operation twice instead of once, or a wait, in blocks of forty steps among plain ones."""
    step_s, _, _ = at_limit(list(STEP.values()))
    wait_s = WAITING_PART * step_s
    stretches, edges, joules, now_ns = [], [0], [], 0
    for target in [PLAIN] + [
        one for _ in range(blocks) for each in (0, 1, 2, WAITING) for one in (each, PLAIN)
    ]:
        again = [STEP[target]] if target in STEP else []
        waits_s = wait_s if target == WAITING else 0.0
        seconds, energy_j, _ = at_limit([*STEP.values(), *again], waits_s)
        end_ns = now_ns + round(40 * seconds * S)
        extra = 0 if target == PLAIN else 40
        stretches.append(Stretch(target, now_ns, end_ns, 40, dict.fromkeys(STEP, 40), extra, 40 * waits_s))
        edges += np.linspace(now_ns, end_ns, 21)[1:].astype(int).tolist()
        joules += [2 * energy_j] * 20
        now_ns = end_ns
    return stretches, PowerTrace(GPU, edges, joules)


def test_what_the_limit_does_to_truths_is_taken_off_by_what_waits_cost(tmp_path: Path) -> None:
    recording, (stretches, power) = recorded(tmp_path / "r.joulemap", FACTS), experiment()
    limit = limit_of(recording, power, stretches, IDLE_W)
    assert limit is not None
    assert limit.level_w == pytest.approx(LIMIT_W, rel=1e-3)
    assert limit.by_time == pytest.approx(0.9 / (0.9 + 0.7), abs=0.001)  # from the exponents of `clocked`
    _, _, clock = at_limit(list(STEP.values()))
    busy_s = {number: clocked([part], clock)[0] for number, part in STEP.items()}
    for number, found in truths(busy_s, stretches, power).items():
        true_j = clocked([STEP[number]], clock)[1]
        freed = limit.freed(found, busy_s[number])
        assert abs(found.energy_j / true_j - 1) > 0.05
        assert freed.energy_j == pytest.approx(true_j, rel=0.002)
        assert freed.energy_j + freed.limit_j == pytest.approx(found.energy_j)


def test_intervals_know_of_both_that_the_truth_varies_and_the_waits() -> None:
    limit = Limit("GPU:0", 700.0, 700.0, 7000.0, None, by_time=0.5, half=0.1)
    alike = limit.freed(Truth(7.0, 0.3, 1.0, 3), 0.01)
    assert (alike.energy_j, alike.half_j) == pytest.approx((7.0, 0.6), rel=0.01)
    other = limit.freed(Truth(14.0, 0.0, 2.0, 3), 0.02)
    assert other.energy_j == pytest.approx(21.0, rel=0.01)
    assert 0.1 * 7 / 0.25 < other.half_j < 0.1 * 7 / 0.25 / 0.75
    assert limit.freed(Truth(7.0, 0.3, 0.0, 3), 0.01).limit_j == 0.0


def test_without_waits_or_idle_power_truths_stay_and_it_is_said(tmp_path: Path) -> None:
    recording, (stretches, power) = recorded(tmp_path / "r.joulemap", FACTS), experiment()
    truth = Truth(7.0, 0.3, 1.0, 3)
    for some, idle_w in ((plain(stretches), IDLE_W), (stretches, 0.0)):
        limit = limit_of(recording, power, some, idle_w)
        assert limit is not None
        assert limit.freed(truth, 0.01) == truth
        (said,) = limit.remarks()
        assert said.startswith("GPU:0 drew 100 % of the 700 W that it may, at clocks of 1410 to 1980 MHz: ")
        assert "may come out too low" in said
    known = limit_of(recording, power, stretches, IDLE_W)
    assert known is not None
    assert known.remarks()[0].endswith("goes by its time there; that is taken off the truths.")


def test_a_gpu_below_its_limit_or_without_one_has_none(tmp_path: Path) -> None:
    limited, silent = recorded(tmp_path / "r.joulemap", FACTS), recorded(tmp_path / "s.joulemap", [])
    assert is_reached(limited, drawing(690.0), PLAINLY)
    assert not is_reached(limited, drawing(500.0), PLAINLY)
    assert not is_reached(limited, drawing(690.0), [])
    assert not is_reached(silent, drawing(690.0), PLAINLY)
    assert limit_of(limited, drawing(500.0), PLAINLY, IDLE_W) is None


def test_waits_are_ordered_only_at_the_limit_and_more_often_than_anything_else(tmp_path: Path) -> None:
    recorded(tmp_path / "r.joulemap", FACTS)
    referee = Referee(tmp_path / "r.joulemap", tmp_path, Wanted(), print)
    some = [Target(number, "operation", "mm", "mm", (), frozenset(), 0.1, 0.01) for number in range(5)]
    referee.targets, referee.stretches = some, PLAINLY
    assert referee._open(drawing(500.0)) == some
    every = referee._open(drawing(690.0))
    assert every == [*some, WAIT]
    turns = Turns(Wanted())
    assert turns.next(some, {}) in some
    rest = [turns.next(every, {}) for _ in range(4 + WAITS_A_ROUND)]
    assert (rest.count(WAIT), len({one.number for one in rest if one})) == (WAITS_A_ROUND, 5)
    assert [turns.next(every, {}) for _ in range(5 + WAITS_A_ROUND)].count(WAIT) == WAITS_A_ROUND
    assert times(WAIT, Wanted(times=7)) == 2
    referee.refused[WAITING] = "a CUDA graph"
    assert referee._open(drawing(690.0)) == some


def drawing(watts: float) -> PowerTrace:
    return PowerTrace(GPU, [number * S // 10 for number in range(50)], [watts / 10] * 49)


def recorded(path: Path, facts: list[tuple[int, str, float]]) -> Recording:
    with RecordingWriter.create(path, RecordingInfo()) as writer:
        if facts:
            columns = [list(column) for column in zip(*facts, strict=True)]
            writer.put_table("facts", pa.table(dict(zip(("t_ns", "name", "value"), columns, strict=True))))
    return Recording.open(path)
