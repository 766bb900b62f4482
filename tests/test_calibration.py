"""What operations cost by themselves, and what that makes of the accounting."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner

from joulemap.accounting import Footprint, attribute
from joulemap.accounting.charges import energy_of_events
from joulemap.accounting.rows import BY_TIME_RMS
from joulemap.accounting.student import NORMAL_975
from joulemap.calibrating import _shelf, left_to_time, nothing_found, understood
from joulemap.calibration.book import Book, Calibration, Shelf, described
from joulemap.calibration.closure import Closure
from joulemap.calibration.cost import ASSUMED, UNKNOWN_RMS, Cost, Replay, costs, level_power_w
from joulemap.calibration.operation import Operation
from joulemap.calibration.recorded import Calibrated, calibrated, in_order, values
from joulemap.calibration.weights import Weights
from joulemap.commands.calibrate import _costs, command
from joulemap.devices import Domain
from joulemap.errors import InputError, MeterError
from joulemap.frameworks.imported import Held
from joulemap.recorder.host import gpu_driver
from joulemap.recording import Recording, RecordingInfo, RecordingWriter
from joulemap.recording.names import VALUES
from joulemap.traces import EventTrace, PowerTrace

from .calibrated_recordings import called

DATA = Path(__file__).parents[2] / "shared" / "data" / "h200"
GPU = Domain("GPU:0", "GPU:0")
S = 1_000_000_000


def counter(*watts: float, period_s: float = 0.1) -> PowerTrace:
    """A power trace with one interval for each power."""
    edges = np.arange(len(watts) + 1) * round(period_s * S)
    return PowerTrace(GPU, edges, np.array(watts) * period_s)


def test_only_whole_intervals_of_a_level_load_count():
    power = counter(100, 300, 500, 500, 500, 120)
    assert level_power_w(power, round(0.05 * S), round(0.55 * S)) == pytest.approx(500)
    assert level_power_w(power, round(0.05 * S), round(0.25 * S)) is None


def test_the_cost_of_an_execution_and_its_spread_over_passes():
    power = counter(*[500] * 10, *[510] * 10, *[100] * 10)
    replays = [Replay("mm", 0, S, 1000), Replay("mm", S, 2 * S, 1000), Replay("once", 2 * S, 3 * S, 10)]
    found = costs([*replays, Replay("too short", 0, S // 10, 1)], power)
    assert set(found) == {"mm", "once"}
    assert found["mm"].energy_j == pytest.approx(0.505)
    assert found["mm"].power_w == pytest.approx(505)
    pooled = np.sqrt((2 * (5 / 505) ** 2 + ASSUMED * UNKNOWN_RMS**2) / (1 + ASSUMED))
    assert (found["mm"].rms, found["once"].rms) == (
        pytest.approx(pooled / np.sqrt(2)),
        pytest.approx(pooled),
    )
    assert costs(replays[2:], power)["once"].rms == pytest.approx(UNKNOWN_RMS)
    assert Cost.from_json(json.loads(json.dumps(found["mm"].to_json()))) == found["mm"]


def test_a_cost_of_one_pass_is_refined_by_a_later_calibration(tmp_path: Path):
    """Two passes are surer than one, unless they are far apart; what nobody looked at again is as it was."""
    one = Operation.of(called("mm", [8]))
    shelf, book = Shelf("here", "GPU:0", "", "torch"), Book(tmp_path)
    first = Cost(1.0, 0.01, 0.02, 1, 1500.0, eased_j=1.2, eased_mhz=1900.0, eased_s=0.009)

    def kept(later: Cost) -> Cost:
        book.path.unlink(missing_ok=True)
        for cost in (first, later):
            found = book.add(shelf, Calibration("GPU:0", 1.0, {one: cost}))
        return found.costs[one]

    both = kept(Cost(1.02, 0.01, 0.02, 1, 1520.0))
    assert (both.energy_j, both.passes, both.clock_mhz) == (pytest.approx(1.01), 2, 1510.0)
    assert both.rms == pytest.approx(0.02 / np.sqrt(2))
    assert (both.eased_j, both.eased_mhz, both.eased_s) == (1.2, 1900.0, 0.009)
    assert kept(Cost(1.5, 0.01, 0.02, 1, 1500.0)).rms == pytest.approx(0.2)
    assert kept(Cost(1.5, 0.01, 0.01, 2, 1500.0)).energy_j == 1.5
    assert kept(Cost(1.5, 0.01, 0.01, 2, 1500.0, 1.6, 1950.0)).eased_mhz == 1950.0


@pytest.mark.parametrize("others", [1, 3, 8])
def test_one_disturbed_operation_does_not_make_all_others_unsure(others: int):
    """It has its own spread, by which it cannot be told from nothing; the others know what they know."""
    power = counter(*[100] * 10 * 4)
    calm = [
        Replay(f"calm {one}", turn * S, (turn + 1) * S, many)
        for one in range(others)
        for turn, many in enumerate((1000, 1010))
    ]
    wild = [Replay("wild", 2 * S, 3 * S, 1000), Replay("wild", 3 * S, 4 * S, 100)]
    found = costs([*calm, *wild, Replay("once", 0, S, 1000)], power)
    assert not found["wild"].is_clear
    assert all(cost.is_clear and cost.rms < 0.05 for key, cost in found.items() if key != "wild")
    alone = costs(calm, power)
    assert found["calm 0"].rms > alone["calm 0"].rms  # it happened, and may have happened to these
    assert costs([*wild, Replay("once", 0, S, 1000)], power)["once"].rms > 2 * UNKNOWN_RMS


@pytest.mark.parametrize("rms", [0.005, 0.02, 0.2])
def test_spread_that_all_have_is_found(rms: float):
    """However much it is: nothing of it counts as a disturbance."""
    random = np.random.default_rng(1)
    found = []
    for _ in range(40):
        joules = 1 + rms * random.standard_normal((20, 2))
        power = PowerTrace(GPU, np.arange(41) * S, joules.ravel())
        spans = [(each // 2, each * S - S // 4, (each + 1) * S) for each in range(40)]
        replays = [Replay(str(op), start, end, 1) for op, start, end in spans]
        found.append(costs(replays, power)["0"].rms * np.sqrt(2))
    assert np.mean(found) == pytest.approx(np.sqrt((20 * rms**2 + ASSUMED * UNKNOWN_RMS**2) / 22), rel=0.1)


def test_executions_count_where_the_meter_saw_them():
    """It gets slower after 100 ms; what the meter saw before its first update does not count."""
    marks = [(0, 50, 0.0), (S // 10, 250, 1900.0), (S, 1150, 1500.0)]
    power = counter(800, *[500] * 9)
    (found,) = costs([Replay("mm", 0, S, 1100, marks)], power).values()
    assert found.energy_j == pytest.approx(0.5)
    assert found.seconds == pytest.approx(1e-3)
    assert found.clock_mhz == 1500
    odd = [(0, 0, 0.0), *((S // 10 * tick, 100 * tick, 1500.0) for tick in range(1, 10)), (S, 1000, 9e4)]
    late = [(0, 0, 0.0), (S + 1, 1000, 1600.0)]
    unknown = [(0, 0, 0.0), (S, 1000, 0.0)]

    def clock_mhz(*passes: Any) -> float:
        (one,) = costs([Replay("mm", 0, S, 1000, marks) for marks in passes], power).values()
        return one.clock_mhz

    assert clock_mhz(odd) == 1500
    assert clock_mhz(late) == 1600
    assert clock_mhz(odd, unknown) == 1500
    assert clock_mhz(unknown) == 0


def test_what_cannot_be_told_from_nothing_has_no_cost_and_spoils_no_other():
    def line(key: str, start: int, end: int) -> dict[str, Any]:
        return {"key": key, "start_ns": start * S, "end_ns": end * S, "executions": 10, "marks": []}

    mm, rest, gone, odd = (Operation.of(called(op, [8])) for op in ("mm", "rest", "gone", "odd"))
    power = counter(*[100] * 10, *[101] * 10, *[0] * 20, *[5] * 10)
    lines = [line(mm.key, 0, 1), line(mm.key, 1, 2), line(rest.key, 2, 3), line(rest.key, 3, 4)]
    lines += [
        line("", 4, 5),
        {**line(gone.key, 2, 3), "end_ns": 2 * S + 1},
        {"key": odd.key, "skipped": "odd"},
    ]
    found = understood(lines, power, "GPU:0")
    assert set(found.costs) == {mm}
    assert found.costs[mm].half_j < 0.025 * found.costs[mm].energy_j
    assert found.skipped[rest].startswith("Its replays differ too much: 0 J")
    assert "did not update" in found.skipped[gone]
    assert found.skipped[odd] == "odd"
    assert found.idle_w == pytest.approx(5)
    assert not Cost(1.0, 1.0, 0.6, 2).is_clear
    with pytest.raises(MeterError, match="while nothing ran"):
        understood(lines[:2], power, "GPU:0")


def test_a_domain_whose_meter_was_not_read_is_shared_by_time():
    """Nobody knows what the memory takes while an operation runs, which draws power of its own."""
    events = EventTrace.from_columns(
        name=["a", "b"], device="CPU", start_ns=[0, S], end_ns=[S, 2 * S], kind="op"
    )
    power = [
        PowerTrace(Domain("package-0", "CPU:0"), [0, 2 * S], [100.0]),
        PowerTrace(Domain("dram-0", "CPU:0"), [0, 2 * S], [20.0]),
    ]
    known = Calibration("CPU:0", 10.0, {}, domain="package-0")
    assert Calibration.from_json(known.to_json()).idle_weight == known.idle_weight == {"package-0": 10.0}
    weights, rms = np.array([300.0, 100.0]), [0.1, 0.1]
    said = {"weights": weights, "idle_weight": known.idle_weight}
    rows = attribute(events, power, "calibrated", cost_rms=rms, **said).to_records()
    found = {(row["name"], row["domain"]): (row["energy_j"], row["provenance"]) for row in rows}
    assert found == {
        ("a", "package-0"): (pytest.approx(75), "calibrated"),
        ("b", "package-0"): (pytest.approx(25), "calibrated"),
        ("a", "dram-0"): (pytest.approx(10), "apportioned"),
        ("b", "dram-0"): (pytest.approx(10), "apportioned"),
    }
    package, memory = energy_of_events(events, power, **said)
    assert package.energy_j == pytest.approx([75, 25])
    assert memory.energy_j == pytest.approx([10, 10])
    old = {**known.to_json(), "device": "GPU:0"}
    del old["domain"]
    assert Calibration.from_json(old).idle_weight == {"GPU:0": 10.0}


def test_a_device_that_was_not_calibrated_is_shared_by_time():
    events = EventTrace.from_columns(
        name=["a", "b", "c"],
        device=["GPU:0", "GPU:0", "CPU:0"],
        start_ns=[0, S, 0],
        end_ns=[S, 2 * S, S],
    )
    power = [
        PowerTrace(GPU, [0, 2 * S], [100.0]),
        PowerTrace(Domain("package-0", "CPU:0"), [0, 2 * S], [20.0]),
    ]
    footprint = attribute(
        events,
        power,
        "calibrated",
        weights=[300.0, 100.0, 7.0],
        idle_weight={"GPU:0": 50.0},
        cost_rms=[0.1, np.nan, np.nan],
    )
    rows = {row["name"]: row for row in footprint.to_records()}
    assert [rows[name]["energy_j"] for name in "abc"] == pytest.approx([75, 25, 10])
    assert [rows[name]["provenance"] for name in "abc"] == ["calibrated", "apportioned", "apportioned"]
    assert sorted(footprint.cost_rms_j) == pytest.approx([0, 25 * BY_TIME_RMS, 7.5])
    with pytest.raises(InputError, match="3 events need 3 cost_rms"):
        attribute(events, power, "calibrated", weights=[1, 1, 1], idle_weight=1.0, cost_rms=[0.1])


def test_what_has_no_cost_is_off_by_what_it_shares_with_others():
    """A second by itself, and a hundredth among others, with a meter that updates ten times a second."""
    begins, ends = [0, S, S + S // 100], [S, S + S // 100, 2 * S]
    events = EventTrace.from_columns(
        name=["long", "short", "known"], device="GPU:0", start_ns=begins, end_ns=ends
    )
    power = PowerTrace(GPU, np.arange(0, 2 * S + 1, S // 10), np.full(20, 10.0))
    footprint = attribute(
        events, power, "calibrated", weights=[1.0] * 3, idle_weight=1.0, cost_rms=[np.nan, np.nan, 0.02]
    )
    off = {
        one: rms / joules
        for one, rms, joules in zip(footprint.name, footprint.cost_rms_j, footprint.energy_j, strict=True)
    }
    assert off == pytest.approx({"long": BY_TIME_RMS / 10, "short": BY_TIME_RMS, "known": 0.02})


def test_what_adds_up_to_what_was_measured_is_as_sure_as_what_is_left():
    """Costs say how energy is shared: all rows together are off by no more than idle is, which is off by its
    part of their error."""
    begins = [0, S, 2 * S]
    events = EventTrace.from_columns(
        name=["m/a", "m/b", "n/c"], device="GPU:0", start_ns=begins, end_ns=[S, 2 * S, 3 * S]
    )
    power = PowerTrace(Domain("GPU:0", "GPU:0", update_period_s=1e-4), [0, 4 * S], [1000.0])
    said = {"weights": [300.0] * 3, "idle_weight": 100.0, "cost_rms": [0.05] * 3}
    footprint = attribute(events, [power], "calibrated", **said)

    def off(rows: Footprint) -> dict[str, float]:
        half_j = (rows.high_j - rows.low_j) / 2 / NORMAL_975 / rows.energy_j
        return dict(zip(rows.name, half_j.tolist(), strict=True))

    [account] = footprint.accounts
    idle_low_j, idle_high_j = account.idle_interval_j(footprint.blocks)
    assert account.idle_j == pytest.approx(100)
    each = 0.05 * np.hypot(0.7, 0.6)
    assert off(footprint) == pytest.approx({"m/a": each, "m/b": each, "n/c": each}, rel=0.02)
    assert off(footprint.at(1)) == pytest.approx({"m": 0.05 * np.hypot(0.4, 0.3), "n": each}, rel=0.02)
    everything = footprint.rollup(footprint.name.mapped(["all"] * 3), keep=())
    assert off(everything) == pytest.approx({"all": 0.05 * 0.1}, rel=0.02)
    assert (idle_high_j - idle_low_j) / 2 / NORMAL_975 == pytest.approx(0.05 * 900 * 0.1, rel=0.02)


@pytest.mark.parametrize(
    ("versions", "op", "words"),
    [
        ({"jax": "0.8"}, "dot", "JAX has kernels only inside"),
        ({"jax": "0.8", "tensorflow": "2.21"}, "dot_general", "JAX has kernels only inside"),
        ({"jax": "0.8", "tensorflow": "2.21"}, "_FusedMatMul", "TensorFlow does not say what they"),
        ({"tensorflow": "2.21", "keras": "3"}, "a", "TensorFlow does not say what they were called with"),
        ({"torch": "2.13", "tensorflow": "2.21"}, "a", "none of its steps was traced"),
        ({}, "a", "used no PyTorch"),
    ],
)
def test_what_cannot_be_replayed_is_said_with_the_reason(
    tmp_path: Path, versions: dict[str, str], op: str, words: str
):
    """The same one by whoever is asked; other frameworks may have been imported, too."""
    writer = RecordingWriter.create(tmp_path / "r.joulemap", RecordingInfo(versions=versions))
    one = EventTrace.from_columns(name=f"a/{op}", op=op, device="GPU:0", start_ns=[0], end_ns=[S], kind="op")
    writer.put_events(one)
    writer.finish("complete", (0, S))
    with pytest.raises(InputError, match=words):
        CliRunner().invoke(command, [str(writer.path)], catch_exceptions=False)
    with pytest.raises(InputError, match="not calibrated") as raised:
        calibrated(Recording.open(writer.path))
    assert words in raised.value.hint


def test_the_driver_of_a_gpu_is_known_where_there_is_one(tmp_path: Path):
    assert gpu_driver(tmp_path) == ""
    (tmp_path / "nvidia").mkdir()
    (tmp_path / "nvidia" / "version").write_text("580.95.05\n")
    assert gpu_driver(tmp_path) == "nvidia 580.95.05"


def test_a_closure_that_is_off_is_said_with_its_likely_cause():
    def notes(closure: Closure | None) -> str:
        weights = Weights(np.zeros(0), np.zeros(0), 0.8, 1.0, 1.0)
        found = Calibrated(weights, Calibration("GPU:0", 1.0, {}), closure)
        return " ".join([*found.notes(), *found.warnings()])

    assert "80.0 % of the busy time of GPU:0 is calibrated" in notes(None)
    assert "losure" not in notes(None)
    sound = notes(Closure(0.57, 0.3, 0.1))
    assert "add up to 97.0 % of what was measured, 10.0 % of it guessed for what has no cost." in sound
    assert "should" not in sound
    assert "guessed" not in notes(Closure(0.67, 0.3, 0.004))
    assert "power cap" in notes(Closure(1.0, 0.1, 0.1))
    assert "--again" in notes(Closure(1.0, 0.1, 0.1))
    little = notes(Closure(0.2, 0.3, 0.49))
    assert "No closure: costs are 20.0 % of what was measured, waiting 30.0 %, and the rest has" in little
    assert "--budget" in little
    assert "add up" not in little


def test_operations_are_told_in_words():
    one = Operation("aten::addmm", "[[768], [4, 768], [], []]", "", "", "")
    lists = Operation("_foreach_mul_", json.dumps([[[4, 8]] * 200, []]), "", "", "")
    assert described([one, lists, Operation("inductor::triton_0 + triton_1", "[]", "", "", "")]) == [
        "addmm [768], [4, 768]",
        "_foreach_mul_ 200 tensors",
        "triton_0 + triton_1",
    ]
    assert described([replace(one, shapes="odd")]) == ["addmm odd"]


def test_a_book_keeps_costs_by_device_and_forgets_them_by_machine(tmp_path: Path):
    book, shelf = Book(tmp_path), Shelf("here", "GPU:0 NVML", "550", "torch 2.13")
    one, two = (Operation.of(called(op, [8])) for op in ("mm", "add"))
    book.add(shelf, Calibration("GPU:0", 120.0, {one: Cost(1.0, 2.0, 0.1, 2)}, {two: "no such operation"}))
    known = book.add(shelf, Calibration("GPU:0", 121.0, {two: Cost(3.0, 2.0, 0.1, 2)}))
    assert set(known.costs) == {one, two}
    assert known.skipped == {}
    assert book.find(shelf) == known
    assert book.find(Shelf("here", "GPU:0 NVML", "560", "torch 2.13")) is None
    assert book.find(replace(shelf, flags={"deterministic": True})) is None
    assert list(book.all_of("here")) == [shelf.key]
    assert (book.clear("there"), book.clear("here"), book.clear("here")) == (0, 2, 0)
    for damaged in ("{", '{"shelves": []}', '{"shelves": {"here | a": {"format": 1}}}'):
        book.path.write_text(damaged)
        for asks in (lambda: book.find(shelf), lambda: book.all_of("here")):
            with pytest.raises(InputError, match="is damaged"):
                asks()
        assert book.clear("here") == 0
        assert book.find(shelf) is None


def test_what_is_found_anew_takes_the_place_of_what_was_there_replayed_or_not(tmp_path: Path):
    book, shelf = Book(tmp_path), Shelf("here", "GPU:0 NVML", "550", "torch 2.13")
    mm, add, other = (Operation.of(called(op, [8])) for op in ("mm", "add", "mul"))
    spoiled, right = Cost(10.0, 2.0, 0.1, 2), Cost(1.0, 2.0, 0.1, 2)
    book.add(shelf, Calibration("GPU:0", 120.0, dict.fromkeys((mm, add, other), spoiled)))
    known = book.add(shelf, Calibration("GPU:0", 120.0, {mm: right}), anew=(mm, add))
    assert known.costs == {mm: right, other: spoiled}
    assert book.find(shelf) == known


def test_a_book_that_cannot_be_written_says_so_and_costs_are_known(tmp_path: Path):
    (tmp_path / "file").write_text("")
    book, shelf = Book(tmp_path / "file" / "folder"), Shelf("here", "GPU:0 NVML", "550", "torch 2.13")
    found = Calibration("GPU:0", 120.0, {Operation.of(called("mm", [8])): Cost(1.0, 2.0, 0.1, 2)})
    assert book.add(shelf, found) == found
    assert book.problem is not None
    assert "cannot be written" in book.problem.message
    assert "XDG_CACHE_HOME" in book.problem.hint


def test_two_that_write_into_a_book_at_the_same_time_keep_what_both_found(tmp_path: Path):
    shelf = Shelf("here", "GPU:0 NVML", "550", "torch 2.13")
    some = [Operation.of(called("mm", [number])) for number in range(1, 41)]

    def writes(operations: list[Operation]) -> None:
        for one in operations:
            Book(tmp_path).add(shelf, Calibration("GPU:0", 120.0, {one: Cost(1.0, 2.0, 0.1, 2)}))

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(writes, (some[::2], some[1::2])))
    known = Book(tmp_path).find(shelf)
    assert known is not None
    assert set(known.costs) == set(some)


def test_threads_of_a_cpu_keep_its_costs_apart_and_not_a_gpu_s(tmp_path: Path):
    def key(device: str, **flags: Any) -> str:
        path = tmp_path / f"{device} {flags}"
        with RecordingWriter.create(path, RecordingInfo(extra={"flags": {"deterministic": True, **flags}})):
            pass
        return _shelf(Recording.open(path), replace(counter(100), domain=Domain(device, device))).key

    assert len({key("CPU"), key("CPU", threads=1), key("CPU", threads=8)}) == 3
    assert len({key("GPU:0"), key("GPU:0", threads=1), key("GPU:0", threads=8)}) == 1


def test_costs_of_an_estimate_go_with_what_it_takes_a_core_to_draw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with RecordingWriter.create(tmp_path / "r.joulemap", RecordingInfo()) as writer:
        pass
    recording = Recording.open(writer.path)
    keys = {"estimated": set(), "measured": set()}
    for watts in ("4", "30"):
        monkeypatch.setenv("JOULEMAP_WATTS_PER_CORE", watts)
        for provenance, known in keys.items():
            domain = Domain("CPU", "CPU", provenance=provenance)
            known.add(_shelf(recording, replace(counter(100), domain=domain)).key)
    assert [len(known) for known in keys.values()] == [2, 1]


def test_why_nothing_is_calibrated_is_said_by_what_most_have():
    some = [Operation.of(called(op, [8])) for op in ("mm", "add", "mul", "mine::relu")]
    small = [f"Its replays differ too much: {joules} J." for joules in (0, 1, 2)]
    whys = [*small, "torch has no operation mine::relu here: it is the program's own"]
    path = Path("r.joulemap")
    error = nothing_found(Calibration("CPU", 1.0, {}, dict(zip(some, whys, strict=True))), path)
    assert error.message.startswith("None of 4 operations has a cost, 3 of them for this: Its replays differ")
    assert "longer --budget: joulemap calibrate r.joulemap" in error.hint
    error = nothing_found(Calibration("CPU", 1.0, {}, {some[-1]: whys[-1]}), path)
    assert "1 of them for this: torch has no operation mine::relu here" in error.message
    assert "--budget" not in error.hint
    assert "No operation was replayed" in nothing_found(Calibration("CPU", 1.0, {}), path).message


def test_gpus_are_calibrated_first_and_what_never_changes_last() -> None:
    edges = 1_000_000 * np.arange(5)
    package, memory, gpu = (
        PowerTrace(Domain(name, device), edges, watts)
        for name, device, watts in (
            ("package-0", "CPU", [1, 2, 1, 1]),
            ("DRAM", "CPU", [9, 9, 9, 9]),
            ("GPU:0", "GPU:0", [1, 1, 1, 1]),
        )
    )
    assert in_order([memory, package, gpu]) == [gpu, package, memory]


@pytest.mark.parametrize("older", [False, True])
def test_values_of_generated_kernels_go_by_their_code_and_others_by_what_they_were_called_with(
    tmp_path: Path, older: bool
) -> None:
    kernel = Operation("inductor::triton_0", "[]", "[]", "[]", '["/a.py"]')
    product = Operation("mm", "[[4, 4]]", "[[4, 1]]", '["float"]', "[null]")
    held = [Held(kernel.op, "[]", "[]", "[]", (b"a",), kernel.scalars), Held(*_call(product), (b"m", b""))]
    rows = [{name: row for name, row in asdict(one).items() if name != "code" or not older} for one in held]
    with RecordingWriter.create(tmp_path / "r.joulemap", RecordingInfo()) as writer:
        writer.put_table(VALUES, pa.Table.from_pylist(rows))
    elsewhere = replace(kernel, scalars='["/b.py"]')
    asked = [kernel, elsewhere, product, replace(product, op="bmm")]
    found = values(Recording.open(tmp_path / "r.joulemap"), asked)
    assert found.pop(product.key) == [b"m", b""]
    assert older or found == {kernel.key: [b"a"]}


def _call(operation: Operation) -> tuple[str, str, str, str]:
    return operation.op, operation.shapes, operation.strides, operation.types


def test_other_devices_of_the_kind_stay_shared_by_time_and_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Costs are of one model; a GPU that did nothing, and the CPU, are not meant."""
    devices = ["GPU:0", "GPU:1", "CPU"]
    events = EventTrace.from_columns(
        name="net/mm", device=devices, start_ns=[0, 0, 0], end_ns=[S, S, S], kind=["kernel", "kernel", "op"]
    )
    with RecordingWriter.create(tmp_path / "r.joulemap", RecordingInfo()) as writer:
        writer.put_events(events)
        for device in (*devices, "GPU:2"):
            writer.put_power(PowerTrace(Domain(device, device), [0, S], [100.0]))
    recording = Recording.open(tmp_path / "r.joulemap")
    assert left_to_time(Calibration("GPU:1", 1.0, {}), recording) == ["GPU:0"]
    assert left_to_time(Calibration("CPU", 1.0, {}), recording) == []
    _costs(Calibration("GPU:1", 1.0, {}), 0.5, ["GPU:0", "GPU:2"])
    said = "The energy of GPU:0, GPU:2 stays shared by time: nothing that ran there has a cost."
    assert said in " ".join(capsys.readouterr().out.split())
