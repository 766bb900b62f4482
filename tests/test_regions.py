"""What was drawn in stretches of time, and how sure that is."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from joulemap.accounting import unmixed
from joulemap.accounting.regions import Region, regions, with_counts
from joulemap.accounting.student import NORMAL_975
from joulemap.accounting.uncertainty import EDGE_RMS
from joulemap.devices import Domain
from joulemap.processes import ProcessShares
from joulemap.traces import PowerTrace

S = 1_000_000_000
GPU = Domain("GPU:0", "GPU:0", update_period_s=0.1)
POWER = PowerTrace(GPU, np.arange(101) * S // 10, np.full(100, 10.0))
EDGES_J = EDGE_RMS * 0.1 * 100.0
"""Of one stretch at 100 W."""


@pytest.mark.parametrize(
    ("names", "pause_s", "rows"),
    [
        (["a"] * 8, 0.0, [1]),
        (["a"] * 8, 0.05, [1]),  # shorter than an update
        (["a"] * 8, 0.2, [8]),
        (["a", "b"] * 4, 0.0, [4, 4]),
        (["a"] * 4 + ["b"] * 4, 0.0, [1, 1]),
    ],
)
def test_stretches_in_a_row_have_edges_where_another_begins(names, pause_s, rows):
    """Where nothing but edges is unsure: all draw the same."""
    start = np.arange(8) * S
    found = regions(names, start, start + round((1 - pause_s) * S), [POWER], in_a_row=True)
    expected = [EDGES_J * np.sqrt(count) for count in rows]
    assert [one.rms_j for one in found] == pytest.approx(expected, rel=0.02)
    assert sum(one.energy_j for one in found) == pytest.approx(800 * (1 - pause_s))
    assert sum(one.calls for one in found) == 8
    apart = regions(names, start, start + round((1 - pause_s) * S), [POWER])
    assert [one.energy_j for one in apart] == pytest.approx([one.energy_j for one in found])
    assert sum(one.rms_j**2 for one in apart) == pytest.approx(8 * EDGES_J**2, rel=0.02)
    assert found[0].high_j - found[0].energy_j == pytest.approx(NORMAL_975 * found[0].rms_j)


class Run(NamedTuple):
    """Kinds in turns, what each really drew, and what a meter of ten updates a second saw of it."""

    names: list[str]
    start_s: np.ndarray
    end_s: np.ndarray
    truth_j: dict[str, float]
    power: PowerTrace

    def kinds(self, late_s: float = 0.0) -> dict[str, Region]:
        """What is made of it, where the host says that they were so much later."""
        times = [np.rint((one + late_s) * S).astype(np.int64) for one in (self.start_s, self.end_s)]
        return {one.name: one for one in regions(self.names, *times, [self.power], in_a_row=True)}


WATTS = {"prompt": 700.0, "token": 200.0, "train": 450.0}
IDLE_W = 80.0


def in_turns(
    lasts_s: dict[str, float],
    total_s: float,
    *,
    uneven: float = 0.3,
    pause_s: float = 0.0,
    varies: float = 0.0,
    seed: int = 0,
) -> Run:
    """Each lasts about so long, and their power varies by so much from one stretch to the next."""
    random = np.random.default_rng(seed)
    rounds = round(total_s / (sum(lasts_s.values()) + pause_s * len(lasts_s)))
    names = list(lasts_s) * rounds
    took_s = np.tile(list(lasts_s.values()), rounds) * random.uniform(1 - uneven, 1 + uneven, len(names))
    power_w = np.tile([WATTS[name] for name in lasts_s], rounds) * random.normal(1, varies, len(names))
    end_s = random.uniform(0.1, 0.3) + np.cumsum(took_s + pause_s)
    start_s = end_s - took_s
    borders_s = np.ravel([start_s, end_s], order="F")
    level_w = np.ravel([power_w, np.full(len(names), IDLE_W)], order="F")[:-1]
    drawn_j = np.concatenate(([IDLE_W * borders_s[0]], np.diff(borders_s) * level_w, [IDLE_W]))
    until_j = np.concatenate(([0.0], np.cumsum(drawn_j)))
    edges_s = np.arange(0.0, borders_s[-1] + 0.1, 0.1)
    total_j = np.interp(edges_s, np.concatenate(([0.0], borders_s, [borders_s[-1] + 1])), until_j)
    which = np.array(names)
    truth_j = {name: float((took_s * power_w)[which == name].sum()) for name in lasts_s}
    power = PowerTrace(GPU, np.rint(edges_s * S).astype(np.int64), np.diff(total_j))
    return Run(names, start_s, end_s, truth_j, power)


def held(run: Run, found: dict[str, Region]) -> bool:
    return all(found[name].low_j <= truth <= found[name].high_j for name, truth in run.truth_j.items())


TURNS = [(0.01, 0.03), (0.02, 0.08), (0.05, 0.2), (0.2, 1.0), (1.0, 3.0)]


@pytest.mark.parametrize("turns", TURNS)
@pytest.mark.parametrize("varies", [0.0, 0.1])
@pytest.mark.parametrize("total_s", [6.0, 60.0])
def test_intervals_of_kinds_in_turns_hold_what_they_drew(turns, varies, total_s):
    """Prompts of 20 ms that took 84 kJ had 37 ± 2 kJ: at every border their tokens took some of it."""
    runs = [
        in_turns(dict(zip(WATTS, turns, strict=False)), total_s, varies=varies, seed=n) for n in range(20)
    ]
    assert sum(held(run, run.kinds()) for run in runs) >= 19


@pytest.mark.parametrize(("turns", "within"), list(zip(TURNS[1:], [0.5, 0.08, 0.03, 0.02], strict=True)))
def test_kinds_in_turns_are_told_as_well_as_the_meter_lets_them(turns, within):
    run = in_turns(dict(zip(WATTS, turns, strict=False)), 600.0)
    found = run.kinds()
    assert held(run, found)
    for name, truth_j in run.truth_j.items():
        assert NORMAL_975 * found[name].rms_j < within * truth_j


@pytest.mark.parametrize("late_s", [-0.01, 0.01])
@pytest.mark.parametrize("turns", TURNS[1:])
def test_intervals_hold_where_a_host_is_ahead_of_its_device(turns, late_s):
    run = in_turns(dict(zip(WATTS, turns, strict=False)), 60.0)
    assert held(run, run.kinds(late_s))


def test_kinds_whose_turns_are_as_long_as_the_updates_may_have_drawn_anything():
    """All updates are alike. Before, this was known to 2 %."""
    run = in_turns({"prompt": 0.02, "token": 0.08}, 60.0, uneven=0.0)
    found = run.kinds()
    assert held(run, found)
    assert found["prompt"].low_j == 0.0
    assert found["prompt"].rms_j > 0.3 * run.truth_j["prompt"]


def test_three_kinds_and_pauses_are_told_apart():
    for pause_s in (0.0, 5e-5, 0.02):
        for lasts_s in (
            {"prompt": 0.05, "token": 0.2, "train": 0.3},
            {"prompt": 0.3, "token": 2.0, "train": 0.1},
        ):
            run = in_turns(lasts_s, 120.0, pause_s=pause_s, varies=0.05)
            found = run.kinds()
            assert held(run, found)
            for name, truth_j in run.truth_j.items():
                assert NORMAL_975 * found[name].rms_j < 0.3 * truth_j


@pytest.mark.parametrize("most_kinds", [unmixed.MOST_KINDS, 1])
@pytest.mark.parametrize("uneven", [0.0, 0.3])
def test_kinds_that_fill_all_time_have_all_energy(monkeypatch, most_kinds, uneven):
    monkeypatch.setattr(unmixed, "MOST_KINDS", most_kinds)
    run = in_turns({"prompt": 0.05, "token": 0.2, "train": 0.02}, 30.0, uneven=uneven, varies=0.3)
    begin_ns, end_ns = run.power.edges_ns[[0, -1]]
    borders = np.concatenate(([begin_ns], np.rint(run.start_s[1:] * S).astype(np.int64), [end_ns]))
    found = regions(run.names, borders[:-1], borders[1:], [run.power], in_a_row=True)
    assert sum(one.energy_j for one in found) == pytest.approx(run.power.total_j, rel=1e-12)
    assert all(one.energy_j >= 0 for one in found)
    assert held(run, {one.name: one for one in found})


def test_regions_nest_and_what_is_outside_of_them_takes_nothing():
    """``outer`` is all of it, ``inner`` the prompts inside, and once more where it is open twice."""
    run = in_turns({"prompt": 0.05, "token": 0.2}, 60.0)
    start, end = (np.rint(one * S).astype(np.int64) for one in (run.start_s, run.end_s))
    names = ["outer", *["inner" for name in run.names if name == "prompt"]]
    starts, ends = np.append(start[:1], start[::2]), np.append(end[-1:], end[::2])
    inner, outer = regions(names, starts, ends, [run.power])
    assert outer.energy_j == pytest.approx(sum(run.truth_j.values()), rel=2e-3)
    assert outer.rms_j < 0.01 * outer.energy_j
    assert inner.low_j <= run.truth_j["prompt"] <= inner.high_j
    assert inner.rms_j < 0.05 * inner.energy_j
    twice, _ = regions(
        [*names, *names[1:]], np.append(starts, starts[1:]), np.append(ends, ends[1:]), [run.power]
    )
    assert (twice.energy_j, twice.calls) == (pytest.approx(2 * inner.energy_j), 2 * inner.calls)


def test_of_a_processor_regions_have_the_program_s_part():
    """Half of it in the first five seconds, and all of it later."""
    share = ProcessShares.from_columns("cpu", np.array([0, 5, 10]) * S, np.array([0.5, 1.0]))
    power = PowerTrace(Domain("cpu", "CPU:0", update_period_s=0.1), POWER.edges_ns, POWER.energy_j)
    start = np.array([1, 6]) * S
    found = regions(["a", "b"], start, start + S, [power], {"cpu": share})
    assert [one.energy_j for one in found] == pytest.approx([50.0, 100.0])


def test_what_was_counted_in_stretches_of_a_name_is_added_up():
    names = ["decode", "load", "mixed", "units"]
    start = np.arange(4) * S
    found = regions(names, start, start + S, [POWER])
    token = {"unit": "token"}
    rows = [
        {"name": "decode", "count": 6.0, **token},
        {"name": "decode", "count": 2.0, **token},
        {"name": "load", "count": None, "unit": None},
        {"name": "mixed", "count": 3.0, **token},
        {"name": "mixed", "count": None, "unit": None},  # its energy is not that of three tokens
        {"name": "units", "count": 3.0, **token},
        {"name": "units", "count": 1.0, "unit": "answer"},
    ]
    counted = {one.name: (one.count, one.unit) for one in with_counts(found, rows)}
    assert counted == {"decode": (8.0, "token"), **dict.fromkeys(names[1:], (0.0, ""))}
    assert with_counts(found, [{"name": name} for name in names]) == found  # as in older recordings


def test_where_nothing_was_metered_or_named_nothing_is_said():
    nothing = PowerTrace(GPU, [], [])
    start = np.arange(2) * S
    assert [one.energy_j for one in regions(["a", "b"], start, start + S, [nothing])] == [0.0, 0.0]
    assert [one.energy_j for one in regions(["a"], start[:1] + 100 * S, start[:1] + 101 * S, [POWER])] == [
        0.0
    ]
    assert regions([], start[:0], start[:0], [POWER]) == []
    still = PowerTrace(GPU, POWER.edges_ns, np.zeros(100))
    assert [(one.energy_j, one.rms_j) for one in regions(["a"], start[:1], start[:1] + S // 7, [still])] == [
        (0, 0)
    ]


def test_a_step_beside_times_that_differ_keeps_what_is_its_own_by_time():
    """Before it 300 W were drawn, then 100 W, and one step says little: the mean of both would."""
    watts = np.where(np.arange(100) < 50, 300.0, 100.0)
    power = PowerTrace(GPU, POWER.edges_ns, watts / 10)
    [step] = regions(
        ["step"], np.array([6 * S + S // 20]), np.array([6 * S + S // 7]), [power], in_a_row=True
    )
    assert step.energy_j == pytest.approx(100.0 * (1 / 7 - 1 / 20))
