"""What recording costs the steps of a program: short blocks with and without it, in one process.

    python benchmarks/blocks.py                     PyTorch: a BERT of two layers, two minutes
    python benchmarks/blocks.py --framework jax     JAX: a model of two such layers in linen
    python benchmarks/blocks.py --overhead 0        without sessions: hooks and monitor
    python benchmarks/blocks.py --overhead 0 --only inside     hooks alone
    python benchmarks/blocks.py --only monitor                 the monitor alone
    python benchmarks/blocks.py --block 0.25 llama-decode --batch 8     a program of studies/accuracy
    python benchmarks/blocks.py --again one.json two.json      what runs say together whose --json these are

Processes that are run in turns differ by more than recording costs, and so does one machine from minute to
minute. Blocks of a second do not: each recorded one is compared with the plain one beside it. In plain
blocks there is nothing of joulemap in the process, and the monitor is stopped; the recorder's clock, by which
it counts its budget, runs in recorded blocks only. Where even a second makes a difference, blocks of a few
steps tell more; since a monitor that was stopped first makes up for what it missed, that is for what is
``inside`` of the process. CPU time is said beside the time, since it is what a busy
machine disturbs least. A block ends when all its work is done. Steps that were made are counted against those
that were noticed, so that hooks that miss some do not pass as cheap ones.

Where a host is held up now and then for longer than a step takes, the mean says more of that than of
recording. It falls on recorded blocks as on plain ones: so the middle half of all groups of blocks, and
sessions by what they took, say what recording typically costs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from joulemap.monitor.child import start_monitor
from joulemap.recorder.budget import DEFAULT_OVERHEAD
from joulemap.recorder.budget import Cost as Spent
from joulemap.recording import RecordingInfo, RecordingWriter
from switch import Switch

DRAWS = 4000
FEWEST = 10
"""Steps of a block. The one before them is not timed, yet counts in the time that sessions are paid from."""
ALL, INSIDE, MONITOR = "all", "inside", "monitor"
Program = tuple[Callable[[], object], Callable[[], object]]
"""One step of it, and what returns when all work of the steps is done."""


@dataclass(frozen=True)
class Block:
    """Some steps in a row: how long they took, on the clock and on CPUs, and whether one was traced. A step
    returns after its part of ``each_s``, and may go on computing."""

    recorded: bool
    steps: int
    wall_s: float
    cpu_s: float
    traced: bool = False
    each_s: tuple[float, ...] = ()


@dataclass(frozen=True)
class Account:
    """What tracing took by the recorder's own account: of the time of recorded blocks, for what, and what of
    that each session."""

    share: float
    spent: Spent
    sessions: list[Spent]


@dataclass(frozen=True)
class Cost:
    """In percent of the plain blocks, with a 95 % interval."""

    percent: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.percent:+.2f} % ({self.low:+.2f} … {self.high:+.2f} %)"


def alternate(
    program: Program,
    *,
    framework: str,
    seconds: float,
    block_s: float = 1.0,
    fewest: int = FEWEST,
    overhead: float = DEFAULT_OVERHEAD,
    only: str = ALL,
) -> tuple[list[Block], Account]:
    """Blocks of about ``block_s``, four at a time in the order p r r p or r p p r, so that nothing that comes
    back every so many steps always falls on the same kind; and the recorder's account."""
    steps = _fitting(program, block_s, fewest)
    blocks: list[Block] = []
    monitor = _none if only == INSIDE else _monitor
    with tempfile.TemporaryDirectory() as made, monitor(Path(made)) as metering:
        switch = Switch(framework, Path(made), overhead)
        until_s, chance = time.monotonic() + seconds, random.Random(0)
        while time.monotonic() < until_s:
            first = chance.random() < 0.5
            for recorded in (first, not first, not first, first):
                metering(recorded)
                if only == MONITOR:
                    blocks.append(_timed(program, steps, recorded))
                else:
                    blocks.append(_block(program, steps, switch, recorded))
                    _check(blocks, switch)
        return blocks, Account(switch.share(), switch.clock.budget.spent, switch.sessions_spent())


@contextmanager
def _monitor(folder: Path) -> Iterator[Callable[[bool], None]]:
    """A monitor, and what holds it still and lets it go on."""
    writer = RecordingWriter.create(folder / "r.joulemap", RecordingInfo(sys.argv, source="record"))
    monitor = start_monitor(writer.path)

    def metering(goes_on: bool) -> None:
        os.kill(monitor.pid, signal.SIGCONT if goes_on else signal.SIGSTOP)

    yield metering
    metering(True)
    monitor.stop()


@contextmanager
def _none(_: Path) -> Iterator[Callable[[bool], None]]:
    """In the place of one."""
    yield lambda _: None


def _fitting(program: Program, block_s: float, fewest: int) -> int:
    """How many steps take about so long; they warm up meanwhile."""
    step, wait = program
    for count in (5, 5):
        begin_s = time.perf_counter()
        for _ in range(count):
            step()
        wait()
    return max(fewest, round(block_s / ((time.perf_counter() - begin_s) / count)))


def _block(program: Program, steps: int, switch: Switch, recorded: bool) -> Block:
    """What is timed includes sessions to their end, and not that joulemap is put in and taken out again, nor
    the first step after that. It was in and out before a plain block, too."""
    if not recorded:
        switch.in_and_out()
        return _timed(program, steps, recorded)
    before = switch.clock.budget.sessions
    with switch.on():
        block = _timed(program, steps, recorded, switch)
    return replace(block, traced=switch.clock.budget.sessions > before)


def _timed(program: Program, steps: int, recorded: bool, switch: Switch | None = None) -> Block:
    step, wait = program
    with nullcontext() if switch is None else switch.warming_up():
        step()
        wait()
    clock, borders_s = time.perf_counter, [0.0] * steps
    begin_s, begin_cpu_s = clock(), time.process_time()
    for number in range(steps):
        step()
        borders_s[number] = clock()
    wait()
    if switch is not None:
        switch.close()
    wall_s, cpu_s = clock() - begin_s, time.process_time() - begin_cpu_s
    each_s = tuple(round(end_s - from_s, 7) for from_s, end_s in pairwise([begin_s, *borders_s]))
    return Block(recorded, steps, wall_s, cpu_s, each_s=each_s)


def _check(blocks: list[Block], switch: Switch) -> None:
    """Every step of the recorded blocks was noticed, with the first one of each, and no hook failed."""
    made = sum(block.steps + 1 for block in blocks if block.recorded)
    assert switch.steps == made, f"{switch.steps} steps noticed of {made}"
    assert not switch.problems, switch.problems


def costs(blocks: list[Block]) -> dict[str, Cost]:
    """All recorded blocks against the plain ones, and those without a session; by time, and by CPU time."""
    groups = np.array([[one.wall_s, one.cpu_s] for one in blocks]).reshape(-1, 4, 2)
    recorded = np.array([one.recorded for one in blocks]).reshape(-1, 4)
    traced: Any = np.array([one.traced for one in blocks]).reshape(-1, 4).any(axis=1)
    timed = sum(one.steps for one in blocks) / sum(one.steps + 1 for one in blocks)
    found = {}
    for unit, name in enumerate(("time", "CPU time")):
        for cost, kind in ((_cost, name), (_typical_cost, f"{name}, typically")):
            found[kind] = cost(groups[:, :, unit], recorded, traced, timed)
            if not traced.all():
                without = groups[~traced, :, unit], recorded[~traced]
                found[f"{kind}, of blocks without a session"] = cost(*without, traced[~traced], timed)
    return found


def _cost(took_s: Any, recorded: Any, traced: Any, timed: float) -> Cost:
    """The interval comes from drawing again groups of four. How many have a session is not by chance but by
    the budget: those are kept as they are, and vary as the others do. Only a part of the time that sessions
    are paid from is ``timed``."""
    seen = _Seen.of(took_s, recorded, traced)
    plain_s, recorded_s = seen.plain_s[seen.others], seen.recorded_s[seen.others]
    usual = float(recorded_s.sum() / plain_s.sum())
    drawn = np.random.default_rng(1).integers(0, len(plain_s), (DRAWS, len(plain_s)))
    return seen.with_sessions(usual, recorded_s[drawn].sum(axis=1) / plain_s[drawn].sum(axis=1), timed)


def _typical_cost(took_s: Any, recorded: Any, traced: Any, timed: float) -> Cost:
    """The mean of the middle half of groups without a session, and what those with one took longer than that,
    over all. The interval comes from drawing again."""
    seen = _Seen.of(took_s, recorded, traced)
    ratios = (seen.recorded_s / seen.plain_s)[seen.others]
    drawn = np.random.default_rng(1).choice(ratios, (DRAWS, len(ratios)))
    return seen.with_sessions(float(_middle(ratios)), _middle(drawn), timed)


@dataclass(frozen=True)
class _Seen:
    """What groups of blocks took, and which of them have a session and which have none."""

    plain_s: Any
    recorded_s: Any
    sessions: Any
    others: Any

    @classmethod
    def of(cls, took_s: Any, recorded: Any, traced: Any) -> _Seen:
        plain_s, recorded_s = (np.where(which, took_s, 0.0).sum(axis=1) for which in (~recorded, recorded))
        others = np.flatnonzero(~traced if not traced.all() else traced)
        return cls(plain_s, recorded_s, np.setdiff1d(np.arange(len(plain_s)), others), others)

    def with_sessions(self, usual: float, drawn: Any, timed: float) -> Cost:
        """What groups usually take and what that varies by, with what those with a session took longer."""
        longer_s = self.recorded_s - usual * self.plain_s
        chance = np.random.default_rng(0).choice(longer_s[self.others], (DRAWS, len(self.sessions)))
        share = timed / self.plain_s.sum()
        found_s = longer_s[self.sessions].sum()
        low, high = np.quantile(drawn + share * (found_s + chance.sum(axis=1)), [0.025, 0.975])
        return Cost(*(float(one - 1) * 100 for one in (usual + share * found_s, low, high)))


def _middle(values: Any) -> Any:
    """The mean of the middle half."""
    whole = np.sort(values, axis=-1)
    quarter = whole.shape[-1] // 4
    return whole[..., quarter : whole.shape[-1] - quarter].mean(axis=-1)


def said(blocks: list[Block]) -> dict[str, float]:
    """What was seen."""
    plain = [block for block in blocks if not block.recorded]
    return {
        "step_ms": 1e3 * sum(block.wall_s for block in plain) / sum(block.steps for block in plain),
        "blocks": len(blocks),
        "recorded_steps": sum(block.steps for block in blocks if block.recorded),
        "sessions": sum(block.traced for block in blocks),
    }


def said_by(account: Account) -> dict[str, float]:
    """What the recorder says of it itself."""
    return {
        "tracing_percent_by_its_own_account": 100 * account.share,
        **{f"tracing_{name}": took_s for name, took_s in asdict(account.spent).items()},
        "load": os.getloadavg()[0],
    }


def kept(file: Path) -> list[Block]:
    """The blocks of a run."""
    return [Block(**one) for one in json.loads(file.read_text())["every_block"]]


def _torch_program() -> Program:
    """Training of a small BERT, from a config."""
    import torch
    from transformers import BertConfig, BertForPreTraining

    torch.set_num_threads(1)
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

    return step, lambda: None


def _jax_program() -> Program:
    """Training of a model of the same size, called ahead of its results."""
    import jax
    import optax
    from flax import linen

    attention, norm, dense = linen.MultiHeadDotProductAttention, linen.LayerNorm, linen.Dense
    layers = [(attention(num_heads=2), norm(), dense(512), linen.gelu, dense(128), norm()) for _ in range(2)]
    model = linen.Sequential([linen.Embed(1000, 128), *chain(*layers), dense(1000)])
    optimizer = optax.adamw(1e-4)
    tokens = jax.random.randint(jax.random.key(0), (8, 64), 0, 1000)
    weights = model.init(jax.random.key(1), tokens)

    def loss(weights: Any) -> Any:
        answers = model.apply(weights, tokens)
        return optax.softmax_cross_entropy_with_integer_labels(answers, tokens).mean()

    @jax.jit  # type: ignore[untyped-decorator]
    def train_step(weights: Any, state: Any) -> tuple[Any, Any]:
        updates, state = optimizer.update(jax.grad(loss)(weights), state, weights)
        return optax.apply_updates(weights, updates), state

    trained = weights, optimizer.init(weights)

    def step() -> None:
        nonlocal trained
        trained = train_step(*trained)

    return step, lambda: jax.block_until_ready(trained)


def study_program(called: Sequence[str]) -> Program:
    """One of PyTorch, on a GPU where there is one."""
    import torch

    sys.path.append(str(Path(__file__).parents[1]))
    from studies.accuracy.programs import asked_for

    here = torch.cuda.is_available()
    return asked_for(called), torch.cuda.synchronize if here else lambda: None


PROGRAMS = {"torch": _torch_program, "jax": _jax_program}


def main() -> int:
    """Measure, and print; 1 where the lower end is above what was allowed."""
    parser = argparse.ArgumentParser(description="What recording costs a program, in blocks.")
    parser.add_argument("--framework", choices=PROGRAMS, default="torch")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--block", type=float, default=1.0, help="seconds of one block")
    parser.add_argument("--fewest", type=int, default=FEWEST, help="steps of one block, at least")
    parser.add_argument("--overhead", type=float, default=DEFAULT_OVERHEAD)
    parser.add_argument(
        "--only", choices=(ALL, INSIDE, MONITOR), default=ALL, help="what is inside of the process, or beside"
    )
    parser.add_argument("--json", type=Path, help="file for what was found, and every block")
    parser.add_argument("--again", type=Path, nargs="+", help="such files: what they say together")
    parser.add_argument(
        "program", nargs=argparse.REMAINDER, help="of studies/accuracy/programs.py, with its arguments"
    )
    args = parser.parse_args()
    if args.again:
        blocks = [block for file in args.again for block in kept(file)]
        found = said(blocks)
    else:
        blocks, account = alternate(
            study_program(args.program) if args.program else PROGRAMS[args.framework](),
            framework=args.framework,
            seconds=args.seconds,
            block_s=args.block,
            fewest=args.fewest,
            overhead=args.overhead,
            only=args.only,
        )
        found = said(blocks) | said_by(account)
    told = costs(blocks)
    if args.json is not None:
        every = {"costs": {name: asdict(cost) for name, cost in told.items()}}
        args.json.write_text(json.dumps(found | every | {"every_block": [asdict(one) for one in blocks]}))
    for name, value in found.items():
        print(f"{name:48} {value:.4g}")
    for name, cost in told.items():
        print(f"{name:48} {cost}")
    return 0 if told["CPU time"].low <= 100 * args.overhead else 1


if __name__ == "__main__":
    sys.exit(main())
