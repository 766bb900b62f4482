"""What recording costs a program: the BERT examples under ``joulemap run``, in turns with plain runs.

    python benchmarks/overhead.py              about half an hour; put nothing else on the machine
    python benchmarks/overhead.py --framework torch --rounds 2 --steps 60

One round runs every mode once, in an order that turns from round to round. The cost is the time of all steps
after warm-up against that of the plain runs; its interval comes from drawing the rounds again, with each
round's modes together.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

HERE = Path(__file__).parent
PROGRAMS = {
    "tensorflow": HERE / "programs" / "bert_timed.py",
    "torch": HERE / "programs" / "bert_torch_timed.py",
}
RESULTS = {
    "tensorflow": HERE / "results" / "overhead.json",
    "torch": HERE / "results" / "overhead_torch.json",
}
WARM_UP = 5
MODES: dict[str, list[str] | None] = {
    "plain": None,
    "metered only (--overhead 0)": ["--overhead", "0"],
    "default (--overhead 1%)": [],
    "everything (--trace-all)": ["--trace-all"],
}
LIMITS = {"default (--overhead 1%)": 1.0}


@dataclass(frozen=True)
class Cost:
    """Of one mode, in percent of the plain runs, with a 95 % interval; and what the recorder itself says."""

    mode: str
    percent: float
    low: float
    high: float
    own_percent: float | None


def measure(timed: Path, mode: list[str] | None, steps: int) -> tuple[float, float | None]:
    """The time of the steps of one run, and the share that tracing took by its own account."""
    with tempfile.TemporaryDirectory() as folder:
        times, recording = Path(folder) / "times.json", Path(folder) / "r.joulemap"
        program = [str(timed), str(times), "--steps", str(steps)]
        ours = [] if mode is None else ["-m", "joulemap", "run", "-q", "-o", str(recording), *mode]
        subprocess.run([sys.executable, *ours, *program], check=True, capture_output=True)
        ends_s = json.loads(times.read_text())["ends_s"]
        share = None
        if mode is not None:
            share = json.loads((recording / "recording.json").read_text())["tracing"]["share"]
        return ends_s[-1] - ends_s[WARM_UP - 1], share


def costs(timed: Path, rounds: int, steps: int) -> list[Cost]:
    """All modes, ``rounds`` times each."""
    took_s = np.zeros((rounds, len(MODES)))
    shares: dict[str, list[float]] = {name: [] for name in MODES}
    names = list(MODES)
    turns = [
        (turn, names[(turn + place) % len(names)]) for turn in range(rounds) for place in range(len(names))
    ]
    for turn, name in track(turns, "Training", console=Console(stderr=True)):
        took_s[turn, names.index(name)], share = measure(timed, MODES[name], steps)
        shares[name] += [] if share is None else [share]
    drawn = np.random.default_rng(0).integers(0, rounds, (4000, rounds))
    found = []
    for place, name in enumerate(names[1:], 1):
        ratio = took_s[drawn, place].sum(axis=1) / took_s[drawn, 0].sum(axis=1)
        low, high = (np.quantile(ratio, [0.025, 0.975]) - 1) * 100
        percent = (took_s[:, place].sum() / took_s[:, 0].sum() - 1) * 100
        own = float(np.mean(shares[name])) * 100 if shares[name] else None
        found.append(Cost(name, float(percent), float(low), float(high), own))
    return found


def within_limits(framework: str, rounds: int, steps: int) -> bool:
    """Measure, print, keep; the verdict is on the lower end, because a busy machine widens the interval."""
    found = costs(PROGRAMS[framework], rounds, steps)
    table = Table(box=None, header_style="bold", title=framework, title_justify="left")
    for column in ("mode", "cost of the steps", "95 % interval", "tracing by its own account", "limit"):
        table.add_column(column)
    for cost in found:
        limit = LIMITS.get(cost.mode)
        own = "" if cost.own_percent is None else f"{cost.own_percent:.2f} %"
        verdict = "" if limit is None else f"{limit:g} %: {'holds' if cost.low <= limit else 'EXCEEDED'}"
        table.add_row(
            cost.mode, f"{cost.percent:+.1f} %", f"{cost.low:+.1f} … {cost.high:+.1f} %", own, verdict
        )
    Console(width=130).print(table)
    content = {"rounds": rounds, "steps": steps, "costs": [vars(cost) for cost in found]}
    RESULTS[framework].write_text(json.dumps(content, indent=1) + "\n")
    return all(cost.low <= LIMITS.get(cost.mode, np.inf) for cost in found)


def main() -> int:
    """The frameworks that were asked for, or all that are installed."""
    parser = argparse.ArgumentParser(description="What recording costs a program.")
    parser.add_argument("--framework", choices=PROGRAMS, action="append")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=150)
    args = parser.parse_args()
    chosen = args.framework or [name for name in PROGRAMS if find_spec(name) is not None]
    held = [within_limits(name, args.rounds, args.steps) for name in chosen]
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
