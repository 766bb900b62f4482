"""The published measurements of FECoM, as they lie in their archive: one record a measured call."""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from joulemap.devices import Domain
from joulemap.errors import InputError
from joulemap.traces import Float64, Int64, PowerTrace
from joulemap.units import NS_PER_S

ROOT = Path(__file__).parents[2]
FOLDER = ROOT.parent / "shared" / "data" / "fecom"
ARCHIVE, PUBLISHED = FOLDER / "energy-dataset.tar.xz", FOLDER / "published_rq2.csv"

CPU = Domain("CPU", "CPU", sensor="perf stat, every 0.5 s", update_period_s=0.5)
RAM = Domain("DRAM", "CPU", sensor="perf stat, every 0.5 s", update_period_s=0.5)
GPU = Domain("GPU:0", "GPU:0", sensor="nvidia-smi, every 0.5 s", update_period_s=0.5)
DOMAINS = (CPU, RAM, GPU)
_NUMBERS_ALONE = str.maketrans("", "", "[]{}")


@dataclass(frozen=True, eq=False)
class Record:
    """One call of one experiment: power around it on two clocks, perf's (CPU, RAM) and nvidia-smi's."""

    group: str
    project: str
    experiment: int
    number: int
    raw_name: str
    perf_s: Float64
    cpu_j: Float64
    ram_j: Float64
    gpu_s: Float64
    gpu_w: Float64
    gpu_c: Float64
    cpu_c: Float64
    times: Mapping[str, Any]
    sizes: Mapping[str, int | None]

    @property
    def api(self) -> str:
        """The name as the authors cut it: every pair of brackets goes, with what is in it."""
        return re.sub(r"\(.*?\)", "", self.raw_name)

    @property
    def start_ns(self) -> int:
        return int(self.times.get("start_time_execution") or self.times["start_time_server"])

    @property
    def end_ns(self) -> int:
        return int(self.times.get("end_time_execution") or self.times["end_time_server"])

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.start_ns) / NS_PER_S

    @property
    def input_bytes(self) -> int | None:
        """Of the arguments, where the authors' tool could pickle the first of them."""
        args, kwargs = self.sizes.get("args_size"), self.sizes.get("kwargs_size")
        return None if args is None else args + (kwargs or 0)

    def traces(self) -> list[PowerTrace]:
        """The power on one clock, epoch nanoseconds. A row of perf is the energy *up to* its time; a row of
        nvidia-smi is the power from its time on."""
        perf = _epoch_ns(self.times["sys_start_time_perf"], np.concatenate(([0.0], self.perf_s)))
        smi = _epoch_ns(self.times["sys_start_time_nvidia"], self.gpu_s)
        return [
            PowerTrace(CPU, perf, self.cpu_j),
            PowerTrace(RAM, perf, self.ram_j),
            PowerTrace.from_samples(GPU, smi, self.gpu_w),
        ]

    def samples_w(self) -> dict[Domain, Float64]:
        """Power samples of each domain up to the call's start, for the gate."""
        until = self.start_ns
        perf = _epoch_ns(self.times["sys_start_time_perf"], self.perf_s) <= until
        smi = _epoch_ns(self.times["sys_start_time_nvidia"], self.gpu_s) <= until
        seconds = np.diff(np.concatenate(([0.0], self.perf_s)))
        return {
            CPU: (self.cpu_j / seconds)[perf],
            RAM: (self.ram_j / seconds)[perf],
            GPU: self.gpu_w[smi],
        }

    def temperatures_c(self) -> dict[str, float]:
        """The last before the start."""
        smi = _epoch_ns(self.times["sys_start_time_nvidia"], self.gpu_s) <= self.start_ns
        found = {"CPU": self.cpu_c[-1:], "GPU:0": self.gpu_c[smi][-1:]}
        return {device: float(values[0]) for device, values in found.items() if len(values)}


@dataclass(frozen=True, eq=False)
class Dataset:
    """All records, and the raw names that the authors left out of their tables, by project."""

    records: Sequence[Record]
    skipped: Mapping[str, Set[str]]

    def of(self, group: str) -> list[Record]:
        """The records of ``method-level``, ``project-level``, ``data-size`` or ``failed/…``."""
        return [record for record in self.records if record.group == group]


def read(archive: Path = ARCHIVE) -> Dataset:
    """Read the archive in one pass, without unpacking it; files without content are passed over."""
    if not archive.exists():
        raise InputError(f"{archive} is not here.", "It holds what FECoM's authors published.")
    records: list[Record] = []
    skipped: dict[str, Set[str]] = {}
    with tarfile.open(archive, "r|xz") as files:
        for member in files:
            path = PurePosixPath(member.name)
            content = files.extractfile(member) if path.suffix == ".json" else None
            text = content.read().strip() if content is not None else b""
            if text and path.name == "skip_calls.json":
                skipped["/".join(path.parts[-3:-1])] = set(json.loads(text))
            elif text:
                records += _of_file(path, json.loads(text))
    return Dataset(records, skipped)


def _of_file(path: PurePosixPath, content: list[dict[str, Any]]) -> Iterator[Record]:
    parts = path.parts
    group = parts[2] if parts[1] == "energy-dataset" else f"failed/{parts[3]}"
    experiment = int(path.stem.partition("-")[2])
    for number, entry in enumerate(content):
        for name, said in entry.items():
            yield _record(group, "/".join(parts[-3:-1]), experiment, number, name, said)


def _record(
    group: str, project: str, experiment: int, number: int, name: str, said: dict[str, Any]
) -> Record:
    energy = said["energy_data"]
    perf_s, cpu_j = _columns(energy["cpu"], "time_elapsed", "energy (J)")
    (ram_j,) = _columns(energy["ram"], "energy (J)")
    gpu_s, gpu_w, gpu_c = _columns(energy["gpu"], "time_elapsed", "power_draw (W)", "temperature")
    cpu_c = _columns(said["cpu_temperatures"], "temperature")[0] if said["cpu_temperatures"] else np.zeros(0)
    sizes = said.get("input_sizes") or {}
    return Record(
        group=group,
        project=project,
        experiment=experiment,
        number=number,
        raw_name=name,
        perf_s=perf_s,
        cpu_j=cpu_j,
        ram_j=ram_j,
        gpu_s=gpu_s,
        gpu_w=gpu_w,
        gpu_c=gpu_c,
        cpu_c=cpu_c,
        times=said["times"],
        sizes=sizes,
    )


def _columns(table: str, *names: str) -> list[Float64]:
    """Columns of a table in pandas' ``split`` orientation, which is text inside the JSON."""
    head, _, data = table.partition('"data":')
    header = json.loads(head.partition(',"index"')[0] + "}")["columns"]
    numbers = data.translate(_NUMBERS_ALONE).replace("null", "nan")
    rows = np.array(numbers.split(",") if numbers else [], np.float64).reshape(-1, len(header))
    return [rows[:, header.index(name)].copy() for name in names]


def _epoch_ns(start_ns: int, elapsed_s: Float64) -> Int64:
    return np.asarray(int(start_ns) + np.rint(elapsed_s * NS_PER_S).astype(np.int64), np.int64)
