"""Eight kernels of an H200 whose true costs in place are known, accounted through the product's own code."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from joulemap.accounting import Footprint, attribute
from joulemap.calibration.cost import TRANSFER_RMS, Cost, Replay, costs, level_power_w
from joulemap.devices import Domain
from joulemap.replaying import way
from joulemap.traces import EventTrace, PowerTrace

DATA = Path(__file__).parents[2] / "shared" / "data" / "h200"
GPU = Domain("GPU:0", "GPU:0")
S = 1_000_000_000


@dataclass(frozen=True)
class Eight:
    """The recorded experiment: eight kernels alone, mixed, and each of them three times in the mix."""

    kernels: dict[str, int]
    phases: list[list[Any]]
    power: PowerTrace

    @classmethod
    def read(cls) -> Eight:
        readings = np.load(DATA / "attrib-power.npz")["rows"]
        middle, energy_mj = (readings[:, 0] + readings[:, 1]) // 2, readings[:, 2]
        updates = np.flatnonzero(np.diff(energy_mj)) + 1
        power = PowerTrace(GPU, middle[updates], np.diff(energy_mj[updates]) / 1e3)
        phases = json.loads(gzip.decompress((DATA / "attrib-phases.json.gz").read_bytes()))
        return cls(json.loads((DATA / "attrib-counts.json").read_text()), phases, power)

    @property
    def names(self) -> list[str]:
        return list(self.kernels)

    def segments(self, phase: str) -> np.ndarray:
        return np.array(next(segments for name, _, _, segments in self.phases if name == phase))

    def step_j(self, phase: str, counted: int = 0) -> float:
        """The energy of one step of a mix; steps are counted by a kernel that it has once."""
        segments = self.segments(phase)
        begin, end = int(segments[0, 1]), int(segments[-1, 2])
        watts = level_power_w(self.power, begin, end)
        assert watts is not None
        return watts * (end - begin) / S / int((segments[:, 0] == counted).sum())

    @cached_property
    def truth_j(self) -> np.ndarray:
        """What a kernel's two further executions add to a step, halved."""
        plain = (self.step_j("mix") + self.step_j("mix2")) / 2
        repeated = [
            self.step_j(f"insitu:{name}", counted=int(number == 0)) for number, name in enumerate(self.names)
        ]
        return (np.array(repeated) - plain) / 2

    @cached_property
    def costs(self) -> dict[str, Cost]:
        alone = [
            Replay(name.removeprefix("steady:"), begin, end, segments[0])
            for name, begin, end, segments in self.phases
            if name.startswith("steady:")
        ]
        return costs(alone, self.power)

    def idle_w(self) -> float:
        levels = [
            level_power_w(self.power, begin, end) for name, begin, end, _ in self.phases if name == "idle"
        ]
        return float(np.mean([level for level in levels if level is not None]))

    def accounted(self, rule: Any) -> Footprint:
        mix = self.segments("mix")
        each_j = np.array([self.costs[name].energy_j * count for name, count in self.kernels.items()])
        events = EventTrace.from_columns(
            name=[self.names[kernel] for kernel in mix[:, 0]],
            device="GPU:0",
            start_ns=mix[:, 1],
            end_ns=mix[:, 2],
        )
        calibrated = {
            "weights": each_j[mix[:, 0]] / ((mix[:, 2] - mix[:, 1]) / S),
            "idle_weight": self.idle_w(),
            "cost_rms": np.full(len(mix), TRANSFER_RMS),
        }
        window = (int(mix[0, 1]), int(mix[-1, 2]))
        return attribute(
            events, self.power, rule, window_ns=window, **(calibrated if rule == "calibrated" else {})
        )

    def errors(self, footprint: Footprint) -> np.ndarray:
        """Relative errors of the shares."""
        found = {row["name"]: row["energy_j"] for row in footprint.to_records()}
        share = np.array([found[name] for name in self.names])
        return share / share.sum() / (self.truth_j / self.truth_j.sum()) - 1


@pytest.fixture(scope="module")
def eight() -> Eight:
    if not DATA.exists():
        pytest.skip("the recordings of the H200 are not beside the repository")
    return Eight.read()


@pytest.mark.external
def test_eight_kernels_by_time_and_by_calibrated_costs(eight: Eight):
    weight = eight.truth_j / eight.truth_j.sum()
    by_time = np.abs(eight.errors(eight.accounted("exact")))
    calibrated = np.abs(eight.errors(eight.accounted("calibrated")))
    assert by_time.mean() == pytest.approx(0.74, abs=0.03)
    assert by_time @ weight == pytest.approx(0.25, abs=0.02)
    assert calibrated.mean() < 0.03
    assert calibrated @ weight < 0.03


@pytest.mark.external
def test_what_eight_kernels_cost_adds_up_to_what_the_mix_took(eight: Eight):
    assert eight.truth_j.sum() / eight.step_j("mix") == pytest.approx(0.97, abs=0.01)
    alone_j = sum(eight.costs[name].energy_j * count for name, count in eight.kernels.items())
    assert 0.9 < alone_j / eight.step_j("mix") < 1.0


@pytest.mark.external
def test_intervals_hold_the_truth_of_most_kernels(eight: Eight):
    footprint = eight.accounted("calibrated")
    rows = {row["name"]: row for row in footprint.to_records()}
    scale = footprint.attributed_j / eight.truth_j.sum()
    inside = [
        rows[name]["low_j"] <= truth * scale <= rows[name]["high_j"]
        for name, truth in zip(eight.names, eight.truth_j, strict=True)
    ]
    assert sum(inside) >= 7
    assert {row["provenance"] for row in rows.values()} == {"calibrated"}


@pytest.mark.external
def test_a_budget_of_ten_seconds_is_enough_for_eight_kernels():
    if not DATA.exists():
        pytest.skip("the recordings of the H200 are not beside the repository")
    from studies.accuracy import budget
    from studies.accuracy.eight import Eight as Recorded

    recorded = Recorded.read()
    takes_s, share = 10.0, budget.truths(recorded)
    covered, off = budget.errors(
        recorded, budget.replayed(recorded, *way(8, takes_s, 2.0, 0.1, 0.0)), recorded.names
    )
    assert covered == pytest.approx(1)
    assert np.abs(off).mean() < 0.03
    assert np.abs(off) @ share < 0.03
    some, worse = budget.errors(recorded, recorded.costs(), recorded.names[:4])
    assert 0.3 < some < 0.8
    assert 0.1 < np.abs(worse) @ share < 0.27
