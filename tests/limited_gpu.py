"""A GPU at its power limit, whose clocks change with whatever is added, as ``joulemap validate`` sees it."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa

from joulemap.devices import Domain
from joulemap.errors import InputError
from joulemap.recorder.experiment import PLAIN, REFERENCE
from joulemap.recording import Recording, RecordingInfo, RecordingWriter
from joulemap.traces import PowerTrace
from joulemap.validating.easing import EASED
from joulemap.validating.metered import Metered
from joulemap.validating.plan import REFERENCES
from joulemap.validating.stretch import Stretch

GPU = Domain("GPU:0", "GPU:0")
S = 1_000_000_000
LIMIT_W, IDLE_W, WAITING_W, HIGHEST_MHZ = 700.0, 120.0, 125.0, 1980.0
FACTS = [(0, "GPU:0 power_limit_w", LIMIT_W)]
STEP = {0: (0.030, 30.0, 1.1), 1: (0.010, 4.0, 0.3), 2: (0.008, 5.0, 0.5)}
"""Seconds and joules of three operations at the highest clocks, together 812 W; and the power of clocks with
which each one's joules go."""
STEPS = 40
BLOCKS = [*((number, EASED) for number in STEP), *[(REFERENCE, 0.0)] * REFERENCES]
"""What a round has: a target, and how much the GPU waits."""


def at_clock(parts: Iterable[tuple[float, float, float]], clock: float) -> tuple[float, float]:
    """Seconds and joules of some operations at a part of the highest clocks."""
    told = [(seconds * clock**-0.4, joules * clock**power) for seconds, joules, power in parts]
    return sum(seconds for seconds, _ in told), sum(joules for _, joules in told)


def at_limit(parts: Iterable[tuple[float, float, float]], wait_s: float = 0.0) -> float:
    """The part of the highest clocks at which the limit is just kept."""
    parts, low, high = list(parts), 0.3, 1.0
    for _ in range(60):
        clock = (low + high) / 2
        seconds, joules = at_clock(parts, clock)
        draws_w = (joules + wait_s * WAITING_W) / (seconds + wait_s)
        low, high = (clock, high) if draws_w < LIMIT_W else (low, clock)
    return clock


OWN = at_limit(STEP.values())
"""The program's own clocks."""
WORK_S, WORK_J = at_clock(STEP.values(), 1.0)
SCALE = at_clock(STEP.values(), OWN)[1] / WORK_J
"""What all of the work takes there, as a part of what it takes at the highest."""
LAWS = {number: OWN**power / SCALE for number, (_, _, power) in STEP.items()}
BUSY = {number: seconds for number, (seconds, _, _) in STEP.items()}
"""As it was traced: after a rest, at the highest clocks."""


def experiment(rounds: int = 4, ease: float = EASED, seed: int = 0) -> tuple[list[Stretch], PowerTrace]:
    """Each operation twice instead of once, in blocks among steps in which nothing is repeated; all of them
    eased, with the blocks that they refer to, or none. In waits a little more is drawn than at rest."""
    stretches, edges, joules, now_ns = [], [0], [], 0
    random = np.random.default_rng(seed)
    blocks = BLOCKS if ease else [(number, 0.0) for number in STEP]
    order = [one for _ in range(rounds) for block in blocks for one in (block, (PLAIN, ease))]
    for target, waits in [(PLAIN, 0.0), *order]:
        parts = [*STEP.values(), *([STEP[target]] if target in STEP else [])]
        wait_s = waits * (WORK_S + BUSY.get(target, 0.0))
        clock = at_limit(parts, wait_s)
        seconds, energy_j = at_clock(parts, clock)
        seconds, energy_j = seconds + wait_s, energy_j * random.normal(1, 0.001) + wait_s * WAITING_W
        end_ns = now_ns + round(STEPS * seconds * S)
        extra, mhz = STEPS if target in STEP else 0, clock * HIGHEST_MHZ
        seen = dict.fromkeys(STEP, STEPS)
        stretches.append(Stretch(target, now_ns, end_ns, STEPS, seen, extra, ease=waits, clock_mhz=mhz))
        edges += np.linspace(now_ns, end_ns, 21)[1:].astype(int).tolist()
        joules += [STEPS * energy_j / 20] * 20
        now_ns = end_ns
    return stretches, PowerTrace(GPU, edges, joules)


def metered(power: PowerTrace) -> Metered:
    """With what is drawn at rest."""
    return Metered(power, IDLE_W)


def recorded(path: Path, facts: list[tuple[int, str, float]]) -> Recording:
    with RecordingWriter.create(path, RecordingInfo()) as writer:
        if facts:
            columns = [list(column) for column in zip(*facts, strict=True)]
            writer.put_table("facts", pa.table(dict(zip(("t_ns", "name", "value"), columns, strict=True))))
    return Recording.open(path)


def broken() -> Recording:
    """As while it is being written."""
    raise InputError("It is not whole.")
