"""What one domain's meter measured, and what of it no event got: idle, other processes, outside."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from joulemap.accounting.uncertainty import EDGE_RMS, Blocks, intervals
from joulemap.devices import Domain
from joulemap.traces import Float64


@dataclass(frozen=True, eq=False)
class Account:
    """One domain's energy beside what its events got: the buckets, in joules and seconds.

    ``covered_s`` is the time that the domain's events share. ``baseline_j`` is what a net footprint leaves
    out; in a gross one it is 0. ``idle_time_based_j`` is the idle energy that sharing by time alone gives.
    ``cost_rms_j`` is how far off calibrated costs may be, all rows together; ``projected_block_j`` what idle
    power makes of the time that work had in untraced steps, by the block of traced ones that it went by.
    """

    domain: Domain
    measured_j: float
    idle_j: float
    idle_s: float
    idle_outside_steps_j: float
    other_processes_j: float
    outside_j: float
    period_s: float
    covered_s: float = 0.0
    baseline_j: float = 0.0
    idle_time_based_j: float = 0.0
    step_j: Float64 = field(default_factory=lambda: np.zeros(0))
    step_s: Float64 = field(default_factory=lambda: np.zeros(0))
    idle_block_j: Float64 = field(default_factory=lambda: np.zeros(0))
    cost_rms_j: float = 0.0
    projected_block_j: Float64 = field(default_factory=lambda: np.zeros(0))

    @property
    def shared_j(self) -> float:
        """What rows and idle have together, a baseline with it."""
        return self.measured_j - self.other_processes_j - self.outside_j

    def idle_interval_j(self, blocks: Blocks) -> tuple[float, float]:
        """The 95 % interval of the idle energy: its spread over steps, that of the work which left it so much
        time in untraced ones, the meter's resolution, and costs, of whose error it has its part."""
        gross_j = self.idle_j + (self.baseline_j * self.idle_s / self.covered_s if self.covered_s else 0.0)
        meter = EDGE_RMS * self.period_s * max(gross_j, 0.0) / max(self.covered_s, 1e-9)
        costs = self.cost_rms_j * gross_j / self.shared_j if self.shared_j > 0 else 0.0
        idle_j, rms_j = np.array([self.idle_j]), np.array([np.hypot(meter, costs)])
        low, high = intervals(idle_j, self.idle_block_j[None, :], blocks, rms_j)
        work_j = self.projected_block_j.sum(keepdims=True)
        least, most = intervals(work_j, self.projected_block_j[None, :], blocks, np.zeros(1))
        low_j = self.idle_j - float(np.hypot(idle_j - low, most - work_j)[0])
        high_j = self.idle_j + float(np.hypot(high - idle_j, work_j - least)[0])
        return (low_j if self.baseline_j else max(low_j, 0.0)), high_j

    def step_rms_j(self) -> Float64:
        """What the meter cannot resolve of a step's energy, as an rms."""
        return EDGE_RMS * self.period_s * self.step_j / np.maximum(self.step_s, 1e-9)
