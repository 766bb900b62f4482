"""What docs/pytorch.md says of kernels' names and of the counter, on events and readings that are known."""

from pathlib import Path

import pytest
from studies.gpu import Counter, Named

from joulemap.devices import Domain
from joulemap.recording import Recording, RecordingInfo, RecordingWriter
from joulemap.traces import EventTrace, PowerTrace

S = 1_000_000_000


def test_how_much_of_kernels_time_has_a_name() -> None:
    names = ["bert/layer/mm", "(model)/add", "optimizer/Adam/mul", "(unnamed)/copy_", "compiled region 0/k"]
    events = EventTrace.from_columns(
        name=[*names, "bert/layer/mm"],
        device=["GPU:0"] * 5 + ["CPU:0"],
        start_ns=[0, 10, 20, 30, 40, 0],
        end_ns=[4, 12, 22, 31, 41, 1000],
        kind=["kernel"] * 5 + ["op"],
    )
    assert Named.of(events) == Named(pytest.approx(0.9), pytest.approx(0.6), pytest.approx(0.1))


def test_what_was_metered_is_compared_with_the_counter_in_the_same_time(tmp_path: Path) -> None:
    power = PowerTrace(Domain("GPU:0", "GPU:0"), [0, S, 2 * S, 3 * S], [100.0, 200.0, 100.0])
    with RecordingWriter.create(tmp_path / "r.joulemap", RecordingInfo()) as writer:
        writer.put_power(power)
    read = [(-S, 0.0), (S // 2, 60.0), (S, 110.0), (2 * S, 310.0), (5 * S, 900.0)]
    assert Counter(read).over(Recording.open(tmp_path / "r.joulemap")) == pytest.approx(250 / 250)
    read[1] = (S // 2, 10.0)
    assert Counter(read).over(Recording.open(tmp_path / "r.joulemap")) == pytest.approx(250 / 300)
