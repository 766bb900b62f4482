"""What a plan has replayed, on which device, with which settings and operands, and for how long."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from itertools import chain, count, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from joulemap.calibrating import understood
from joulemap.calibration.operation import Operation
from joulemap.devices import Domain
from joulemap.frameworks.torch import flags, gpus
from joulemap.meters.synthetic import Operation as Drawn
from joulemap.meters.synthetic import Sensor, sense, truth_of

torch = pytest.importorskip("torch", reason="needs PyTorch")

from joulemap.frameworks.torch.call import Call  # noqa: E402
from joulemap.frameworks.torch.rebuild import rebuilt  # noqa: E402
from joulemap.frameworks.torch.replay import TURN_S, _eased, _limited, executed, replays  # noqa: E402
from joulemap.frameworks.torch.replayer import IN_A_GRAPH, WAIT_S, Replayer, Wait, in_a_graph  # noqa: E402
from joulemap.frameworks.torch.rotation import MOST, SHARE, cache_bytes, free_bytes, size_of, wanted  # noqa: E402

from .environment import uncovered  # noqa: E402

SQUARE = Operation("aten::mm", "[[8, 8], [8, 8]]", "[[8, 1], [8, 1]]", '["float", "float"]', "[null, null]")
CROOKED = replace(SQUARE, shapes="[[8, 8], [9, 8]]")
PLAN = {"device": "cpu", "known": 0.0, "budget_s": 60.0, "passes": 2, "seconds": 0.01, "idle_s": 0.0}
PLAN |= {
    "first_s": 30.0,
    "eased_s": 0.0,
    "enough": 0.95,
    "worth": 0.5,
    "flags": {},
    "values": {},
    "refined": [],
}


def test_a_plan_is_replayed_in_turns_and_what_fails_is_left_out_by_name() -> None:
    other = replace(SQUARE, shapes="[[8, 8], [8, 4]]", strides="[[8, 1], [4, 1]]")
    shares = [[SQUARE.key, 0.4], [CROOKED.key, 0.3], [other.key, 0.3]]
    lines = list(replays({**PLAN, "shares": shares}))
    assert [line["key"] for line in lines] == [
        *(SQUARE.key, CROOKED.key, other.key, ""),
        *(SQUARE.key, other.key, ""),
    ]
    assert "skipped" in lines[1]
    assert all(line["executions"] >= 1 for line in lines if "executions" in line)
    enough = [line["key"] for line in replays({**PLAN, "shares": shares, "known": 0.6})]
    assert enough == [SQUARE.key, "", SQUARE.key, ""]
    worth = [line["key"] for line in replays({**PLAN, "shares": shares, "known": 0.6, "worth": 0.3})]
    assert worth == [SQUARE.key, CROOKED.key, other.key, "", SQUARE.key, other.key, ""]


def test_nothing_is_replayed_for_another_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("joulemap.frameworks.torch.replay.which", lambda _: "NVIDIA H200 1234")
    plan = {**PLAN, "shares": [[SQUARE.key, 0.5]], "flags": {"gpus": {"cpu": "NVIDIA H200 99"}}}
    skipped, idle = replays(plan)
    assert (skipped["key"], idle["key"]) == (SQUARE.key, "")
    assert skipped["skipped"] == "it ran on another GPU than this one, NVIDIA H200 99"
    same = replays({**plan, "flags": {"gpus": {"cpu": "NVIDIA H200 1234", "cuda:1": "NVIDIA H200 99"}}})
    assert "skipped" not in next(iter(same))


def test_a_program_says_which_gpus_it_has_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert flags.GPUS not in flags.current()
    assert gpus.which(torch.device("cpu")) == ""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    known = [SimpleNamespace(name="NVIDIA H200", uuid="1234"), SimpleNamespace(name="Tesla K80")]
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: known[device.index])
    found = flags.current()
    assert found[flags.GPUS] == {"cuda:0": "NVIDIA H200 1234", "cuda:1": "Tesla K80"}
    flags.put(found)  # which sets nothing of them


@pytest.mark.parametrize("quantity", ["energy_j", "power_w"])
def test_operations_of_a_cpu_cost_what_its_meter_saw_of_their_replays(quantity: Any) -> None:
    """Real replays, and a synthetic meter of a CPU whose truth is known: so many watts while each runs."""
    other = replace(SQUARE, shapes="[[64, 64], [64, 64]]", strides="[[64, 1], [64, 1]]")
    watts = {SQUARE.key: 35.0, other.key: 80.0, "": 5.0}
    shares = [[SQUARE.key, 0.5], [other.key, 0.5]]
    lines = list(replays({**PLAN, "shares": shares, "seconds": 0.4, "idle_s": 0.3}))
    schedule, now_ns = [], lines[0]["start_ns"]
    for line in lines:
        if line["start_ns"] > now_ns:  # warm-up
            schedule.append(Drawn("", (line["start_ns"] - now_ns) / 1e9, 20.0))
        schedule.append(Drawn(line["key"], (line["end_ns"] - line["start_ns"]) / 1e9, watts[line["key"]]))
        now_ns = line["end_ns"]
    cpu = Domain("CPU", "CPU:0", sensor="synthetic")
    truth = truth_of(schedule, cpu, start_ns=lines[0]["start_ns"])
    power = sense(truth.power, Sensor(quantity, period_s=0.02, noise_w=0.5)).to_trace()
    found = understood(lines, power, "CPU:0")
    assert found.idle_w == pytest.approx(5.0, rel=0.1)  # noise, of so few updates
    assert found.skipped == {}
    for operation, cost in found.costs.items():
        assert cost.power_w == pytest.approx(watts[operation.key], rel=0.02)
        assert cost.energy_j == pytest.approx(watts[operation.key] * cost.seconds, rel=0.02)
        marks = [pairwise(line["marks"]) for line in lines if line["key"] == operation.key]
        paces_s = [(b[0] - a[0]) / (b[1] - a[1]) / 1e9 for a, b in chain(*marks)]
        assert min(paces_s) <= cost.seconds <= max(paces_s)  # however busy the machine is meanwhile


def test_a_budget_buys_what_it_can_and_at_least_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that goes on by a second whenever it is looked at."""
    monkeypatch.setattr("joulemap.frameworks.torch.replayer.WARM_UP_S", 0.001)
    many = [replace(SQUARE, scalars=json.dumps([None, None, number])) for number in range(9)]
    plan = {**PLAN, "shares": [[one.key, 0.1] for one in many], "seconds": 0.001}

    def passes(budget_s: float, first_s: float, at_least: int = 2) -> dict[str, int]:
        ticks = count()
        told = {**plan, "budget_s": budget_s, "first_s": first_s, "passes": at_least}
        lines = replays(told, lambda: float(next(ticks)))
        return Counter(line["key"] for line in lines if line["key"])

    assert passes(0.0, 0.0) == {many[0].key: 1}
    assert passes(9.0, 4.0) == {one.key: 2 for one in many[:4]}
    assert passes(60.0, 30.0) == {one.key: 2 for one in many}
    assert passes(15.0, 10.0, at_least=1) == {one.key: 2 if one in many[:6] else 1 for one in many}
    assert passes(60.0, 30.0, at_least=3) == {one.key: 3 for one in many}


def test_what_was_replayed_once_before_is_replayed_again_after_what_is_new(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As long as there is time, by a clock that goes on by a second whenever it is looked at."""
    monkeypatch.setattr("joulemap.frameworks.torch.replayer.WARM_UP_S", 0.001)
    new, *once = [replace(SQUARE, scalars=json.dumps([None, None, number])).key for number in range(3)]
    plan = {**PLAN, "shares": [[new, 0.5]], "known": 0.5, "seconds": 0.001, "refined": once}

    def keys(budget_s: float) -> list[str]:
        ticks = count()
        return [line["key"] for line in replays({**plan, "budget_s": budget_s}, lambda: float(next(ticks)))]

    assert keys(60.0) == [new, "", *once, new, ""]
    assert keys(3.0) == [new, "", *once, ""]
    assert [line["key"] for line in replays({**plan, "shares": []})] == ["", *once, ""]


def test_what_chooses_an_algorithm_is_set_where_operations_are_replayed() -> None:
    before, plan = flags.current(), {**PLAN, "shares": []}
    assert {"cudnn.benchmark", "cuda.math_sdp", "deterministic"} <= set(before)
    other = {name: not value for name, value in before.items() if isinstance(value, bool)}
    other |= {name: "ieee" for name in before if name.endswith("fp32_precision")}
    other |= {flags.THREADS: before[flags.THREADS] + 1}
    try:
        list(replays({**plan, "flags": {**other, "autocast": {"cuda": "bfloat16"}, "cuda.unheard_of": 1}}))
        assert flags.current() == other
        assert flags.autocast() == {}
    finally:
        flags.put(before)
    assert flags.current() == before
    with torch.autocast("cpu", torch.bfloat16):
        assert flags.autocast() == {"cpu": "bfloat16"}


def test_threads_of_a_cpu_are_set_for_operations_on_it_alone() -> None:
    before = torch.get_num_threads()
    try:
        flags.put({flags.THREADS: before + 1}, "cuda")
        assert torch.get_num_threads() == before
        list(replays({**PLAN, "shares": [], "flags": {flags.THREADS: before + 2}}))
        assert torch.get_num_threads() == before + 2
        list(replays({**PLAN, "shares": []}))  # of a recording that does not say
        assert torch.get_num_threads() == before + 2
    finally:
        torch.set_num_threads(before)


def test_replays_that_are_interrupted_say_nothing(tmp_path: Path) -> None:
    """Who has started them does."""
    plan, result, held = (tmp_path / name for name in ("plan.json", "result.jsonl", "held"))
    held.write_bytes(b"")
    told = {**PLAN, "shares": [[SQUARE.key, 0.5], [SQUARE.key, 0.4]], "values": [], "held": str(held)}
    plan.write_text(json.dumps({**told, "seconds": 2.0}))
    words = [sys.executable, "-m", "joulemap.frameworks.torch.replay", str(plan), str(result)]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=uncovered()
    ) as running:
        until_s = time.monotonic() + 60
        while not (result.exists() and result.read_text()) and time.monotonic() < until_s:
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        said, _ = running.communicate(timeout=60)
    assert (running.returncode, said) == (-signal.SIGINT, "")


def test_operands_take_turns_so_that_none_is_left_in_a_cache_within_bounds(tmp_path: Path) -> None:
    cache, free = 1_000_000, 100_000_000
    assert wanted(100_000, cache, free) == 30
    assert wanted(7, cache, free) == MOST
    assert wanted(10_000_000, cache, free) == 1
    assert wanted(100_000, cache, free=4_000_000) == 10
    assert wanted(100_000, cache, free=0) == 1
    for index, size in {"index0": "32K", "index3": "2M", "index9": ""}.items():
        (tmp_path / index).mkdir()
        (tmp_path / index / "size").write_text(f"{size}\n")
    assert cache_bytes(torch.device("cpu"), tmp_path) == 2 * 1024**2
    assert cache_bytes(torch.device("cpu"), tmp_path / "none") == 0
    large = replace(SQUARE, shapes="[[128, 128], [128, 128]]", strides="[[128, 1], [128, 1]]")
    first = rebuilt(Call.of(large.key), torch.device("cpu"))
    assert size_of(first) == 2 * 4 * 128 * 128
    lists = Operation(
        "aten::_foreach_mul_", "[[[9], [7]]]", "", '[["float", "double"], "Scalar"]', "[null, 1]"
    )
    assert size_of(rebuilt(Call.of(lists.key), torch.device("cpu"))) == 4 * 9 + 8 * 7
    rotated = Replayer(Call.of(large.key), torch.device("cpu"))
    assert 1 <= len(rotated.copies) <= MOST
    assert sum(map(size_of, rotated.copies)) <= max(SHARE * free_bytes(torch.device("cpu")), size_of(first))
    used = {id(rotated.copies[0]) for _ in range(2 * len(rotated.copies)) if rotated.once() is None}
    assert len(used) == len(rotated.copies)


@torch.library.custom_op("joulemap_tests::slow", mutates_args=(), schema="(Tensor x) -> Tensor")
def slow(x: torch.Tensor) -> torch.Tensor:
    """An operation that takes longer than it does anything."""
    time.sleep(0.2)
    return x.clone()


def test_no_time_is_lost_with_operands_for_what_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("joulemap.frameworks.torch.replayer.copies", lambda *_: MOST)
    one = Operation("joulemap_tests::slow", "[[4]]", "[[1]]", '["float"]', "[null]")
    assert 1 <= len(Replayer(Call.of(one.key), torch.device("cpu")).copies) < 10


@torch.library.custom_op("joulemap_tests::speechless", mutates_args=(), schema="(Tensor x) -> Tensor")
def speechless(x: torch.Tensor) -> torch.Tensor:
    """An operation that fails without a word."""
    raise ValueError


def test_an_error_without_a_message_is_a_reason_too() -> None:
    one = Operation("joulemap_tests::speechless", "[[4]]", "[[1]]", '["float"]', "[null]")
    first, idle = replays({**PLAN, "shares": [[one.key, 1.0]], "passes": 1})
    assert (first["key"], first["skipped"]) == (one.key, "ValueError")
    assert idle["key"] == ""


def test_a_replay_lasts_as_long_as_it_is_to_even_where_the_warm_up_was_slow() -> None:
    """A pass that ends early is over before a slow meter has seen it."""

    class Misjudged(Replayer):
        def _burst(self, once: Any, seconds: float) -> float:
            return 1000 * super()._burst(once, seconds)

    cpu = torch.device("cpu")
    said = executed([Misjudged(Call.of(SQUARE.key), cpu)], 0.3, cpu)
    assert said["end_ns"] - said["start_ns"] >= 0.25e9  # by another clock, which may be set
    (many,) = said["executions"]
    assert many > 1
    assert said["marks"][-1][1] - said["marks"][0][1] == many
    assert len(said["spent"]) == len(said["marks"])


def test_an_operation_and_waits_take_turns_of_the_same_length(monkeypatch: pytest.MonkeyPatch) -> None:
    class Timed(Replayer):
        def launch_s(self) -> float:
            return TURN_S / 30

    monkeypatch.setattr("joulemap.frameworks.torch.replayer.idle", lambda seconds, _: time.sleep(seconds))
    cpu = torch.device("cpu")
    wait = Wait(cpu)
    assert wait.launch_s() == wait.took_s >= WAIT_S
    monkeypatch.setattr(wait, "launch_s", lambda: WAIT_S)
    said = executed([Timed(Call.of(SQUARE.key), cpu), wait], 0.2, cpu)
    runs, waits = said["executions"]
    assert runs * TURN_S / 30 == pytest.approx(waits * WAIT_S)
    assert runs > 0
    assert [len(mark) for mark in said["marks"]] == [4] * len(said["marks"])


def test_what_lowers_clocks_is_executed_with_waits_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """What there is no memory for any more is left out."""
    monkeypatch.setattr("joulemap.frameworks.torch.replay.EASED_S", 0.01)
    monkeypatch.setattr("joulemap.frameworks.torch.replayer.idle", lambda seconds, _: time.sleep(seconds))
    add = replace(SQUARE, op="aten::add")
    large = replace(
        SQUARE, shapes=json.dumps([[1 << 26, 1 << 26]] * 2), strides=json.dumps([[1 << 26, 1]] * 2)
    )
    cpu = torch.device("cpu")
    found = list(_eased([add.key, SQUARE.key, large.key], cpu, 0.01, within_s=60.0, values={}))
    assert [one["eased"] for one in found] == [add.key, SQUARE.key]
    assert all(len(one["executions"]) == 2 and one["wait_s"] >= WAIT_S for one in found)
    assert list(_eased([], cpu, 0.01, within_s=60.0, values={})) == []
    (first,) = _eased([add.key, SQUARE.key], cpu, 0.01, within_s=0.0, values={})
    assert first["eased"] == add.key


def test_what_is_known_least_at_the_highest_clocks_and_counts_most_comes_first() -> None:
    clocks = {"often": 1910.0, "deep": 1450.0, "seldom": 1440.0, "free": 1960.0, "unknown": 0.0}
    shares = {"often": 0.3, "deep": 0.2, "seldom": 0.01, "free": 0.4, "unknown": 0.1}
    assert _limited(clocks, 1980.0, shares) == ["deep", "often", "seldom"]
    assert _limited(clocks, 0.0, shares) == ["deep", "seldom"]  # what is free may be as high
    assert _limited({"free": 1960.0}, 1980.0, {}) == []
    assert _limited({}, 0.0, {}) == []


def test_a_graph_holds_so_many_executions_as_keep_a_gpu_busy_and_every_set_has_its_turn() -> None:
    assert in_a_graph(5e-6, 1) == IN_A_GRAPH
    assert in_a_graph(400e-6, 1) == 50
    assert in_a_graph(400e-6, 3) == 48
    assert in_a_graph(900e-6, 64) == 64
