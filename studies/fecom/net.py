"""Net energy of a recorded call, twice: by the authors' rules to the letter, and by its true interval."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from joulemap.accounting.calls import Stretches, account_calls
from joulemap.traces import Float64, Int64
from joulemap.units import NS_PER_S
from studies.fecom.dataset import Record

BASELINE_SAMPLES = 40
SAMPLE_S = 0.5


@dataclass(frozen=True, slots=True)
class Net:
    """Joules above the baseline, by domain."""

    cpu_j: float
    ram_j: float
    gpu_j: float

    def of(self, domain: str) -> float:
        return {"CPU": self.cpu_j, "RAM": self.ram_j, "GPU": self.gpu_j}[domain]


def as_published(record: Record) -> Net:
    """The authors' rules: samples from the one nearest to the start up to the one nearest to the end, less
    the mean of the forty before. A sample holds the energy *up to* its time, so this is one sample early.
    """
    perf, smi = _windows(record)
    before = slice(max(perf.start - BASELINE_SAMPLES, 0), perf.start)
    gpu_j = record.gpu_w * SAMPLE_S
    earlier = record.gpu_s < record.times["start_time_perf"]  # the other tool's clock
    return Net(
        _above(record.cpu_j[perf], record.cpu_j[before]),
        _above(record.ram_j[perf], record.ram_j[before]),
        _above(gpu_j[smi], gpu_j[earlier][-BASELINE_SAMPLES:]),
    )


def has_energy(record: Record) -> bool:
    """Whether the authors count a call: one that begins and ends at the same sample is dropped, and so is one
    with another inside, which restarts the logs."""
    return all(window.stop > window.start for window in _windows(record))


def is_covered(record: Record) -> bool:
    """Whether there is power for all of a call and some seconds before it."""
    logged_ns = max(int(record.times[f"sys_start_time_{tool}"]) for tool in ("perf", "nvidia"))
    return record.start_ns - logged_ns > 5 * NS_PER_S


def _windows(record: Record) -> tuple[slice, slice]:
    """The samples of a call, of perf and of nvidia-smi."""
    times = record.times
    perf = [_nearest(record.perf_s, times[f"{edge}_time_perf"]) for edge in ("start", "end")]
    smi = [_nearest(record.gpu_s, times[f"{edge}_time_nvidia"]) for edge in ("start", "end")]
    return slice(*perf), slice(*smi)


def by_overlap(record: Record) -> Net:
    """What joulemap makes of the same samples: the energy of the true interval, less the same 20 s of
    baseline before it."""
    call = Stretches.of(*_one(0, -1, 0, record.start_ns, record.end_ns))
    found = account_calls(call, record.traces(), baseline_s=BASELINE_SAMPLES * SAMPLE_S)
    nets = [0.0 if one.net_j is None else float(one.net_j[0]) for one in found.domains]
    return Net(*nets)


def _one(*values: int) -> tuple[Int64, Int64, Int64, Int64, Int64]:
    call, parent, thread, start, end = (np.array([value], np.int64) for value in values)
    return call, parent, thread, start, end


def _nearest(samples_s: Float64, t_s: float) -> int:
    return int(np.abs(samples_s - t_s).argmin())


def _above(samples_j: Float64, before_j: Float64) -> float:
    baseline_j = float(before_j.mean()) if len(before_j) else 0.0
    return float(samples_j.sum()) - baseline_j * len(samples_j)
