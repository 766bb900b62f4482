"""A GPU at its power limit, where truths are not what they seem."""

from pathlib import Path

import pyarrow as pa

from joulemap.devices import Domain
from joulemap.recording import Recording, RecordingInfo, RecordingWriter
from joulemap.traces import PowerTrace
from joulemap.validating.limit import remarks
from joulemap.validating.truth import Stretch

GPU = Domain("GPU:0", "GPU:0")
S = 1_000_000_000
FACTS = [
    (0, "GPU:0 power_limit_w", 700.0),
    (0, "GPU:0 sm_clock_mhz", 1980.0),
    (S, "GPU:0 sm_clock_mhz", 1410.0),
]


def test_it_is_said_where_plain_steps_draw_all_that_the_gpu_may(tmp_path: Path) -> None:
    recording = recorded(tmp_path / "r.joulemap", FACTS)
    (said,) = remarks(recording, drawing(690.0), PLAINLY)
    assert said.startswith("GPU:0 drew 98.6 % of the 700 W that it may, at clocks of 1410 to 1980 MHz: ")
    assert remarks(recording, drawing(500.0), PLAINLY) == []
    assert remarks(recording, drawing(690.0), []) == []


def test_a_gpu_that_does_not_tell_its_limit_has_none(tmp_path: Path) -> None:
    assert remarks(recorded(tmp_path / "r.joulemap", []), drawing(690.0), PLAINLY) == []


PLAINLY = [Stretch(target=-1, start_ns=0, end_ns=4 * S, steps=40, seen={}, extra=0)]


def drawing(watts: float) -> PowerTrace:
    return PowerTrace(GPU, [number * S // 10 for number in range(50)], [watts / 10] * 49)


def recorded(path: Path, facts: list[tuple[int, str, float]]) -> Recording:
    with RecordingWriter.create(path, RecordingInfo()) as writer:
        if facts:
            columns = [list(column) for column in zip(*facts, strict=True)]
            writer.put_table("facts", pa.table(dict(zip(("t_ns", "name", "value"), columns, strict=True))))
    return Recording.open(path)
