"""What recording costs the steps of a PyTorch program: short blocks with and without it, in one process.

    python benchmarks/blocks.py                     BERT of two layers, two minutes

Processes that are run in turns differ by more than recording costs, and so does one machine from minute to
minute. Blocks of a second do not: each recorded one is compared with the plain one beside it. In plain
blocks there is nothing of joulemap in the process, and the monitor is stopped; the recorder's clock, by which
it counts its budget, runs in recorded blocks only. CPU time is said beside the time, since it is what a busy
machine disturbs least.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from joulemap.frameworks.adapter import StepListener
from joulemap.frameworks.torch.adapter import TorchAdapter
from joulemap.monitor.child import start_monitor
from joulemap.recorder.budget import DEFAULT_OVERHEAD, Plan
from joulemap.recorder.journal import Journal
from joulemap.recorder.sessions import Sessions
from joulemap.recorder.steps import StepClock
from joulemap.recording import RecordingInfo, RecordingWriter

DRAWS = 4000


@dataclass(frozen=True)
class Block:
    """Some steps in a row: how long they took, on the clock and on CPUs, and whether one was traced."""

    recorded: bool
    steps: int
    wall_s: float
    cpu_s: float
    traced: bool


@dataclass(frozen=True)
class Cost:
    """In percent of the plain blocks, with a 95 % interval."""

    percent: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.percent:+.2f} % ({self.low:+.2f} … {self.high:+.2f} %)"


class Listener:
    """An adapter that can be taken out of the process and put back; it goes on counting its sessions."""

    name, watches = TorchAdapter.name, TorchAdapter.watches

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sessions: Counter[bool] = Counter()
        self._adapter = TorchAdapter(folder)

    @property
    def problems(self) -> list[str]:
        return self._adapter.problems

    def put_in(self, steps: StepListener) -> None:
        """Hook into torch, as at the start of a recording."""
        self._adapter = TorchAdapter(self._folder)
        for module in self.watches:
            if module in sys.modules:
                self._adapter.attach(module, steps)
        assert self._adapter._profiler is not None
        self._adapter._profiler._sessions = self._sessions

    def attach(self, module: str, steps: StepListener) -> None:
        self._adapter.attach(module, steps)

    def start(self, folder: Path) -> None:
        self._adapter.start(folder)

    def stop(self) -> None:
        self._adapter.stop()

    def detach(self) -> None:
        self._adapter.detach()


class Switch:
    """The inside of a recording, with a clock that stands still while it is out."""

    def __init__(self, folder: Path, overhead: float) -> None:
        self._adapter = Listener(folder / "torch")
        self._journal = Journal(folder)
        self._now_ns, self._since_ns = time.time_ns(), 0
        self.sessions = Sessions(folder, self._journal, self._time_ns)
        self.sessions.add(self._adapter)
        self.clock = StepClock(Plan(overhead), self.sessions, self._journal, self._time_ns)

    def _time_ns(self) -> int:
        return self._now_ns + (time.monotonic_ns() - self._since_ns if self._since_ns else 0)

    @contextmanager
    def on(self) -> Iterator[None]:
        """Record meanwhile."""
        self._adapter.put_in(self.clock)
        self._since_ns = time.monotonic_ns()
        yield
        self._now_ns, self._since_ns = self._time_ns(), 0
        self._adapter.detach()

    def close(self) -> None:
        """End a session that is open: it belongs to the block."""
        if self.sessions.open:
            self.clock._end_session()

    def share(self) -> float:
        """What tracing has cost by the recorder's own account, of the time of recorded blocks."""
        return self.clock.budget.share(self._time_ns() / 1e9)


def alternate(
    step: Callable[[], object],
    wait: Callable[[], None],
    *,
    seconds: float,
    block_s: float = 1.0,
    overhead: float = DEFAULT_OVERHEAD,
) -> tuple[list[Block], float]:
    """Blocks of about ``block_s``, plain and recorded in the order p r r p; ``wait`` returns when all work
    of the steps is done. Also what tracing took by its own account."""
    steps = _fitting(step, wait, block_s)
    blocks: list[Block] = []
    with tempfile.TemporaryDirectory() as made:
        writer = RecordingWriter.create(Path(made) / "r.joulemap", RecordingInfo(sys.argv, source="record"))
        monitor = start_monitor(writer.path)
        switch = Switch(Path(made), overhead)
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s or len(blocks) % 4:
            recorded = len(blocks) % 4 in (1, 2)
            os.kill(monitor.pid, signal.SIGCONT if recorded else signal.SIGSTOP)
            blocks.append(_block(step, wait, steps, switch if recorded else None))
        os.kill(monitor.pid, signal.SIGCONT)
        monitor.stop()
        return blocks, switch.share()


def _fitting(step: Callable[[], object], wait: Callable[[], None], block_s: float) -> int:
    """How many steps take about so long; they warm up meanwhile."""
    for count in (5, 5):
        begin_s = time.perf_counter()
        for _ in range(count):
            step()
        wait()
    return max(3, round(block_s / ((time.perf_counter() - begin_s) / count)))


def _block(step: Callable[[], object], wait: Callable[[], None], steps: int, switch: Switch | None) -> Block:
    """What is timed includes sessions to their end, and not that joulemap is put in and taken out again."""
    before = 0 if switch is None else switch.clock.budget.sessions
    with nullcontext() if switch is None else switch.on():
        step()
        wait()
        begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
        for _ in range(steps):
            step()
        wait()
        if switch is not None:
            switch.close()
        wall_s, cpu_s = time.perf_counter() - begin_s, time.process_time() - begin_cpu_s
    traced = switch is not None and switch.clock.budget.sessions > before
    return Block(switch is not None, steps, wall_s, cpu_s, traced)


def costs(blocks: list[Block]) -> dict[str, Cost]:
    """All recorded blocks against the plain ones, and those without a session; by time, and by CPU time. The
    interval comes from drawing again groups of four (plain, recorded, recorded, plain)."""
    groups = np.array([[[one.wall_s, one.cpu_s] for one in blocks]]).reshape(-1, 4, 2)
    untraced = np.array([not one.traced for one in blocks]).reshape(-1, 4).all(axis=1)
    found = {}
    for unit, name in enumerate(("time", "CPU time")):
        found[name] = _cost(groups[:, :, unit])
        if untraced.any():
            found[f"{name} of blocks without a session"] = _cost(groups[untraced, :, unit])
    return found


def _cost(took_s: Any) -> Cost:
    plain, recorded = took_s[:, [0, 3]].sum(axis=1), took_s[:, [1, 2]].sum(axis=1)
    drawn = np.random.default_rng(0).integers(0, len(plain), (DRAWS, len(plain)))
    ratio = recorded[drawn].sum(axis=1) / plain[drawn].sum(axis=1)
    low, high = (np.quantile(ratio, [0.025, 0.975]) - 1) * 100
    return Cost(float((recorded.sum() / plain.sum() - 1) * 100), float(low), float(high))


def said(blocks: list[Block], share: float) -> dict[str, Any]:
    """All that was found, for people and for JSON."""
    steps = sum(block.steps for block in blocks if block.recorded)
    plain = [block for block in blocks if not block.recorded]
    return {
        "step_ms": 1e3 * sum(block.wall_s for block in plain) / sum(block.steps for block in plain),
        "blocks": len(blocks),
        "recorded_steps": steps,
        "sessions": sum(block.traced for block in blocks),
        "tracing_percent_by_its_own_account": 100 * share,
        "load": os.getloadavg()[0],
        "costs": {name: asdict(cost) for name, cost in costs(blocks).items()},
    }


def _bert() -> Callable[[], object]:
    """A step of training of a small BERT, from a config."""
    import torch
    from transformers import BertConfig, BertForPreTraining

    torch.manual_seed(0)
    size = {"hidden_size": 128, "num_attention_heads": 2, "intermediate_size": 512, "vocab_size": 1000}
    model = BertForPreTraining(BertConfig(num_hidden_layers=2, **size))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(0, 1000, (8, 64))
    following = torch.zeros(8, dtype=torch.long)

    def step() -> None:
        optimizer.zero_grad()
        model(input_ids=tokens, labels=tokens, next_sentence_label=following).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def main() -> int:
    """Measure, and print; 1 where the lower end is above what was allowed."""
    parser = argparse.ArgumentParser(description="What recording costs a PyTorch program, in blocks.")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--block", type=float, default=1.0, help="seconds of one block")
    parser.add_argument("--overhead", type=float, default=DEFAULT_OVERHEAD)
    args = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    blocks, share = alternate(
        _bert(), lambda: None, seconds=args.seconds, block_s=args.block, overhead=args.overhead
    )
    found = said(blocks, share)
    for name, value in found.items():
        if name != "costs":
            print(f"{name:36} {value:.4g}")
    for name, cost in costs(blocks).items():
        print(f"{name:36} {cost}")
    return 0 if costs(blocks)["CPU time"].low <= 100 * args.overhead else 1


if __name__ == "__main__":
    sys.exit(main())
