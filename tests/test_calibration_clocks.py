"""Costs at the clocks of the program: a GPU at its power limit runs each operation at others by itself."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as some

from joulemap.calibrating import understood
from joulemap.calibration.book import Calibration
from joulemap.calibration.clocks import DOUBT, RISE, UNKNOWN, Response, at_clocks, response
from joulemap.calibration.cost import Cost
from joulemap.calibration.operation import Operation
from joulemap.calibration.recorded import CLOCK, _clock_mhz
from joulemap.devices import Domain
from joulemap.recording import Recording, RecordingInfo, RecordingWriter
from joulemap.traces import PowerTrace, Steps

GPU = Domain("GPU:0", "GPU:0")
S = 1_000_000_000
HIGHEST_MHZ = 1980.0
PER_W = 7e-4


class World:
    """Operations that each draw so many watts at the highest clocks, a microsecond long there; their energy
    goes with a power of clocks that is in proportion, and the product's time with clocks, too. A counter that
    updates every 100 ms watches."""

    def __init__(self, watts: dict[str, float]) -> None:
        self.watts = watts
        self.keys = {name: Operation(name, "[]", "", "", "").key for name in watts}
        self.edges_ns, self.energy_j = [0], []
        self.lines: list[dict[str, object]] = []

    def joules(self, name: str, mhz: float) -> float:
        return 1e-6 * self.watts[name] * (mhz / HIGHEST_MHZ) ** (PER_W * self.watts[name])

    def runs(self, mhz: float, **many: float) -> list[list[float]]:
        """For a second; so often each in a millisecond at the highest clocks."""
        if "mm" in many:
            many = {name: count * mhz / HIGHEST_MHZ for name, count in many.items()}
        start_ns = self.edges_ns[-1]
        self.energy_j += [100 * sum(count * self.joules(name, mhz) for name, count in many.items())] * 10
        self.edges_ns += [start_ns + S // 10 * tick for tick in range(1, 11)]
        ticks = range(21)
        return [[start_ns + S // 20 * tick, *(50 * tick * n for n in many.values()), mhz] for tick in ticks]

    def alone(self, name: str, mhz: float) -> None:
        marks = self.runs(mhz, **{name: 1000})
        self._line(marks, key=self.keys[name], executions=marks[-1][1])

    def eased(self, name: str, mhz: float) -> None:
        """Half of the time it waits."""
        marks = self.runs(mhz, **{name: 500, "rest": 500})
        wait_s = 1e-6 * HIGHEST_MHZ / mhz
        self._line(marks, eased=self.keys[name], executions=marks[-1][1:3], wait_s=wait_s)

    def idles(self) -> None:
        self._line(self.runs(HIGHEST_MHZ, rest=1000), key="", executions=1)

    def _line(self, marks: list[list[float]], **said: object) -> None:
        self.lines.append({"start_ns": marks[0][0], "end_ns": marks[-1][0], "marks": marks, **said})

    def understood(self) -> Calibration:
        return understood(self.lines, PowerTrace(GPU, self.edges_ns, self.energy_j), "GPU:0")


def calibrated(product_mhz: float, eased_mhz: list[float]) -> tuple[World, Calibration]:
    world = World({"mm": 1000.0, "add": 600.0, "cat": 450.0, "rest": 120.0})
    world.alone("mm", product_mhz)
    for name in ("add", "cat"):
        world.alone(name, HIGHEST_MHZ)
    world.idles()
    for mhz in eased_mhz:
        world.eased("mm", mhz)
    return world, world.understood()


@given(
    product_mhz=some.floats(1400, 1600),
    eased_mhz=some.lists(some.floats(1920, 1980), min_size=1, max_size=2),
    clock_mhz=some.floats(1600, 1980),
)
def test_costs_are_those_at_the_clocks_of_the_program(
    product_mhz: float, eased_mhz: list[float], clock_mhz: float
) -> None:
    """The power at the highest clocks is not seen of what is limited: it is told from what is."""
    world, found = calibrated(product_mhz, eased_mhz)
    shown = {json.loads(one.key)[0]: (one, cost) for one, cost in found.costs.items()}
    assert shown["mm"][1].clock_mhz == pytest.approx(product_mhz)
    assert shown["mm"][1].energy_j == pytest.approx(world.joules("mm", product_mhz))
    assert found.response is not None
    there = found.at(clock_mhz)
    off = {
        name: there.costs[one].energy_j / world.joules(name, clock_mhz) - 1
        for name, (one, _) in shown.items()
    }
    assert off == pytest.approx(dict.fromkeys(off, 0.0), abs=0.03)


def test_how_energy_goes_with_clocks_is_told_by_operations_with_waits_in_between() -> None:
    _, found = calibrated(1540.0, [1920.0, 1950.0])
    assert found.response is not None
    assert found.response.highest_mhz == HIGHEST_MHZ
    assert found.response.per_w == pytest.approx(PER_W, rel=0.1)
    eased = [cost for cost in found.costs.values() if cost.eased_mhz]
    assert [cost.eased_s for cost in eased] == pytest.approx(
        [1e-6 * HIGHEST_MHZ / cost.eased_mhz for cost in eased]
    )
    again = Calibration.from_json(json.loads(json.dumps(found.to_json())))
    assert again == found
    assert calibrated(1540.0, [])[1].response is None
    assert calibrated(1540.0, [1560.0])[1].response is None  # at nearly the same clocks
    assert Calibration("GPU:0", 1.0, {}).joined(found).response == found.response
    assert found.joined(Calibration("GPU:0", 1.0, {})).response == found.response
    _, steeper = calibrated(1540.0, [1960.0])
    (product,) = (one for one, cost in steeper.costs.items() if cost.eased_mhz)
    odd = replace(steeper.costs[product], eased_j=2 * steeper.costs[product].eased_j)
    one = replace(steeper, costs={replace(product, op="odd"): odd}, response=Response(1980.0, 1.0))
    both = found.joined(one).response
    assert both is not None
    assert found.response is not None
    assert both.per_w == pytest.approx((found.response.per_w + 2.9e-3 + found.response.per_w) / 2, rel=0.2)


@pytest.mark.parametrize(("part", "known"), [(1.0, 1), (0.9, 1), (0.6, 0)])
def test_what_takes_less_at_higher_clocks_was_not_metered_well(part: float, known: int) -> None:
    world, _ = calibrated(1540.0, [1980.0])
    world.energy_j[-10:] = [part * joules for joules in world.energy_j[-10:]]
    assert sum(cost.eased_mhz > 0 for cost in world.understood().costs.values()) == known


@given(clock_mhz=some.floats(1500, 1980))
def test_what_was_seen_at_two_clocks_follows_no_law_of_others(clock_mhz: float) -> None:
    """An operation whose energy rises twice as steeply as the law has it, which another one tells."""
    cost = Cost(1.0, 1e-3, 0.01, 2, clock_mhz=1500.0, eased_j=(1980 / 1500) ** 1.4, eased_mhz=1980.0)
    there = at_clocks(cost, clock_mhz, Response(1980.0, 1e-6))
    assert there.energy_j == pytest.approx((clock_mhz / 1500) ** 1.4)
    assert there.clock_mhz == pytest.approx(clock_mhz)
    assert 0.0075 < there.rms < 0.0142  # two passes by itself, and one with waits
    assert asdict(at_clocks(there, clock_mhz, None)) == pytest.approx(asdict(there))
    assert there.seconds == pytest.approx(1e-3 * 1500 / clock_mhz)  # nobody looked
    seen = at_clocks(replace(cost, eased_s=0.9e-3), clock_mhz, None)
    assert 0.9e-3 <= seen.seconds * (1 + 1e-9) <= 1e-3 * (1 + 2e-9)
    beyond = at_clocks(cost, 1300.0, Response(1980.0, 1e-6))
    assert beyond.energy_j < 1.0
    assert beyond.rms > DOUBT * np.log(1500 / 1300)


LEVEL_MHZ = 1750.0


def with_a_level(clock_mhz: float) -> Cost:
    """A product whose energy goes with the 1.4th power of clocks, but not below a level; seen at both."""
    rise = (HIGHEST_MHZ / max(clock_mhz, LEVEL_MHZ)) ** 1.4
    seconds = 1e-3 * HIGHEST_MHZ / clock_mhz
    return Cost(1.0 / rise, seconds, 0.01, 2, clock_mhz, eased_j=1.0, eased_mhz=HIGHEST_MHZ, eased_s=1e-3)


@given(deep=some.floats(1400, 1600), others=some.lists(some.floats(1600, 1900), min_size=2, max_size=9))
def test_energy_goes_with_clocks_down_to_a_level(deep: float, others: list[float]) -> None:
    """Of what was replayed at low clocks alone, the cost at the highest ones is told by others."""
    costs = [with_a_level(mhz) for mhz in (1500.0, 1850.0, *others)]
    law = response(costs)
    assert law is not None
    assert law.level_mhz == pytest.approx(LEVEL_MHZ, rel=0.02)
    alone = replace(with_a_level(deep), eased_j=0.0, eased_mhz=0.0, eased_s=0.0)
    assert at_clocks(alone, HIGHEST_MHZ, law).energy_j == pytest.approx(1.0, abs=0.03)
    assert at_clocks(alone, 1700.0, law).energy_j == pytest.approx(alone.energy_j, rel=0.01)
    seen = with_a_level(deep)
    assert at_clocks(seen, 1900.0, law).energy_j == pytest.approx((1900 / HIGHEST_MHZ) ** 1.4, abs=0.01)
    assert Response.from_json(law.to_json()) == law


@pytest.mark.parametrize("count", [4, 6, 16])
def test_where_a_level_explains_little_there_is_none(count: int) -> None:
    """Energy that goes with clocks all the way down, and noise."""
    rng = np.random.default_rng(1)

    def seen(mhz: float) -> Cost:
        watts = rng.uniform(600, 1000)
        rise = (HIGHEST_MHZ / mhz) ** (watts * 1.5e-3) * float(np.exp(rng.normal(0, 0.02)))
        took_s, eased_j = 1e-3 * HIGHEST_MHZ / mhz, 1e-3 * watts
        return Cost(eased_j / rise, took_s, 0.01, 2, mhz, eased_j, HIGHEST_MHZ, eased_s=1e-3)

    laws = [response([seen(mhz) for mhz in rng.uniform(1450, 1800, count)]) for _ in range(300)]
    assert sum(law is not None and law.level_mhz == 0.0 for law in laws) > 0.97 * len(laws)


def test_a_level_above_all_that_operations_run_at_by_themselves_is_found() -> None:
    costs = [with_a_level(mhz) for mhz in (1450.0, 1500.0, 1520.0, 1560.0, 1600.0)]
    law = response(costs)
    assert law is not None
    assert law.highest_mhz == HIGHEST_MHZ
    assert law.level_mhz == pytest.approx(LEVEL_MHZ, rel=0.02)
    assert at_clocks(costs[1], 1700.0, law).energy_j == pytest.approx(costs[1].energy_j, rel=0.01)


def test_few_operations_tell_of_no_level() -> None:
    law = response([with_a_level(1500.0), with_a_level(1850.0), with_a_level(1600.0)])
    assert law is not None
    assert law.level_mhz == 0.0
    assert Response.from_json({"highest_mhz": 1980.0, "per_w": 1e-3}) == Response(1980.0, 1e-3)


def test_what_is_not_known_of_clocks_makes_a_cost_less_sure() -> None:
    cost = Cost(1.0, 1e-3, 0.01, 2, clock_mhz=1600.0)
    apart = np.log(1980 / 1600)
    untold = at_clocks(cost, 1980.0, None)
    assert untold.energy_j == 1.0
    assert untold.rms == pytest.approx(np.hypot(0.01, UNKNOWN * apart))
    told = at_clocks(cost, 1980.0, Response(1980.0, 1e-6))
    highest_w = 1000.0 * (1980 / 1600) ** RISE
    assert told.energy_j == pytest.approx(np.exp(1e-6 * highest_w * apart))
    assert told.rms == pytest.approx(np.hypot(0.01, DOUBT * apart))
    assert at_clocks(cost, 0.0, None) == cost
    unknown = Cost(1.0, 1e-3, 0.01, 2)
    assert at_clocks(unknown, 1980.0, Response(1980.0, 1e-6)) == unknown


def test_the_clocks_of_a_program_are_those_in_steps_like_the_traced_ones(tmp_path: Path) -> None:
    steps = Steps.from_columns(
        start_ns=[S * number for number in range(6)],
        end_ns=[S * number + S // 2 for number in range(6)],
        traced=[False, True, False, False, False, False],
        label=["train", "train", "train", "train (repeating)", "test", "train"],
    )
    seen = [1000.0, 1980.0, 1700.0, 1800.0, 1500.0, 1600.0, 1710.0]
    t_ns = [-1, *(S * number + S // 4 for number in range(6))]
    path = tmp_path / "r.joulemap"
    with RecordingWriter.create(path, RecordingInfo()) as writer:
        writer.put_steps(steps)
        names = [f"GPU:0 {CLOCK}"] * len(t_ns)
        writer.put_table("facts", pa.table({"t_ns": t_ns, "name": names, "value": seen}))
    recording = Recording.open(path)
    assert _clock_mhz(recording, "GPU:0") == pytest.approx(np.mean([1980, 1700, 1800, 1710]))
    assert _clock_mhz(recording, "GPU:1") == 0.0
