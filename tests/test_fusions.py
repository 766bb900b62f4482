"""Fusions that were split over their layers, put together again."""

from __future__ import annotations

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


def test_show_leaves_fusions_whole_on_request(recorded: Path) -> None:
    plain = CliRunner().invoke(commands, ["show", str(recorded), "--by", "tensor"])
    whole = CliRunner().invoke(commands, ["show", str(recorded), "--by", "tensor", "--whole-fusions"])
    assert plain.exit_code == whole.exit_code == 0
    assert "net/a/dot" in plain.output
    assert "net/a/dot" not in whole.output
    assert "net/c/tanh" in whole.output


def test_a_recording_without_fusions_says_so(recorded: Path, tmp_path: Path) -> None:
    with RecordingWriter.create(tmp_path / "none.joulemap", joulemap.load(recorded).info) as writer:
        writer.put_events(split(0, 1000))
    with pytest.raises(InputError, match="no fusions"):
        joulemap.account(tmp_path / "none.joulemap", whole_fusions=True)
