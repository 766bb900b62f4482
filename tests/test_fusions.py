"""Fusions that were split over their layers, put together again."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import joulemap
from joulemap.accounting.fusions import ends, left_whole
from joulemap.cli import commands
from joulemap.devices import Domain
from joulemap.errors import InputError
from joulemap.program import FusedPart, Fusion, Program
from joulemap.recording import RecordingInfo, RecordingWriter
from joulemap.traces import EventTrace, PowerTrace
from tests.test_report import data_of

LAYERS = ("net/a/dot", "net/b/add", "net/c/tanh")
FUSION = Fusion(
    "net/c/tanh",
    "tanh",
    "forward",
    tuple(FusedPart(name, "forward", share) for name, share in zip(LAYERS, (0.7, 0.1, 0.2), strict=True)),
)
SHORTER = Fusion("net/b/add", "add", "forward", FUSION.parts[:2])


def split(start_ns: int, long_ns: int, fusion: Fusion = FUSION, lane: str = "0") -> EventTrace:
    until = np.round(ends([part.share for part in fusion.parts]) * long_ns).astype(np.int64)
    return EventTrace.from_columns(
        name=[part.name for part in fusion.parts],
        device="CPU",
        start_ns=start_ns + np.concatenate(([0], until[:-1])),
        end_ns=start_ns + until,
        lane=[lane] * len(until),
        phase="forward",
    )


def one(name: str, start_ns: int, end_ns: int) -> EventTrace:
    return EventTrace.from_columns(
        name=[name], device="CPU", start_ns=[start_ns], end_ns=[end_ns], lane=["0"], phase="forward"
    )


def seen(events: EventTrace) -> list[tuple[int, int, str]]:
    times = zip(events.start_ns.tolist(), events.end_ns.tolist(), strict=True)
    return sorted((*span, name) for span, name in zip(times, events.name, strict=True))


def test_what_was_split_is_whole_again_where_its_result_is() -> None:
    events = EventTrace.joined([split(0, 997), one("net/a/dot", 997, 1000), split(1000, 3), split(1003, 0)])
    whole = [(0, 997, "net/c/tanh"), (997, 1000, "net/a/dot"), (1000, 1003, "net/c/tanh")]
    assert seen(left_whole(events, [FUSION])) == [*whole, (1003, 1003, "net/c/tanh")]


def test_the_longer_of_two_fusions_that_begin_alike_is_the_one() -> None:
    events = EventTrace.joined([split(0, 1000), split(1000, 800, SHORTER)])
    both = left_whole(events, [SHORTER, FUSION])
    assert seen(both) == [(0, 1000, "net/c/tanh"), (1000, 1800, "net/b/add")]


def test_operations_that_only_look_like_parts_stay_apart() -> None:
    meet_elsewhere = [one(name, 10 * number, 10 * number + 10) for number, name in enumerate(LAYERS)]
    elsewhere = replace(split(0, 1000), phase=split(0, 1000).phase.mapped(["backward"] * 5))
    for events in (EventTrace.joined(meet_elsewhere), elsewhere, split(0, 1000).take(slice(0, 2))):
        assert seen(left_whole(events, [FUSION])) == seen(events)


def test_a_trace_without_events_has_none() -> None:
    assert len(left_whole(split(0, 10).take(slice(0, 0)), [FUSION])) == 0


def test_the_program_keeps_its_fusions() -> None:
    program = Program.of({}, [], fusions=[FUSION, SHORTER, FUSION])
    assert program.fusions == (FUSION, SHORTER)
    assert Program.from_json(program.to_json()) == program
    assert Program.joined([program, Program.of({}, [], fusions=[SHORTER])]).fusions == program.fusions
    assert Program.from_json('{"operations": [], "edges": []}').fusions == ()


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    path = tmp_path / "r.joulemap"
    power = PowerTrace(Domain("CPU", "CPU"), [0, 1_000_000], [2.0])
    info = RecordingInfo(window_ns=(0, 1_000_000), domains=[power.domain])
    with RecordingWriter.create(path, info) as writer:
        writer.put_events(split(0, 1_000_000))
        writer.put_power(power)
        writer.put_program(Program.of({}, [], fusions=[FUSION]))
    return path


def test_energy_goes_to_the_layers_or_to_the_result(recorded: Path) -> None:
    def energies(whole_fusions: bool) -> dict[str, float]:
        footprint = joulemap.account(recorded, whole_fusions=whole_fusions)
        footprint.check()
        return {row["name"]: row["energy_j"] for row in footprint.to_records()}

    assert energies(False) == pytest.approx({"net/a/dot": 1.4, "net/b/add": 0.2, "net/c/tanh": 0.4})
    assert energies(True) == pytest.approx({"net/c/tanh": 2.0})


def told(*arguments: object) -> str:
    done = CliRunner().invoke(commands, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize(
    "asked",
    [
        ("show", "--by", "tensor"),
        ("export", "--to", "csv", "-o", "-"),
        ("export", "--to", "csv", "--table", "events", "-o", "-"),
        ("export", "--to", "folded", "-o", "-"),
        ("export", "--to", "dot", "-o", "-", "--depth", "3"),
    ],
)
def test_what_is_asked_of_a_recording_leaves_fusions_whole_on_request(
    recorded: Path, asked: tuple[str, ...]
) -> None:
    command, *options = asked
    apart, whole = (
        told(command, recorded, *options, *more).replace(";", "/") for more in ((), ("--whole-fusions",))
    )
    assert all(name in apart for name in LAYERS)
    assert [name for name in LAYERS if name in whole] == [FUSION.name]


def test_events_of_a_trace_are_whole_fusions_on_request(recorded: Path, tmp_path: Path) -> None:
    slices = {}
    for more in ((), ("--whole-fusions",)):
        trace = tmp_path / f"trace{len(more)}.json.gz"
        told("export", recorded, "--to", "perfetto", "-o", trace, *more)
        events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
        slices[len(more)] = [one["args"]["energy_j"] for one in events if one["ph"] == "X"]
    assert slices[0] == pytest.approx([1.4, 0.2, 0.4])
    assert slices[1] == pytest.approx([2.0])


def test_pages_have_whole_fusions_on_request(recorded: Path, tmp_path: Path) -> None:
    for more, nodes in (((), {"a", "b", "c"}), (("--whole-fusions",), {"c"})):
        page = tmp_path / f"page{len(more)}.html"
        told("report", recorded, "-o", page, *more)
        (held,) = data_of(page.read_text())["recordings"]
        assert {"a", "b", "c"} & set(held["nodes"]["name"]) == nodes


def test_recordings_are_compared_with_whole_fusions_on_request(recorded: Path, unfused: Path) -> None:
    """Those that have none stay as they are."""
    compared = told("compare", recorded, unfused, "--by", "tensor", "--json", "--whole-fusions")
    (one,) = json.loads(compared)["comparisons"]
    base = {row["name"]: (row["base_j"], row["variant_j"]) for row in one["rows"][1:]}
    assert base == {"net/c/tanh": pytest.approx((2.0, 0.4))}
    assert {row["name"] for row in one["only_in_variant"]} == {"net/a/dot", "net/b/add"}


@pytest.fixture
def unfused(recorded: Path, tmp_path: Path) -> Path:
    path, fused = tmp_path / "none.joulemap", joulemap.load(recorded)
    with RecordingWriter.create(path, fused.info) as writer:
        writer.put_events(fused.events())
        for trace in fused.power():
            writer.put_power(trace)
    return path


def test_recordings_without_fusions_say_so(unfused: Path) -> None:
    with pytest.raises(InputError, match="no fusions"):
        joulemap.account(unfused, whole_fusions=True)
    for command, *rest in (("show",), ("export", "--to", "csv"), ("report",), ("compare", unfused)):
        done = CliRunner().invoke(commands, [command, str(unfused), *map(str, rest), "--whole-fusions"])
        assert isinstance(done.exception, InputError), command
        assert "leave out --whole-fusions" in done.exception.hint


def test_calls_have_no_fusions(recorded: Path) -> None:
    done = CliRunner().invoke(commands, ["show", str(recorded), "--by", "call", "--whole-fusions"])
    assert isinstance(done.exception, InputError)
    assert done.exception.hint == "Leave out --whole-fusions."
