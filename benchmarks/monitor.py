"""What the monitor costs at its defaults, with RAPL-like files on a machine whose processors are all busy."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from joulemap.meters.meter import Meter
from joulemap.meters.rapl import RaplMeter
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
    """Percent of one core, and the time between readings in milliseconds."""

    core_percent: float
    period_p50_ms: float
    period_p99_ms: float
    missed: int
    reads: int


def rapl_like(root: str) -> list[Meter]:
    """The meters that the monitor is started with."""
    return [RaplMeter(Path(root))]


def measure(seconds: float = 10.0, loaded: bool = True) -> MonitorCost:
    """Run a monitor for some seconds beside a busy process for each processor."""
    with tempfile.TemporaryDirectory() as folder:
        path, files = Path(folder) / "bench.joulemap", _powercap(Path(folder) / "sys")
        burners = [[sys.executable, "-c", _BURN]] * (os.cpu_count() or 1) if loaded else []
        with (
            _running([sys.executable, "-c", _FEED, *map(str, files)], *burners),
            RecordingWriter.create(path, RecordingInfo()) as writer,
        ):
            handle = start_monitor(
                writer.path, meters="monitor:rapl_like", arguments={"root": str(Path(folder) / "sys")}
            )
            time.sleep(seconds)
            quality = handle.stop().quality
        assert quality is not None
        periods_ms = np.diff(Recording.open(path).power()[0].edges_ns) / 1e6
    p50, p99 = np.percentile(periods_ms, [50, 99])
    return MonitorCost(100 * quality.cpu_share, float(p50), float(p99), quality.missed, quality.reads)


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
