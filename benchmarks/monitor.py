"""What the monitor costs at its defaults, with RAPL-like files on a machine whose processors are all busy."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from joulemap.devices import Domain
from joulemap.meters.meter import Channel, Meter, Probe, Quantity
from joulemap.meters.rapl import RaplMeter
from joulemap.meters.schedule import Updates
from joulemap.monitor.child import start_monitor
from joulemap.recording import Recording, RecordingInfo, RecordingWriter

ZONES = {"intel-rapl:0": "package-0", "intel-rapl:0:0": "core", "intel-rapl:0:1": "dram"}

_FEED = """
import os, sys, time
files = [os.open(path, os.O_WRONLY) for path in sys.argv[1:]]
begin = time.monotonic()
while True:
    total = round((time.monotonic() - begin) * 100e6)
    for file in files:
        os.pwrite(file, b"%015d\\n" % total, 0)
    time.sleep(0.001)
"""
_BURN = "while True: pass"


@dataclass(frozen=True)
class MonitorCost:
    """Percent of one core, the time between updates that were seen, and how late readings began. The first
    is never shorter than what feeds the counters lets it be, and that is a process like any other."""

    core_percent: float
    period_p50_ms: float
    period_p99_ms: float
    late_p50_ms: float
    late_p99_ms: float
    missed: int
    reads: int


class GpuLike:
    """A counter that updates every 100 ms and whose reading blocks for 4 ms without using the processor, so
    that what is measured is the monitor's own cost."""

    name = "gpu-like"
    quantity: Quantity = "energy_j"
    wraps_at_j = None

    def __init__(self) -> None:
        self.domain = Domain("GPU:0", "GPU:0", sensor="made up", update_period_s=0.1)
        self.schedule = Updates(0.1)

    def probe(self) -> Probe:
        return Probe(True, "It is made up.")

    def open(self) -> Sequence[Channel]:
        return [self]

    def facts(self) -> Mapping[str, float]:
        return {f"GPU:0 fact_{number}_count": float(number) for number in range(8)}

    def read(self) -> float:
        total_j = time.monotonic_ns() // 100_000_000 * 30.0
        time.sleep(0.004)
        return total_j

    def close(self) -> None:
        """There is nothing to let go of."""


def rapl_like(root: str) -> list[Meter]:
    """The meters that the monitor is started with."""
    return [RaplMeter(Path(root))]


def rapl_and_gpu_like(root: str) -> list[Meter]:
    """The same beside a sensor that blocks."""
    return [RaplMeter(Path(root)), GpuLike()]


def measure(seconds: float = 10.0, loaded: bool = True, meters: str = "rapl_like") -> MonitorCost:
    """Run a monitor for some seconds beside a busy process for each processor."""
    with tempfile.TemporaryDirectory() as folder:
        path, files = Path(folder) / "bench.joulemap", _powercap(Path(folder) / "sys")
        burners = [[sys.executable, "-c", _BURN]] * (os.cpu_count() or 1) if loaded else []
        with (
            _running([sys.executable, "-c", _FEED, *map(str, files)], *burners),
            RecordingWriter.create(path, RecordingInfo()) as writer,
        ):
            handle = start_monitor(
                writer.path, meters=f"monitor:{meters}", arguments={"root": str(Path(folder) / "sys")}
            )
            time.sleep(seconds)
            quality = handle.stop().quality
        assert quality is not None
        (package,) = [trace for trace in Recording.open(path).power() if trace.domain.name == "package-0"]
        periods_ms = np.diff(package.edges_ns) / 1e6
    p50, p99 = np.percentile(periods_ms, [50, 99])
    late_p50_ms, late_p99_ms = 1e3 * quality.late_p50_s, 1e3 * quality.late_p99_s
    return MonitorCost(
        100 * quality.cpu_share,
        float(p50),
        float(p99),
        late_p50_ms,
        late_p99_ms,
        quality.missed,
        quality.reads,
    )


def _powercap(root: Path) -> list[Path]:
    """A package with its cores and its memory, as the kernel shows them."""
    counters = []
    for zone, name in ZONES.items():
        folder = root / "class/powercap" / zone
        folder.mkdir(parents=True)
        (folder / "name").write_text(f"{name}\n")
        (folder / "max_energy_range_uj").write_text("262143328850\n")
        (folder / "energy_uj").write_text(f"{0:015d}\n")
        counters.append(folder / "energy_uj")
    return counters


@contextmanager
def _running(*commands: list[str]) -> Iterator[None]:
    started = [subprocess.Popen(command) for command in commands]
    try:
        yield
    finally:
        for process in started:
            process.send_signal(signal.SIGKILL)
            process.wait()
