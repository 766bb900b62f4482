"""Six TensorFlow programs, run under ``joulemap run --calls``: what their calls explain of the whole."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from joulemap.accounting.calls import CallFootprint
from joulemap.api import load
from joulemap.baselines import Baselines
from joulemap.call_energy import account_calls_of
from joulemap.meters.estimate import EstimateMeter
from joulemap.recording import Recording
from joulemap.traces import PowerTrace
from joulemap.units import NS_PER_S
from studies.fecom.dataset import ROOT

PROGRAMS = (
    "image_cnn",
    "text_classifier",
    "autoencoder",
    "custom_loop",
    "model_factory",
    "data_pipeline",
)
FOLDER = ROOT / "examples" / "calls"


@dataclass(frozen=True)
class Explained:
    """A program's net energy: its calls', and the rest by name. ``top`` is its most expensive API."""

    program: str
    calls: int
    sites: int
    calls_j: float
    rest_j: Mapping[str, float]
    top: str
    top_j: float
    provenance: str

    @property
    def whole_j(self) -> float:
        return self.calls_j + sum(self.rest_j.values())

    @property
    def share(self) -> float:
        """What the calls explain of the program's net energy."""
        return self.calls_j / self.whole_j if self.whole_j else 0.0


def record(program: str, folder: Path, arguments: tuple[str, ...] = ()) -> Path:
    """Run a program under joulemap, where its recording is not there yet."""
    path = folder / f"{program}.joulemap"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        options = ["run", "-q", "--overhead", "0", "--calls", "tensorflow", "-o", str(path)]
        script = str(FOLDER / f"{program}.py")
        subprocess.run([sys.executable, "-m", "joulemap", *options, script, *arguments], check=True)
    return path


def explained(path: Path) -> Explained:
    """What a recording's calls explain."""
    recording = load(path)
    calls, found = account_calls_of(recording, idle_w(recording))
    net, rest = found.net_j, found.rest_net_j()
    if net is None or rest is None:
        raise ValueError(f"{path} has no baseline: joulemap calibrate --idle finds one.")
    by_api: dict[str, float] = {}
    for api, joules in zip(calls.api, net.tolist(), strict=True):
        by_api[api] = by_api.get(api, 0.0) + joules
    top = max(by_api, key=lambda api: by_api[api], default="")
    return Explained(
        program=path.stem,
        calls=len(calls),
        sites=len(set(calls.site.tolist())),
        calls_j=float(net.sum()),
        rest_j=rest,
        top=top,
        top_j=by_api.get(top, 0.0),
        provenance=_provenance(found),
    )


def idle_w(recording: Recording) -> dict[str, float]:
    """The idle power of each domain: as calibrated, else what the estimate adds for time alone."""
    store, watts = Baselines(), dict[str, float]()
    for trace in recording.power():
        stored = store.find(str(recording.info.host.get("machine", "")), trace.domain)
        if stored is not None:
            watts[trace.domain.name] = stored.baseline.power_w
        elif trace.domain.provenance == "estimated":
            watts[trace.domain.name] = _estimated_idle_w(trace)
    return watts


def _estimated_idle_w(trace: PowerTrace) -> float:
    """Of CPUs as the model has it; memory is estimated at constant power, and that is all idle."""
    if trace.domain.name == "DRAM":
        return trace.total_j * NS_PER_S / int(trace.edges_ns[-1] - trace.edges_ns[0])
    return EstimateMeter().model().energy_j(seconds=1.0, busy_s=0.0)


def _provenance(found: CallFootprint) -> str:
    return " and ".join(sorted({one.domain.provenance for one in found.domains}))
