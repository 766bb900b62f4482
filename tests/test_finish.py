"""What a recording says of how it went, from the journal that its program has left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import joulemap
from joulemap.devices import Domain
from joulemap.processes import ProcessShares
from joulemap.recorder.finish import HELPERS, TOO_SOON, WORKERS, _compiled_ns, finish
from joulemap.recorder.journal import Journal
from joulemap.recorder.steps import COMPILED, TRACED, UNTRACED
from joulemap.recorder.story import Story
from joulemap.recording import RecordingAppender, RecordingInfo, RecordingWriter
from joulemap.recording.folder import RAW

MS = 1_000_000
VERSION = ("version", ["jax", "0.10.2"])
STEPS = [("step", [10 * n * MS, 10 * (n + 1) * MS, "train", UNTRACED if n else COMPILED]) for n in range(3)]


def warnings(
    folder: Path,
    *lines: tuple[str, Any],
    overhead: float | None = 0.01,
    share: float = 0.0,
    devices: tuple[str, ...] = (),
    shares: ProcessShares | None = None,
) -> Any:
    info = RecordingInfo(domains=[Domain(device, device) for device in devices])
    writer = RecordingWriter.create(folder / "r.joulemap", info, overwrite=True)
    (writer.path / RAW).mkdir(exist_ok=True)
    if shares is not None:
        with RecordingAppender(writer.path) as monitor:
            monitor.append_shares(shares)
    journal = Journal(writer.path / RAW)
    journal.put("start", {"t_ns": 0})
    for what, content in lines:
        journal.put(what, content)
    journal.put("end", {"t_ns": 100 * MS, "tracing_share": share})
    journal.close()
    finish(writer, 100 * MS, overhead=overhead)
    return joulemap.load(writer.path).info.warnings


def test_a_few_steps_that_were_not_traced_say_how_they_can_be(tmp_path: Path) -> None:
    assert warnings(tmp_path, VERSION, *STEPS) == [TOO_SOON]


def test_what_could_not_be_traced_or_was_not_to_be_says_nothing_of_that(tmp_path: Path) -> None:
    busy = ("warning", "jax could not be traced for a while.")
    assert warnings(tmp_path, VERSION, *STEPS, overhead=0.0) == []
    assert warnings(tmp_path, VERSION, *STEPS, overhead=None) == []
    assert warnings(tmp_path, *STEPS) == []  # steps that the program marks, of no framework
    assert warnings(tmp_path, VERSION) == []
    assert warnings(tmp_path, VERSION, busy, *STEPS) == [busy[1]]


def test_where_the_energy_of_workers_is_is_said_where_cpus_have_any(tmp_path: Path) -> None:
    fed = ("workers", "torch")
    assert warnings(tmp_path, fed, devices=("GPU:0", "CPU")) == [WORKERS]
    assert warnings(tmp_path, VERSION, fed, *STEPS, devices=("CPU:0",)) == [TOO_SOON, WORKERS]
    assert warnings(tmp_path, fed, devices=("GPU:0",)) == []
    assert warnings(tmp_path, devices=("CPU:0",)) == []
    helped = ("helpers", "torch")
    assert warnings(tmp_path, helped, devices=("CPU:0",)) == [HELPERS]
    assert warnings(tmp_path, helped, devices=("GPU:0",)) == []


@pytest.mark.parametrize(("loading", "said"), [([0.0, 0.25], []), ([0.0, 0.0], [WORKERS])])
def test_nothing_is_to_be_said_of_workers_that_are_known_apart(
    tmp_path: Path, loading: list[float], said: list[str]
) -> None:
    shares = ProcessShares.from_columns("CPU:0", [0, MS, 2 * MS], [0.5, 0.5], loading)
    assert warnings(tmp_path, ("workers", "torch"), devices=("CPU:0",), shares=shares) == said


@pytest.mark.parametrize(
    ("share", "said"), [(0.0099, []), (0.01001, []), (0.026, ["Tracing took 2.6 % of the time"])]
)
def test_what_tracing_took_is_said_where_it_was_not_allowed(
    tmp_path: Path, share: float, said: list[str]
) -> None:
    found = warnings(tmp_path, share=share)
    assert [warning.split(",")[0] for warning in found] == said


def test_steps_that_compiled_are_told_on_the_clock_of_their_session() -> None:
    """Which somebody may have set meanwhile; those that were not traced are in no trace."""

    def session(opened_ns: int, closed_ns: int, ahead_ns: int) -> dict[str, int]:
        return {"opened_ns": opened_ns, "closed_ns": closed_ns, "clock_ahead_ns": ahead_ns}

    steps = [(0, 10, "train", COMPILED), (20, 30, "train", TRACED), (30, 40, "train", COMPILED)]
    story = Story(steps=[*steps, (60, 70, "train", COMPILED)])
    story.sessions = [session(15, 45, 7), session(55, 75, 2_000 * MS)]
    assert _compiled_ns(story) == [(30, 40), (60 + 2_000 * MS, 70 + 2_000 * MS)]
