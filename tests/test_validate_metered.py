"""A GPU at its power limit, whose clocks change with whatever is added, and one that rests at borders."""

import json
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from joulemap.calibration.clocks import DOUBT
from joulemap.devices import Domain
from joulemap.errors import InputError
from joulemap.recorder.experiment import ORDERS, PLAIN, TARGETS, WAITING
from joulemap.recording import Recording, RecordingInfo, RecordingWriter
from joulemap.traces import EventTrace, PowerTrace
from joulemap.validating.limit import remarks
from joulemap.validating.metered import Clocks, Metered
from joulemap.validating.plan import WAIT, WAITING_PARTS, Wanted
from joulemap.validating.referee import Referee
from joulemap.validating.stretch import Stretch, clocked, plain
from joulemap.validating.target import Target
from joulemap.validating.truth import truths

GPU = Domain("GPU:0", "GPU:0")
S = 1_000_000_000
LIMIT_W, IDLE_W, WAITING_W, HIGHEST_MHZ = 700.0, 120.0, 250.0, 1980.0
FACTS = [(0, "GPU:0 power_limit_w", LIMIT_W)]
STEP = {0: (0.030, 30.0), 1: (0.010, 4.0), 2: (0.008, 5.0)}
"""Seconds and joules of three operations at the highest clocks: together 812 W."""
STEPS = 40


def at_clock(parts: list[tuple[float, float]], clock: float) -> tuple[float, float]:
    """Seconds and joules of some operations at a part of the highest clocks."""
    return sum(one[0] for one in parts) * clock**-0.7, sum(one[1] for one in parts) * clock**0.9


def at_limit(parts: list[tuple[float, float]], wait_s: float = 0.0) -> float:
    """The part of the highest clocks at which the limit is just kept."""
    low, high = 0.3, 1.0
    for _ in range(60):
        clock = (low + high) / 2
        seconds, joules = at_clock(parts, clock)
        draws_w = (joules + wait_s * WAITING_W) / (seconds + wait_s)
        low, high = (clock, high) if draws_w < LIMIT_W else (low, clock)
    return clock


def experiment(blocks: int = 4) -> tuple[list[Stretch], PowerTrace]:
    """Each operation twice instead of once, or a wait, in blocks among plain steps. In waits more is drawn
    than at rest."""
    stretches, edges, joules, now_ns = [], [0], [], 0
    random = np.random.default_rng(0)
    waits_s = cycle((0.005, 0.012, 0.024))
    for target in [
        PLAIN,
        *(one for _ in range(blocks) for each in (*STEP, WAITING) for one in (each, PLAIN)),
    ]:
        parts = [*STEP.values(), *([STEP[target]] if target in STEP else [])]
        wait_s = next(waits_s) if target == WAITING else 0.0
        clock = at_limit(parts, wait_s)
        seconds, energy_j = at_clock(parts, clock)
        seconds, energy_j = seconds + wait_s, energy_j * random.normal(1, 0.001) + wait_s * WAITING_W
        end_ns = now_ns + round(STEPS * seconds * S)
        extra, mhz = STEPS if target in STEP else 0, clock * HIGHEST_MHZ
        seen, waited_s = dict.fromkeys(STEP, STEPS), STEPS * wait_s
        stretches.append(
            Stretch(target, now_ns, end_ns, STEPS, seen, extra, waited_s=waited_s, clock_mhz=mhz)
        )
        edges += np.linspace(now_ns, end_ns, 21)[1:].astype(int).tolist()
        joules += [STEPS * energy_j / 20] * 20
        now_ns = end_ns
    return stretches, PowerTrace(GPU, edges, joules)


def test_truths_are_told_at_the_clocks_of_plain_steps() -> None:
    stretches, power = experiment()
    assert Metered.of(power, stretches).clocks is None
    metered = Metered.of(power, stretches, by_clocks=True)
    assert metered.clocks is not None
    assert metered.clocks.power == pytest.approx(0.9, abs=metered.clocks.half + 0.02)
    assert metered.clocks.half < 0.15
    assert metered.clocks.waiting_w == pytest.approx(WAITING_W, rel=0.1)
    clock = metered.clocks.usual_mhz / HIGHEST_MHZ
    assert clock == pytest.approx(at_limit(list(STEP.values())))
    blind, told = (truths(dict.fromkeys(STEP, 0.0), stretches, one) for one in (Metered(power), metered))
    for number, part in STEP.items():
        true_j = at_clock([part], clock)[1]
        assert abs(told[number].energy_j - true_j) <= 2 * told[number].half_j
        assert told[number].energy_j == pytest.approx(true_j, rel=0.03)
        assert abs(blind[number].energy_j / true_j - 1) > (0.01 if number == 2 else 0.07)


def test_clocks_that_hardly_vary_or_that_few_steps_have_seen_change_nothing() -> None:
    many, same = np.linspace(1800.0, 1900.0, 20), np.full(20, 1980.0)
    waits = np.tile([0.0, 0.0, 0.1, 0.2], 5)
    energy_j = many**0.5 + 100 * waits
    usual_mhz = float(np.median(many[waits == 0]))
    nothing = pytest.approx(0.0, abs=1e-9)
    assert Clocks.of(energy_j, many, waits) == Clocks(
        usual_mhz, pytest.approx(0.5), nothing, pytest.approx(100)
    )
    assert Clocks.of(same, same, waits) is None
    assert Clocks.of(many[:5], many[:5], waits[:5]) is None
    with_one_slow = np.append(energy_j, 900.0), np.append(many, 1810.0), np.append(waits, 0.0)
    found = Clocks.of(*with_one_slow)
    assert found is not None
    assert found.power == pytest.approx(0.5, abs=0.01)


def test_where_waits_do_not_change_clocks_calibration_says_what_these_do() -> None:
    stretches, power = experiment()
    usual_mhz = at_limit(list(STEP.values())) * HIGHEST_MHZ
    silent = [
        replace(one, clock_mhz=usual_mhz) if one.target in (PLAIN, WAITING) else one for one in stretches
    ]
    assert Metered.of(power, silent, by_clocks=True).clocks is None
    told = Metered.of(power, silent, by_clocks=True, exponent=0.9).clocks
    assert told == Clocks(pytest.approx(usual_mhz), 0.9, 2 * DOUBT)
    seldom = [one for one in stretches if one.target != WAITING]
    assert Metered.of(power, seldom, by_clocks=True, exponent=0.9).clocks == told
    same = [replace(one, clock_mhz=usual_mhz) for one in stretches]
    assert Metered.of(power, same, by_clocks=True, exponent=0.9).clocks is None
    seen = Metered.of(power, stretches, by_clocks=True, exponent=2.0).clocks
    assert seen is not None
    assert seen.power < 1.0


def test_it_is_said_where_plain_steps_draw_all_that_the_gpu_may(tmp_path: Path) -> None:
    limited, silent = recorded(tmp_path / "r.joulemap", FACTS), recorded(tmp_path / "s.joulemap", [])
    stretches, power = experiment()
    held, clocks = remarks(limited, Metered.of(power, stretches, by_clocks=True), stretches)
    assert held.startswith("GPU:0 drew 100 % of the 700 W that it may: ")
    assert clocks.startswith("GPU:0 ran at ")
    assert "of clocks here; " in clocks
    assert remarks(silent, Metered.of(power, stretches, by_clocks=True), stretches) == [clocks]
    (told,) = remarks(silent, Metered(power, clocks=Clocks(1700.0, 0.5, 0.3)), stretches)
    assert "0.50 ± 0.30 of clocks by calibration, since waits tell nothing of it; " in told
    (_, unknown) = remarks(limited, Metered(power), stretches)
    assert "too little is known of clocks" in unknown
    assert remarks(limited, Metered(PowerTrace(GPU, power.edges_ns, power.energy_j / 2)), stretches) == []
    assert remarks(limited, Metered(power), []) == []


def resting(seed: int, pause_s: float) -> tuple[list[Stretch], PowerTrace, float]:
    """Steps of 58 ms with 20 ms of work in them, and rests between stretches: what one costs above rest."""
    random = np.random.default_rng(seed)
    grid_ns = 1_000_000
    watts, stretches = [IDLE_W] * 300, []
    for _ in range(12):
        start = len(watts)
        for _ in range(14):
            length = round(random.normal(58, 2))
            watts += [600.0] * 20 + [IDLE_W] * (length - 20)
        stretches.append(Stretch(PLAIN, start * grid_ns, len(watts) * grid_ns, 14, {}, 0, pause_s=pause_s))
        watts += [IDLE_W] * round(1e3 * pause_s)
    watts += [IDLE_W] * 300
    edges = np.arange(round(random.uniform(0, 100)), len(watts), 100)
    drawn = np.add.reduceat(np.array(watts) * 1e-3, edges)[:-1]
    return stretches, PowerTrace(GPU, edges * grid_ns, drawn), 20e-3 * (600.0 - IDLE_W)


def test_rests_at_borders_tell_what_whole_steps_drew() -> None:
    """Without them a meter's interval begins and ends somewhere within a step."""
    for seed in range(5):
        stretches, power, above_j = resting(seed, 0.15)
        metered = Metered.of(power, stretches)
        assert metered.rest_w == pytest.approx(IDLE_W)
        found = [_above_j(metered, one) for one in plain(stretches)]
        assert found == pytest.approx([above_j] * len(stretches), rel=1e-6)
        blind = [_above_j(Metered(power), one) for one in plain(stretches)]
        assert np.std(blind) > 0.01 * above_j


def _above_j(metered: Metered, stretch: Stretch) -> float:
    return (metered.energy_j(stretch) - IDLE_W * stretch.seconds) / stretch.steps


def test_a_rest_without_an_update_of_the_meter_tells_nothing() -> None:
    stretches, power, _ = resting(0, 0.03)
    assert Metered.of(power, stretches).rest_w == 0.0
    metered = Metered(power, IDLE_W)
    missed = [one for one in stretches if metered._between_rests_j(one) is None]
    assert missed
    assert [metered.energy_j(one) for one in missed] == [Metered(power).energy_j(one) for one in missed]


def recorded(path: Path, facts: list[tuple[int, str, float]]) -> Recording:
    with RecordingWriter.create(path, RecordingInfo()) as writer:
        if facts:
            columns = [list(column) for column in zip(*facts, strict=True)]
            writer.put_table("facts", pa.table(dict(zip(("t_ns", "name", "value"), columns, strict=True))))
    return Recording.open(path)


def test_a_referee_has_a_waiting_gpu_rest(tmp_path: Path) -> None:
    ms = S // 1000
    kernel = EventTrace.from_columns(name=["net/mm"], device="GPU:0", start_ns=[0], end_ns=[20 * ms])
    for step_ms, waits in ((60, True), (21, False)):
        referee = Referee(tmp_path / "r.joulemap", tmp_path, Wanted(), print)
        referee.label, referee._traced = "train", 1
        referee._untraced = [(0, step_ms * ms, "train"), (0, ms, "test"), (0, step_ms * ms, "train")]
        referee.busy = referee._busy("GPU:0", kernel)
        assert referee.busy == pytest.approx(20 / step_ms)
        assert referee._busy("CPU", kernel) == 1.0
        referee._tell("GPU:0", 0.1)
        said = json.loads((tmp_path / TARGETS).read_text())
        assert said["pause_s"] == (pytest.approx(0.15) if waits else 0.0)


def broken() -> Recording:
    """As while it is being written."""
    raise InputError("It is not whole.")


def test_a_referee_orders_waits_once_clocks_vary(tmp_path: Path) -> None:
    stretches, power = experiment(1)
    clocks = [((one.start_ns + one.end_ns) // 2, "GPU:0 sm_clock_mhz", one.clock_mhz) for one in stretches]
    recorded(tmp_path / "r.joulemap", clocks)
    referee = Referee(tmp_path / "r.joulemap", tmp_path, Wanted(), print)
    some = [Target(0, "operation", "mm", "mm", (), frozenset(), 0.5, 0.03)]
    referee._device = "GPU:0"
    assert referee._wanted_now(some) == some
    referee.stretches = [replace(one, clock_mhz=0.0) for one in stretches]
    assert clocked(referee.stretches, Recording.open(tmp_path / "r.joulemap"), "GPU:0") == stretches
    assert referee._wanted_now(some) == [*some, WAIT]
    assert referee._wanted_now([]) == []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(referee, "_recording", broken)
        assert referee._wanted_now(some) == [*some, WAIT]
    referee.busy = 0.5
    assert referee._wanted_now(some) == some
    referee.busy = 1.0
    for target in (some[0], WAIT, WAIT, WAIT):
        referee._order(target, power)
    orders = [json.loads(line) for line in (tmp_path / ORDERS).read_text().splitlines()]
    assert [(one["target"], one["times"]) for one in orders] == [(0, 2), *[(WAITING, 2)] * 3]
    step_s = referee._step_s()
    assert [one["wait_s"] / step_s for one in orders] == pytest.approx([0.0, *WAITING_PARTS])
