"""Programs on this machine's GPU as docs/pytorch.md shows them: ``python -m studies.gpu eager compiled``.

Each is run by ``joulemap run`` and shown by ``joulemap show``, beside a reading of the GPU's own energy
counter that joulemap has no part in; with how much of the kernels' time has a name, and is below a module.
"""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import joulemap
from joulemap.program import split
from joulemap.recording import Recording
from joulemap.traces import KINDS, EventTrace

EXAMPLES = Path(__file__).parent.parent / "examples"
BERT = "bert_torch.py --layers 12 --hidden 768 --heads 12 --seq 128 --batch 32 --device cuda --dtype bfloat16"
LLAMA = (
    "llm_torch.py --size 1b --device cuda --dtype bfloat16 --batch 8 --prompt 1024 --tokens 128 --rounds 8"
)
PROGRAMS = {"eager": f"{BERT} --steps 900", "compiled": f"{BERT} --steps 900 --compile", "llama": LLAMA}
DEPTHS = {"eager": 4, "compiled": 4, "llama": 3}
EVERY_S = 0.05
BUCKETS = {
    *("optimizer", "loss", "input pipeline", "communication", "gradient clipping", "gradient scaling"),
    "CUDA graph",
}
"""First parts of names that are no module's."""


@dataclass
class Counter:
    """What a GPU's counter said (epoch ns, joules), read by somebody else than joulemap."""

    read: list[tuple[int, float]] = field(default_factory=list)

    def over(self, recording: Recording) -> float:
        """What joulemap metered of the GPU, over the counter's own difference in the same time."""
        power = next(one for one in recording.power() if one.domain.device.startswith("GPU"))
        begin_ns, end_ns = int(power.edges_ns[0]), int(power.edges_ns[-1])
        inside = [(t_ns, joules) for t_ns, joules in self.read if begin_ns <= t_ns <= end_ns]
        (first_ns, first_j), (last_ns, last_j) = inside[0], inside[-1]
        return power.energy_between(first_ns, last_ns) / (last_j - first_j)


@dataclass(frozen=True)
class Named:
    """Of the kernels' time: with a name, below a module, and in compiled regions without one."""

    named: float
    modules: float
    regions: float

    @classmethod
    def of(cls, events: EventTrace) -> Named:
        kernels = events.kind.codes == KINDS.index("kernel")
        seconds = np.where(kernels, events.end_ns - events.start_ns, 0)
        each = np.bincount(events.name.codes, seconds, minlength=len(events.name.words))
        total, found = max(float(each.sum()), 1.0), dict.fromkeys(("named", "modules", "regions"), 0.0)
        for name, lasted in zip(events.name.words, each.tolist(), strict=True):
            first = split(name)[0]
            found["named"] += lasted * (first != "(unnamed)")
            found["regions"] += lasted * first.startswith("compiled region")
            a_module = not first.startswith(("(", "compiled region")) or first == "(model)"
            found["modules"] += lasted * (a_module and first not in BUCKETS)
        return cls(**{what: lasted / total for what, lasted in found.items()})


def main() -> None:
    """Run each of the programs that are named; all, where none is."""
    parser = argparse.ArgumentParser(description=main.__doc__, allow_abbrev=False)
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help=f"of {', '.join(PROGRAMS)}")
    parser.add_argument("--keep", type=Path, help="folder for the recordings")
    asked = parser.parse_args()
    for name in asked.programs or PROGRAMS:
        with tempfile.TemporaryDirectory() as folder, _counting() as counter:
            path = Path(asked.keep or folder) / f"{name}.joulemap"
            program, *options = PROGRAMS[name].split()
            _said("run", "-o", str(path), str(EXAMPLES / program), *options)
            shown = _said("show", str(path), "--depth", str(DEPTHS[name]))
            regions = _said("show", str(path), "--by", "region") if name == "llama" else ""
            recording = joulemap.load(path)
            named = Named.of(recording.events())
            print(f"\n## {name}: {PROGRAMS[name]}\n\n{shown}\n{regions}")
            print(f"kernel time: named {named.named:.2%}, below a module {named.modules:.2%}, ", end="")
            print(
                f"in regions {named.regions:.2%}; GPU energy over its counter's {counter.over(recording):.4f}"
            )


def _said(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "joulemap", *arguments], check=True, capture_output=True, text=True
    )
    return done.stdout


@contextmanager
def _counting() -> Iterator[Counter]:
    pynvml: Any = importlib.import_module("pynvml")
    pynvml.nvmlInit()
    gpu, counter, over = pynvml.nvmlDeviceGetHandleByIndex(0), Counter(), threading.Event()

    def reads() -> None:
        while not over.wait(EVERY_S):
            joules = pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1e3
            counter.read.append((time.time_ns(), joules))

    thread = threading.Thread(target=reads)
    thread.start()
    try:
        yield counter
    finally:
        over.set()
        thread.join()


if __name__ == "__main__":
    main()
