"""Beside the program: when a GPU is eased, what is ordered, and what is known of plain steps."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from joulemap.calibration.operation import Operation
from joulemap.frameworks.imported import ImportedTrace
from joulemap.recorder.experiment import EASED_STEP, ORDERS, PLAIN, REFERENCE, REPEATING, TARGETS
from joulemap.recording import Recording, RecordingInfo, RecordingWriter
from joulemap.traces import EventTrace, PowerTrace, Steps
from joulemap.validating.easing import EASED
from joulemap.validating.plan import AS_IT_IS, EASED_EXTRA, LONGER, REFERENCES, Wanted, times
from joulemap.validating.referee import Referee
from joulemap.validating.stretch import Stretch, clocked, plain
from joulemap.validating.target import Target

from .limited_gpu import (
    FACTS,
    GPU,
    LIMIT_W,
    OWN,
    STEP,
    WAITING_W,
    WORK_J,
    WORK_S,
    S,
    at_clock,
    broken,
    experiment,
    recorded,
)
from .recordings import unsynced

PERIOD_S = 0.1
MM = Target(0, "operation", "mm", "mm", (), frozenset(), 0.5, 0.03, 0.01)
OTHERS = (
    Target(1, "operation", "gelu", "gelu", (), frozenset(), 0.3, 0.02, 0.01),
    Target(2, "operation", "mul_", "mul_", (), frozenset(), 0.1, 0.01, 0.01),
    Target(3, "module", "net", "", (), frozenset(), 0.9, 0.05),
)


def drawn(watts: float, seconds: float = 10.0) -> PowerTrace:
    """The same power all the time."""
    edges = np.arange(0, seconds + PERIOD_S / 2, PERIOD_S)
    return PowerTrace(GPU, (edges * S).astype(int), np.full(len(edges) - 1, watts * PERIOD_S))


def a_referee(folder: Path, facts: list[tuple[int, str, float]]) -> Referee:
    """Before the first block: it has seen plain steps of 50 ms for ten seconds."""
    folder.mkdir()
    recorded(folder / "r.joulemap", facts)
    referee = Referee(folder / "r.joulemap", folder, Wanted(), print)
    referee.label, referee._device, referee.targets = "train", "GPU:0", [MM, *OTHERS]
    referee.refused[2] = "it writes into what it is given"
    referee._steps = [(start, start + S // 20, "train") for start in range(0, 10 * S, S // 20)]
    referee._untraced, referee._work_s = referee._steps[:5], 0.05
    return referee


def orders(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / ORDERS).read_text().splitlines()]


@pytest.mark.parametrize(
    ("part", "busy", "facts", "eases"),
    [
        (0.65, 1.0, FACTS, True),
        (0.99, 0.95, FACTS, True),
        (0.55, 1.0, FACTS, False),
        (0.99, 0.8, FACTS, False),
        (0.99, 1.0, [], False),
        (0.99, 1.0, [(0, "GPU:1 power_limit_w", LIMIT_W)], False),
    ],
)
def test_a_referee_eases_a_gpu_that_draws_much_of_what_it_may_and_does_not_wait(
    tmp_path: Path, part: float, busy: float, facts: list[tuple[int, str, float]], eases: bool
) -> None:
    referee, power = a_referee(tmp_path / "experiment", facts), drawn(part * LIMIT_W)
    referee._work_s = 0.05 * busy
    references = [AS_IT_IS] if eases else []
    assert referee._references(power) == references
    referee._order(MM, power)
    (order,) = orders(tmp_path / "experiment")
    assert (order["ease"], order["rest_ease"]) == ((EASED, EASED) if eases else (0.0, 0.0))
    assert order["pause_s"] == (pytest.approx(0.15) if eases or busy < 0.9 else 0.0)
    assert referee._references(drawn(0.3 * LIMIT_W if eases else LIMIT_W)) == references


def test_a_referee_that_cannot_read_the_limit_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All blocks are eased, or none."""
    referee, power = a_referee(tmp_path / "experiment", FACTS), drawn(0.99 * LIMIT_W)
    whole, tried = referee._recording, list[int]()

    def at_the_third() -> Recording:
        tried.append(1)
        return whole() if len(tried) > 2 else broken()

    monkeypatch.setattr("joulemap.validating.referee.LOOK_S", 0.0)
    monkeypatch.setattr(referee, "_recording", at_the_third)
    assert referee._references(power) == [AS_IT_IS]
    never, tried = a_referee(tmp_path / "never", FACTS), []
    monkeypatch.setattr(never, "_recording", broken)
    assert never._references(power) == []
    monkeypatch.setattr(never, "_recording", whole)
    assert never._references(power) == []


def test_orders_say_how_long_the_gpu_waits_in_a_block_and_after_it(tmp_path: Path) -> None:
    referee, power = a_referee(tmp_path / "experiment", FACTS), drawn(0.99 * LIMIT_W)
    referee._references(power)
    for target in (MM, AS_IT_IS, OTHERS[-1]):
        referee._order(target, power)
    assert referee.blocks == 3
    found = orders(tmp_path / "experiment")
    assert [one["target"] for one in found] == [0, REFERENCE, 3]
    net_times = times(OTHERS[-1], Wanted(), EASED_EXTRA)
    assert [one["times"] for one in found] == [times(MM, Wanted(), EASED_EXTRA), 1, net_times]
    assert times(MM, Wanted(), EASED_EXTRA) > times(MM, Wanted())
    assert [one["ease"] for one in found] == [EASED, 0.0, EASED]
    assert [one["rest_ease"] for one in found] == [EASED] * 3
    assert [one["pause_s"] for one in found] == pytest.approx([0.15] * 3)
    wait_s = 0.05 * (MM.share + OTHERS[0].share)
    eased_s, mm_s, net_s = 0.05 + wait_s, 0.05 * MM.share, 0.05 * OTHERS[-1].share
    mm_again_s = (times(MM, Wanted(), EASED_EXTRA) - 1) * 2 * mm_s  # and a wait after each
    steps_s = [eased_s + mm_again_s, 0.05, eased_s + 2 * (net_times - 1) * net_s]
    blocks_s = [max(1.0, min(20 * seconds, 2.0)) for seconds in steps_s]
    assert [one["steps"] for one in found] == [
        longer * round(block_s / seconds)
        for longer, block_s, seconds in zip((1, LONGER, 1), blocks_s, steps_s, strict=True)
    ]
    assert [one["rest"] for one in found] == [round(0.8 * block_s / eased_s) for block_s in blocks_s]


def test_a_referee_knows_a_level_by_the_steps_between_blocks_as_these_are(tmp_path: Path) -> None:
    stretches, power = experiment(2)
    referee = a_referee(tmp_path / "experiment", FACTS)
    referee.stretches = stretches
    eased_w = (WORK_J + WORK_S * WAITING_W) / (2 * WORK_S)
    assert referee._levels_w(power) == pytest.approx([LIMIT_W] * (1 + 2 * REFERENCES), rel=0.005)
    referee._ease = EASED
    assert referee._levels_w(power) == pytest.approx([eased_w] * len(plain(stretches, EASED)), rel=0.005)
    assert referee._step_s() == pytest.approx(at_clock(STEP.values(), OWN)[0])
    after_ns = next(one.end_ns for one in reversed(stretches) if one.target != PLAIN)
    labels = ("train" + EASED_STEP, "train", "test", "train" + REPEATING)
    told = [(after_ns + number, after_ns + number + 1, label) for number, label in enumerate(labels)]
    referee._steps = [(after_ns - 1, after_ns, "train"), *told]
    assert referee._plain_steps() == [(a, b) for a, b, _ in told[:2]]


def test_stretches_are_told_their_clocks_by_the_monitor(tmp_path: Path) -> None:
    stretches, _ = experiment(1)
    clocks = [((one.start_ns + one.end_ns) // 2, "GPU:0 sm_clock_mhz", one.clock_mhz) for one in stretches]
    recording = recorded(tmp_path / "r.joulemap", clocks)
    assert clocked([replace(one, clock_mhz=0.0) for one in stretches], recording, "GPU:0") == stretches


def test_a_referee_knows_how_much_of_a_step_a_gpu_works(tmp_path: Path) -> None:
    ms = S // 1000
    for step_ms, waits in ((60, True), (21, False)):
        referee = Referee(tmp_path / "r.joulemap", tmp_path, Wanted(), print)
        referee.label, referee._work_s = "train", 0.02
        referee._untraced = [(0, step_ms * ms, "train"), (0, ms, "test"), (0, step_ms * ms, "train")]
        assert referee.busy == 1.0
        referee._device = "GPU:0"
        assert referee.busy == pytest.approx(20 / step_ms)
        assert referee.waits == waits


def test_a_referee_without_targets_says_how_much_they_were_to_take(tmp_path: Path) -> None:
    recorded(tmp_path / "r.joulemap", FACTS)
    none = np.zeros(0, np.int64)
    events = EventTrace.from_columns(name="", device="CPU", start_ns=none, end_ns=none, lane="")
    steps = Steps.from_columns(start_ns=none, end_ns=none)
    referee = Referee(tmp_path / "r.joulemap", tmp_path, Wanted(least_share=0.05), print)
    referee._choose(ImportedTrace(events, steps, None, "torch"))
    assert referee.problem == "no device with a meter ran an operation that takes 5.0 % of its time"


def test_a_gpu_waits_when_its_host_gets_slower(tmp_path: Path) -> None:
    ms = S // 1000
    referee = Referee(tmp_path / "r.joulemap", tmp_path, Wanted(), print)
    referee.label, referee._work_s, referee._device = "train", 0.02, "GPU:0"
    referee._untraced = [(0, 21 * ms, "train")]
    assert not referee.waits
    assert referee._pause_s(0.1) == 0.0
    referee.stretches = [Stretch(PLAIN, 0, 400 * ms, 10, {}, 0), Stretch(0, S, 2 * S, 10, {}, 10)]
    assert referee.busy == pytest.approx(0.5)
    assert referee.waits
    assert referee._pause_s(0.1) > 0.1


def test_a_referee_tells_the_program_how_long_its_targets_take(tmp_path: Path) -> None:
    referee = a_referee(tmp_path / "experiment", FACTS)
    referee._tell("GPU:0")
    said = json.loads((tmp_path / "experiment" / TARGETS).read_text())
    assert (said["device"], said["label"], said["stop"]) == ("cuda", "train", False)
    assert [(one["target"], one["each_s"]) for one in said["operations"]] == [(0, 0.01), (1, 0.01), (2, 0.01)]
    assert said["modules"] == [{"target": 3, "name": "net"}]


def test_a_referee_looks_at_one_kind_of_step(tmp_path: Path) -> None:
    """A prompt that was traced, too, by the time it looks: with the same names in it, and other sizes."""
    with unsynced(), RecordingWriter.create(tmp_path / "r.joulemap", RecordingInfo()) as writer:
        writer.put_power(drawn(200.0))
    referee = Referee(tmp_path / "r.joulemap", tmp_path, Wanted(), print)
    start_ns, end_ns, labels = [0, S, 9 * S], [S, 9 * S, 10 * S], ["decode", "prefill", "decode"]
    referee.label, referee._traced = "decode", list(zip(start_ns, end_ns, labels, strict=True))
    word, prompt = (Operation("mm", f"[[{rows}, 8]]", "", '["float"]', "[]") for rows in (1, 1000))
    events = EventTrace.from_columns(
        name="net/mm",
        device="GPU:0",
        phase="forward",
        start_ns=start_ns,
        end_ns=[S // 2, 9 * S, 9 * S + S // 2],
        signature=[word.key, prompt.key, word.key],
    )
    steps = Steps.from_columns(start_ns=start_ns, end_ns=end_ns)
    referee._choose(ImportedTrace(events, steps, None, "torch"))
    [only] = [one for one in referee.targets if one.kind == "operation"]
    assert only.operations == (word,)
    assert (only.share, only.step_s) == (1.0, pytest.approx(0.5))
