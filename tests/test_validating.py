"""Truths from a synthetic world in which every operation has a known power, and what is made of them."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from joulemap.accounting import attribute
from joulemap.api import load
from joulemap.calibration.operation import Operation
from joulemap.devices import Domain
from joulemap.meters.synthetic import Operation as Running
from joulemap.meters.synthetic import Sensor, sense
from joulemap.meters.synthetic import truth_of as world_of
from joulemap.recorder.experiment import PLAIN
from joulemap.recording import RecordingInfo, RecordingWriter
from joulemap.traces import EventTrace, PowerTrace, Steps
from joulemap.validating import gate
from joulemap.validating.metered import Metered
from joulemap.validating.plan import (
    AS_IT_IS,
    EXTRA,
    MOST_EXTRA,
    MOST_TIMES,
    REFERENCES,
    Turns,
    Wanted,
    extra,
    steps_of_block,
    times,
)
from joulemap.validating.referee import Referee
from joulemap.validating.rules import Charge, charged, only_plain, per_step
from joulemap.validating.stretch import Stretch, plain
from joulemap.validating.target import Target, targets
from joulemap.validating.truth import Truth, step_energy_j, truths

from .recordings import unsynced

GPU = Domain("GPU:0", "GPU:0", sensor="synthetic")
S = 1_000_000_000
WORLD = (
    Running("net/mm", 0.00597, 650.0),
    Running("net/gelu", 0.00308, 300.0),
    Running("net/tiny", 0.00203, 140.0),
    Running("", 0.00101, 120.0),
)
"""A step: three operations, and a wait; no number of them is a whole number of the meter's updates."""
NAMES = [one.name for one in WORLD]
ALL = dict.fromkeys(range(3), 0.0)


def experiment(
    seed: int, blocks: int = 5, more: int = 3, spread: float = 0.02, idle_fills: bool = False
) -> tuple[list[Stretch], PowerTrace]:
    """Every operation repeated in ``blocks`` blocks among plain steps, seen by a counter of 100 ms.

    Steps differ by ``spread`` in power. With ``idle_fills`` the repetitions run while the device would have
    waited: a step takes no longer."""
    random = np.random.default_rng(seed)
    order = [PLAIN]
    for _ in range(blocks):
        order += [one for target in random.permutation(3).tolist() for one in (target, PLAIN)]
    schedule: list[Running] = []
    borders, counts = [0], []
    for target in order:
        steps = 80 if target == PLAIN else 60
        for _ in range(steps):
            schedule += step(target, more, idle_fills, max(random.normal(1, spread), 0.5))
        borders.append(len(schedule))
        counts.append(steps)
    truth = world_of(schedule, GPU)
    sensor = Sensor(period_s=0.1, phase_s=float(random.uniform(0, 0.1)), noise_w=1.0, seed=seed)
    edges = truth.power.edges_ns[borders]
    stretches = [
        Stretch(
            target=target,
            start_ns=int(start_ns),
            end_ns=int(end_ns),
            steps=count,
            seen={0: count, 1: count, 2: count},
            extra=0 if target == PLAIN else more * count,
        )
        for target, start_ns, end_ns, count in zip(order, edges[:-1], edges[1:], counts, strict=True)
    ]
    return stretches, sense(truth.power, sensor).to_trace()


def step(target: int, more: int, idle_fills: bool, level: float) -> list[Running]:
    wait = 0.040 if idle_fills else WORLD[-1].seconds
    parts = [
        Running(one.name, one.seconds * (1 + more * (number == target)), one.power_w * level)
        for number, one in enumerate(WORLD[:-1])
    ]
    added_s = WORLD[target].seconds * more if target != PLAIN and idle_fills else 0.0
    return [*parts, Running("", wait - added_s, WORLD[-1].power_w * level)]


@pytest.mark.parametrize("blocks", [2, 5])
def test_truths_of_a_known_world_are_found_and_their_intervals_hold(blocks: int) -> None:
    held, off = [], []
    for seed in range(40):
        stretches, power = experiment(seed, blocks)
        every = truths(ALL, stretches, Metered(power))
        for number, one in enumerate(WORLD[:-1]):
            found = every[number]
            assert found.blocks == blocks
            assert found.executions == pytest.approx(1.0)
            true_j = one.seconds * one.power_w
            off.append(found.energy_j / true_j - 1)
            held.append(abs(found.energy_j - true_j) <= found.half_j)
    assert abs(float(np.mean(off))) < 0.01
    assert np.abs(off).max() < 0.15
    assert 0.9 <= np.mean(held) <= 0.99


def test_energy_that_was_waited_away_is_not_taken_for_an_operations() -> None:
    """Repetitions that fill the waiting of a GPU add what they draw above idle; its time at idle is theirs
    as well."""
    stretches, power = experiment(3, spread=0.001, idle_fills=True)
    mm, idle_w = WORLD[0], WORLD[-1].power_w
    blind = truths(ALL, stretches, Metered(power))[0]
    assert blind.energy_j == pytest.approx(mm.seconds * (mm.power_w - idle_w), rel=0.02)
    found = truths({0: mm.seconds}, stretches, Metered(power), idle_w)[0]
    assert found.energy_j == pytest.approx(mm.seconds * mm.power_w, rel=0.02)
    assert found.waiting_j == pytest.approx(-mm.seconds * idle_w, rel=0.02)


def test_what_is_not_metered_to_its_end_has_no_truth() -> None:
    stretches, power = experiment(0, blocks=1)
    assert not truths(ALL, stretches[:1], Metered(power))
    assert not truths({9: 0.0}, stretches, Metered(power))
    alone = truths(ALL, stretches, Metered(power))[0]
    assert (alone.blocks, alone.half_j, alone.relative) == (1, np.inf, np.inf)
    begun = [one for one in stretches if one.end_ns < stretches[1].end_ns]
    cut = PowerTrace(GPU, power.edges_ns[:8], power.energy_j[:7])
    assert len(begun) == 1
    assert 0 not in truths({0: 0.0}, stretches, Metered(cut))
    assert not truths(ALL, stretches, Metered(PowerTrace(GPU, [], [])))
    step_j = sum(one.seconds * one.power_w for one in WORLD)
    assert step_energy_j(stretches, Metered(power)) == pytest.approx(step_j, rel=0.03)
    assert step_energy_j([], Metered(power)) == 0.0
    assert len(plain(stretches)) == 4


def called(name: str, shape: list[int], phase: str = "forward", calls: int = 1) -> dict[str, Any]:
    row = {"name": name, "op": name.rpartition("/")[2], "phase": phase, "shapes": json.dumps([shape])}
    return {**row, "strides": "", "types": '["float"]', "scalars": "", "calls": calls}


def traced() -> EventTrace:
    """One step of a GPU: host operations that nest, and their kernels."""
    return EventTrace.from_columns(
        name=[*["net/a/mm", "net/a/copy_", "net/b/mm", "net/b/gelu"] * 2, "optimizer/mul_"],
        device=["CPU"] * 4 + ["GPU:0"] * 5,
        lane=["thread 1"] * 4 + ["stream 7"] * 5,
        kind=["op"] * 4 + ["kernel"] * 5,
        phase=["forward"] * 8 + ["optimizer"],
        start_ns=[0, 10, 100, 200, 1000, 1400, 1500, 2000, 2995],
        end_ns=[50, 20, 150, 250, 1400, 1500, 2000, 2995, 3000],
    )


def said_of(target: Target) -> Any:
    """What the program's side hears of it."""
    return json.loads(json.dumps(target.to_json()))


def test_targets_are_what_takes_long_with_what_runs_inside_it() -> None:
    rows = [called("net/a/mm", [8, 8]), called("net/b/mm", [8, 8], calls=2), called("net/b/gelu", [8])]
    rows += [
        called("net/a/copy_", [8]),
        called("net/b/gelu", [4]),
        called("optimizer/mul_", [8], "optimizer"),
    ]
    found = targets(traced(), "GPU:0", rows, steps=2)
    by_name = {one.name: one for one in found}
    assert [one.number for one in found] == list(range(len(found)))
    assert [one.kind for one in found] == ["operation"] * 3 + ["module"] * 3
    mm = by_name["mm [8, 8]"]
    assert mm.rows == {("net/a/mm", "forward"), ("net/b/mm", "forward"), ("net/a/copy_", "forward")}
    assert mm.share == pytest.approx(0.45)
    assert mm.step_s == pytest.approx(450e-9)
    gelu = by_name["gelu [8] and 1 more"]
    assert len(gelu.operations) == 2
    assert said_of(gelu)["operands"] == [[[[8], "float"]], [[[4], "float"]]]
    assert mm.to_json()["each_s"] == mm.each_s == pytest.approx(900e-9 / 2)
    joined = Operation("aten::cat", "[[[8, 2], [8, 3]], []]", "", '["GenericList", "Scalar"]', "")
    assert said_of(replace(gelu, operations=(joined,)))["operands"] == [[[[8, 2], ""], [[8, 3], ""]]]
    assert by_name["net"].share == pytest.approx(0.9975)
    assert by_name["net/b"].to_json() == {"target": by_name["net/b"].number, "name": "net/b"}
    assert "mul_ [8]" not in by_name
    assert targets(traced(), "GPU:1", rows, steps=1) == []
    assert len(targets(traced(), "GPU:0", rows, steps=1, modules=1, least_share=0.0)) == 5


def test_of_modules_that_are_alike_one_is_taken_and_lists_are_none() -> None:
    names = [f"layers/{number}/{part}" for number in (0, 1) for part in ("mlp/mm", "add")]
    events = EventTrace.from_columns(
        name=names,
        device="GPU:0",
        lane="stream 7",
        phase="forward",
        start_ns=[0, 30, 40, 80],
        end_ns=[30, 40, 80, 95],
    )
    found = targets(events, "GPU:0", [called(name, [8]) for name in names], steps=1)
    assert [one.name for one in found if one.kind == "module"] == ["layers/1", "layers/1/mlp"]


def a_target(number: int = 0, share: float = 0.1, rows: Any = frozenset()) -> Target:
    return Target(number, "operation", f"op {number}", "mm", (), frozenset(rows), share, 0.0)


def test_repetitions_add_half_a_step_and_blocks_last_long_enough() -> None:
    assert times(a_target(share=0.1), Wanted()) == 6
    assert times(a_target(share=0.9), Wanted()) == 2
    assert times(a_target(share=1e-4), Wanted()) == MOST_TIMES
    assert times(a_target(), Wanted(times=4)) == 4
    assert (times(AS_IT_IS, Wanted(times=4)), times(AS_IT_IS, Wanted())) == (1, 1)
    assert (extra(1.2), extra(0.9), extra(0.2)) == (EXTRA, EXTRA, MOST_EXTRA)
    assert times(a_target(share=0.1), Wanted(), extra(0.5)) == 9
    assert steps_of_block(step_s=0.04, rest_s=0.03, period_s=0.1) == (25, 27)
    assert steps_of_block(step_s=0.04, rest_s=0.03, period_s=0.001) == (25, 27)
    assert steps_of_block(step_s=0.075, rest_s=0.05, period_s=0.1) == (20, 24)
    assert steps_of_block(step_s=0.075, rest_s=0.05, period_s=0.2) == (27, 32)
    assert steps_of_block(step_s=0.125, rest_s=0.1, period_s=0.1) == (16, 16)
    assert steps_of_block(step_s=0.22, rest_s=0.15, period_s=0.1) == (9, 11)
    assert steps_of_block(step_s=9.0, rest_s=9.0, period_s=0.1) == (1, 1)
    assert steps_of_block(step_s=0.075, rest_s=0.05, period_s=0.1, shared=True) == (67, 80)


def test_turns_are_random_the_same_for_a_seed_and_leave_out_what_is_known() -> None:
    every = [a_target(number) for number in range(6)]
    known = Truth(1.0, 0.01, 1.0, 4)

    def order(seed: int) -> list[int]:
        turns = Turns(Wanted(seed=seed))
        return [one.number for _ in range(12) if (one := turns.next(every, {})) is not None]

    assert order(0) == order(0) != order(1)
    assert sorted(order(0)[:6]) == sorted(order(0)[6:]) == list(range(6))
    turns = Turns(Wanted())
    few = turns.next(every, {one.number: known for one in every if one.number != 3})
    assert few is not None
    assert few.number == 3
    assert turns.next(every, {one.number: known for one in every}) is None
    assert not turns.is_known(Truth(1.0, 0.01, 1.0, 2))
    assert not turns.is_known(Truth(1.0, 0.05, 1.0, 9))


@given(affords=some.integers(0, 30))
def test_what_there_is_no_time_for_twice_is_left_out_the_smallest_first(affords: int) -> None:
    """Ten targets, the last the largest. Until a few are over nobody knows how many there is time for."""
    every = [replace(a_target(number), share=0.01 * (1 + number)) for number in range(10)]
    turns, ordered = Turns(Wanted()), []
    for block in range(affords):
        one = turns.next(every, {}, np.inf if block < 3 else affords - block)
        assert one is not None
        ordered.append(one.number)
    counts = Counter(ordered)
    assert sum(count == 1 for count in counts.values()) <= (3 if affords < 8 else 1)
    begun = set(ordered[:3])
    others = [number for number in range(10) if number not in begun and counts[number]]
    assert others == [number for number in range(10) if number not in begun][-len(others) or 10 :]
    if affords >= 20:
        assert min(counts[number] for number in range(10)) >= 2


def test_every_turn_has_some_of_the_blocks_that_others_refer_to() -> None:
    every, references = [a_target(number) for number in range(6)], [AS_IT_IS]
    known = Truth(1.0, 0.01, 1.0, 4)
    turns = Turns(Wanted())
    for _ in range(2):
        found = [turns.next([*every, *references], {}) for _ in range(6 + REFERENCES)]
        assert [found.count(one) for one in (*every, *references)] == [1] * 6 + [REFERENCES]
    assert turns.known == 0
    most = {one.number: known for one in every if one.number != 3}
    last = [turns.next([*every, *references], most) for _ in range(1 + REFERENCES)]
    assert [last.count(one) for one in (every[3], *references)] == [1, REFERENCES]
    assert turns.known == 5
    assert turns.next([*every, *references], {}) is not None
    assert turns.next([*every, *references], {**most, 3: known}) is None
    assert turns.next(references, {}) is None


def test_the_gate_opens_when_plain_steps_draw_the_same_again() -> None:
    edges = np.arange(0, 6 * S + 1, S // 10)
    falling = np.concatenate((np.linspace(600, 400, 30), np.full(30, 400.0)))
    power = PowerTrace(Domain("GPU:0", "GPU:0", update_period_s=0.1), edges, falling / 10)
    steps = [(start, start + S // 10) for start in range(0, 6 * S, S // 10)]
    early, late = gate.samples_w(steps[:15], power), gate.samples_w(steps[30:], power)
    assert len(early) == 7
    assert not gate.is_level(early, np.zeros(0), power).stable
    assert gate.is_level(late, np.array([400.0, 410.0]), power).stable
    assert not gate.is_level(late, np.array([350.0]), power).stable
    assert len(gate.samples_w([(5 * S, 9 * S)], power)) == 0


def test_a_gpu_that_always_varies_is_asked_for_no_more_than_that_and_drift_still_shows() -> None:
    power = PowerTrace(Domain("GPU:0", "GPU:0", update_period_s=0.1), [0, S], [1.0])
    stable, early = [], []
    for seed in range(10):
        random = np.random.default_rng(seed)
        waiting = 250 * random.normal(1, 0.08, 40)
        stable += [gate.is_level(waiting[:end], waiting[:end], power).stable for end in range(8, 41)]
        early.append(gate.is_level(waiting[:4], waiting[:4], power).stable)
    assert np.mean(stable) > 0.9
    assert np.mean(early) < 0.3
    drifting = 250 * np.linspace(1.0, 2.0, 12) * random.normal(1, 0.002, 12)
    assert gate.jitter(drifting) < 0.15
    assert not gate.is_level(drifting, drifting, power).stable
    quiet = 250 * random.normal(1, 0.003, 40)
    assert gate.jitter(quiet) < 0.01


def test_rules_charge_a_target_for_all_its_rows_a_step() -> None:
    events = EventTrace.from_columns(
        name=["a/mm", "b/mm", "b/gelu"] * 4,
        device="GPU:0",
        phase="forward",
        start_ns=np.arange(12) * S,
        end_ns=np.arange(1, 13) * S,
    )
    power = PowerTrace(GPU, np.arange(13) * S, np.tile([5.0, 3.0, 2.0], 4))
    steps = Steps.from_columns(start_ns=np.arange(4) * 3 * S, end_ns=np.arange(1, 5) * 3 * S)
    both = a_target(0, rows={("a/mm", "forward"), ("b/mm", "forward")})
    found = per_step(attribute(events, power, steps=steps), [both, a_target(1)], 4)
    assert found[0].energy_j == pytest.approx(8.0)
    assert found[0].low_j < 8.0 < found[0].high_j
    assert found[1] == Charge(0.0, 0.0, 0.0)


def test_rules_charge_a_target_for_the_kind_of_step_that_is_validated(tmp_path: Path) -> None:
    """The prompt runs under the same names, takes ten times as much, and was traced as well."""
    lasts = [10, 1, 1, 1, 1]
    edges = np.concatenate(([0], np.cumsum(lasts))) * S
    events = EventTrace.from_columns(
        name="net/mm", device="GPU:0", phase="forward", start_ns=edges[:2], end_ns=edges[1:3], step=[0, 1]
    )
    labels = ["prefill", *["decode"] * 4]
    traced = np.arange(5) < 2
    steps = Steps.from_columns(start_ns=edges[:-1], end_ns=edges[1:], traced=traced, label=labels)
    power = PowerTrace(GPU, edges, 5.0 * np.array(lasts))
    with unsynced(), RecordingWriter.create(tmp_path / "r.joulemap", RecordingInfo()) as writer:
        writer.put_events(events)
        writer.put_steps(steps)
        writer.put_power(power)
    plainly = only_plain(steps, [Stretch(PLAIN, int(edges[2]), int(edges[5]), 3, {}, 0)], "decode")
    target = a_target(0, rows={("net/mm", "forward")})
    found = charged(load(tmp_path / "r.joulemap"), "exact", [target], plainly, "decode", power)
    assert found[0].energy_j == pytest.approx(5.0)


class Watched(Referee):
    """Hears of one more stretch whenever it looks."""

    def __init__(self, folder: Path, stretches: list[Stretch], power: PowerTrace) -> None:
        super().__init__(folder / "r.joulemap", folder, Wanted(), print)
        self.looks, self.coming, self.known = 0, list(stretches), power

    def _look(self) -> PowerTrace:
        self.looks += 1
        self.stretches += [self.coming.pop(0)] if self.coming else []
        return self.known


def test_it_looks_at_a_block_as_it_looks_at_plain_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU its own work is metered as the program's: plain steps came out dearer than blocks."""
    monkeypatch.setattr("joulemap.validating.referee.LOOK_S", 0.001)
    stretches, power = experiment(0, blocks=1)
    referee = Watched(tmp_path, stretches[:2], power)
    referee.blocks = 2
    assert referee._may_order(math.inf)
    assert (referee.looks, referee._under_way()) == (2, 1)


def test_blocks_are_ordered_ahead_only_while_plain_steps_between_them_draw_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("joulemap.validating.referee.LOOK_S", 0.001)
    stretches, power = experiment(0, blocks=2)
    level = Watched(tmp_path, [], power)
    level.stretches, level.blocks = stretches, 7
    assert level._under_way() == 1
    assert level._is_steady(power)
    assert level._may_order(math.inf)
    risen = PowerTrace(GPU, power.edges_ns, power.energy_j * np.linspace(1.0, 1.5, len(power.energy_j)))
    assert not level._is_steady(risen)
    few = PowerTrace(GPU, power.edges_ns[:40], risen.energy_j[:39])
    assert level._is_steady(few)
    late = Watched(tmp_path, [], risen)
    late.stretches, late.blocks = stretches, 7
    assert not late._may_order(0.0)
    assert late.reached == "the budget is spent"
