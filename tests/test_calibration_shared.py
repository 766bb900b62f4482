"""Operations that are replayed on a CPU which others use, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from joulemap.calibrating import understood
from joulemap.calibration.book import MOST_OF_OTHERS, Calibration
from joulemap.calibration.operation import Operation
from joulemap.calibration.shared import own_power_of_replays, part_of_others, told_apart
from joulemap.devices import Domain
from joulemap.frameworks.torch.spent import spent
from joulemap.processes import ProcessShares
from joulemap.recording import Recording, RecordingInfo, RecordingWriter
from joulemap.traces import PowerTrace

from .calibrated_recordings import called
from .recordings import T0, unsynced

torch = pytest.importorskip("torch", reason="needs PyTorch")

MS = 1_000_000
CPU = Domain("CPU", "CPU", update_period_s=0.1)
CORE_W, TICK_S = 3.5, 0.01
LASTS_S = (0.2, 0.5, 0.25, 0.5, 0.21, 0.5, 2.0, 0.5, 0.2, 0.5, 0.2, 0.5, 2.0)
"""Each replay follows its building; after three a rest, then the second passes, and a rest."""


class World:
    """Two processors, of which others use ``others`` altogether, and replays one while they are at work."""

    def __init__(self, others: float) -> None:
        self.borders_s = np.cumsum((0.33, *LASTS_S))
        self.names = [Operation.of(called(op, [8])).key for op in ("mm", "add", "gelu")]
        self.others = others

    def own_s(self, at_s: Any) -> Any:
        works = np.array([lasts != 2.0 for lasts in LASTS_S], float)
        return np.interp(at_s, self.borders_s, np.cumsum((0.0, *(works * LASTS_S))))

    def all_s(self, at_s: Any) -> Any:
        return self.own_s(at_s) + self.others * np.asarray(at_s)

    def ticks_s(self, at_s: Any) -> Any:
        return np.floor(self.all_s(at_s) / TICK_S) * TICK_S

    def lines(self) -> list[dict[str, Any]]:
        found, replays = [], iter([*self.names, "", *self.names, ""])
        for number, lasts_s in enumerate(LASTS_S):
            if lasts_s < 0.3:
                continue
            begin_s, end_s = self.borders_s[number : number + 2]
            both = [
                [T0 + round(s * 1e9), float(self.own_s(s)), float(self.ticks_s(s))] for s in (begin_s, end_s)
            ]
            found.append(
                {
                    "key": next(replays),
                    "start_ns": both[0][0],
                    "end_ns": both[1][0],
                    "executions": 100,
                    "marks": [],
                    "spent": both,
                }
            )
        return found

    def power(self) -> PowerTrace:
        edges_s = np.arange(0, self.borders_s[-1] + 0.2, 0.1)
        return PowerTrace(
            CPU, T0 + np.rint(edges_s * 1e9).astype(np.int64), CORE_W * np.diff(self.all_s(edges_s))
        )

    def shares(self) -> ProcessShares:
        """As the monitor says them, once a second."""
        edges_s = np.arange(0, self.borders_s[-1] + 1, 1.0)
        every_s = np.diff(self.all_s(edges_s))
        share = np.divide(
            np.diff(self.own_s(edges_s)), every_s, out=np.zeros(len(every_s)), where=every_s > 0
        )
        return ProcessShares.from_columns("CPU", T0 + np.rint(edges_s * 1e9).astype(np.int64), share)

    def recording(self, path: Path) -> Recording:
        with unsynced(), RecordingWriter.create(path, RecordingInfo(command=["x"])) as writer:
            writer.put_power(self.power())
            writer.put_shares(self.shares())
        return Recording.open(path)


@pytest.mark.parametrize("others", [0.0, 0.4, 1.0])
def test_an_operation_costs_the_same_wherever_in_the_order_it_is_replayed(
    tmp_path: Path, others: float
) -> None:
    """Just before a rest as well, in whose second the monitor saw half as much of it."""
    world = World(others)
    recording, lines = world.recording(tmp_path / "r.joulemap"), world.lines()
    power = own_power_of_replays(recording, world.power(), lines)
    assert power.edges_ns.tolist() == world.power().edges_ns.tolist()  # no interval of the meter is guessed
    found = understood(lines, power, "CPU")
    assert found.skipped == {}
    assert [cost.power_w for cost in found.costs.values()] == pytest.approx([CORE_W] * 3, rel=0.03)
    assert found.idle_w < 0.1
    assert found.others == pytest.approx(others / (1 + others), abs=0.03)
    [*said] = found.remarks()
    assert len(said) == (found.others > MOST_OF_OTHERS)
    assert Calibration.from_json(found.to_json()).others == found.others


def test_what_nobody_shares_is_as_the_meter_saw_it(tmp_path: Path) -> None:
    """A GPU, of which there are neither shares nor readings; and readings that nobody has taken."""
    world = World(1.0)
    gpu = PowerTrace(Domain("GPU:0", "GPU:0"), world.power().edges_ns, world.power().energy_j)
    recording = world.recording(tmp_path / "r.joulemap")
    own = own_power_of_replays(recording, gpu, world.lines())
    assert (own.edges_ns.tolist(), own.energy_j.tolist()) == (gpu.edges_ns.tolist(), gpu.energy_j.tolist())
    without = [{**line, "spent": []} for line in world.lines()]
    assert part_of_others(without) == 0.0
    assert own_power_of_replays(recording, world.power(), without).total_j < world.power().total_j


def test_where_a_device_is_one_of_several_its_own_shares_stay_what_they_are_together() -> None:
    """Readings are of all processors: they tell when, and the monitor how much."""
    shares = ProcessShares.from_columns("CPU:1", [0, 1000 * MS], [0.3])
    readings = np.array([[0, 0.0, 0.0], [500 * MS, 0.4, 0.5], [1000 * MS, 0.4, 1.0]])
    found = told_apart(shares, readings, is_all=False)
    assert found.edges_ns.tolist() == [0, 500 * MS, 1000 * MS]
    assert found.share.tolist() == pytest.approx([0.6, 0.0])


def test_processor_time_is_read_of_a_cpu_alone(tmp_path: Path) -> None:
    [(t_ns, own_s, all_s)] = spent(torch.device("cpu"))
    [(later_ns, later_s, _)] = spent(torch.device("cpu"))
    assert (t_ns, own_s) <= (later_ns, later_s)
    assert all_s > 0
    assert spent(torch.device("cuda")) == []
    assert spent(torch.device("cpu"), tmp_path / "stat") == []
    (tmp_path / "stat").write_text("cpu  100 0 50 9000 20 0 50 7 0 0\ncpu0 1 2 3\n")
    assert spent(torch.device("cpu"), tmp_path / "stat")[0][2] == pytest.approx(2.0)
