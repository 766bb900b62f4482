"""Makes the recording that `joulemap demo` accounts, from the published H200 recording.

    python scripts/make_demo_recording.py H200_FOLDER

It keeps the GPU's events of all 60 steps and the GPU's energy; the CPU's events, of which no power was
recorded, are left out for size.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from joulemap.devices import Domain
from joulemap.frameworks import read_trace
from joulemap.powerlog import read_power
from joulemap.recording import RecordingInfo, RecordingWriter
from joulemap.traces import PowerTrace

HERE = Path(__file__).parent
TARGET = HERE.parent / "src" / "joulemap" / "data" / "bert-h200.joulemap"


def main(source: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        converter = HERE / "h200_as_chrome_trace.py"
        subprocess.run([sys.executable, converter, source, folder], check=True)
        trace = read_trace([Path(folder) / "trace.json.gz"])
        (power,) = read_power(Path(folder) / "power.csv")
    span = trace.events.span_ns
    assert span is not None
    gpu = np.array([word.startswith("GPU") for word in trace.events.device.words])
    domain = Domain("GPU:0", "GPU:0", sensor="NVML total energy", update_period_s=0.1)
    info = RecordingInfo(
        command=["python", "bert.py"],
        source="import",
        host={"gpu": "NVIDIA H200", "driver": "580"},
        versions={"torch": "2.11"},
        created_ns=span[0],
        window_ns=span,
        domains=[domain],
        warnings=["The CPU's events are left out of this recording: no power of the CPU was recorded."],
    )
    with RecordingWriter.create(TARGET, info, overwrite=True) as writer:
        writer.put_events(trace.events.take(gpu[trace.events.device.codes]))
        writer.put_steps(trace.steps)
        writer.put_power(PowerTrace(domain, power.edges_ns, power.energy_j, power.gap))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
