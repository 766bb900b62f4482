"""Turns the H200 recording into the two files that a user of torch.profiler and of a power logger has.

    python scripts/h200_as_chrome_trace.py ../shared/data/h200 OUT [--steps N]

writes ``OUT/trace.json.gz`` as torch.profiler exports it, and ``OUT/power.csv`` with the GPU's energy
counter. With ``--steps`` only the first N training steps are kept, and the power of one second around.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joulemap.frameworks.kineto_names import guess_categories
from joulemap.labels import Labels

COLUMNS = (
    "start_ns",
    "duration_ns",
    "is_gpu",
    "device_index",
    "resource_id",
    "correlation_id",
    "linked_correlation_id",
    "sequence_nr",
    "fwd_thread_id",
    "start_thread_id",
)
BASE_NS = 1_790_857_026_000_000_000
"""What Kineto wrote as ``baseTimeNanoseconds`` in the quarter of the recording."""

AROUND_NS = 1_000_000_000
LAUNCHED = ("cuda_runtime", "kernel", "gpu_memcpy", "gpu_memset")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, help="keep only the first N training steps")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with np.load(options.source / "bert-torch-events.npz") as data:
        names = Labels(data["name"].astype(np.int32), tuple(data["names"].tolist()))
        numbers = data["num"]
    if options.steps is not None:
        kept = first_steps(names, numbers, options.steps)
        names, numbers = names[kept], numbers[kept]
    write_trace(options.out / "trace.json.gz", names, numbers)
    end_ns = numbers[:, 0] + numbers[:, 1]
    with np.load(options.source / "bert-torch-power.npz") as data:
        write_power(options.out / "power.csv", data["rows"], int(numbers[:, 0].min()), int(end_ns.max()))


def first_steps(names: Labels, numbers: NDArray[np.int64], steps: int) -> NDArray[np.bool_]:
    """Rows from the first step's start to the start of step N; kernels follow their launch in time."""
    start = numbers[:, 0]
    on_cpu = numbers[:, 2] == 0
    marks = [start[on_cpu & (names.codes == names.code(f"STEP#{step}"))].min() for step in (0, steps)]
    return np.asarray((start >= marks[0]) & (start + numbers[:, 1] <= marks[1]))


def write_trace(path: Path, names: Labels, numbers: NDArray[np.int64]) -> None:
    columns = {name: numbers[:, i] for i, name in enumerate(COLUMNS)}
    categories = guess_categories(names, columns["is_gpu"] == 1, columns["linked_correlation_id"])
    header = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H200"}], "record_shapes": 0}
    footer = {"traceName": path.name, "displayTimeUnit": "ms", "baseTimeNanoseconds": BASE_NS}
    # mtime=0: the same recording gives the same bytes.
    with path.open("wb") as file, gzip.GzipFile(fileobj=file, mode="wb", filename="", mtime=0) as packed:
        packed.write(json.dumps(header)[:-1].encode() + b',\n"traceEvents": [\n')
        for number, text in enumerate(events(names, categories, columns)):
            packed.write((",\n" if number else "").encode() + text.encode())
        packed.write(b"\n],\n" + json.dumps(footer)[1:].encode() + b"\n")


def events(names: Labels, categories: Labels, columns: dict[str, NDArray[np.int64]]) -> Iterator[str]:
    rows = zip(names, categories, *(columns[name].tolist() for name in COLUMNS), strict=True)
    for (
        name,
        category,
        start,
        length,
        gpu,
        device,
        resource,
        correlation,
        linked,
        sequence,
        thread,
        _,
    ) in rows:
        args: dict[str, Any] = {}
        op_id = linked if category in LAUNCHED else correlation
        if op_id and category != "overhead":
            args["External id"] = op_id
        if category in LAUNCHED:
            args["correlation"] = correlation
        if gpu and category in LAUNCHED:
            args |= {"device": device, "stream": resource}
        if sequence >= 0:
            args |= {"Sequence number": sequence, "Fwd thread id": thread}
        what = f'"ph": "X", "cat": "{category}", "name": {json.dumps(name)}'
        where = f'"pid": {device}, "tid": {resource}'
        when = f'"ts": {microseconds(start - BASE_NS)}, "dur": {microseconds(length)}'
        yield f'{{{what}, {where}, {when}, "args": {json.dumps(args)}}}'


def microseconds(ns: int) -> str:
    """µs with three decimals, as Kineto prints them."""
    return f"{ns // 1000}.{ns % 1000:03d}"


def write_power(path: Path, rows: NDArray[np.int64], start_ns: int, end_ns: int) -> None:
    """The energy counter as ``t_ns,domain,energy_j``; a reading's time is the middle of its call."""
    middle = rows[:, 0] + (rows[:, 1] - rows[:, 0]) // 2
    kept = (middle >= start_ns - AROUND_NS) & (middle <= end_ns + AROUND_NS)
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("t_ns", "domain", "energy_j"))
        for t_ns, energy_mj in zip(middle[kept].tolist(), rows[kept, 4].tolist(), strict=True):
            writer.writerow((t_ns, "GPU:0", f"{energy_mj / 1000:.3f}"))


if __name__ == "__main__":
    main()
