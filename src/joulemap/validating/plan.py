"""How often a target is repeated, for how many steps, and which one comes next."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from joulemap.recorder.experiment import REFERENCE
from joulemap.validating.target import Target
from joulemap.validating.truth import FEWEST, Truth

EXTRA = 0.5
"""What repetitions are to add to a step: enough to be seen, and so little that the program is the same."""
EASED_EXTRA = 3.0
"""And where the GPU waits after each execution, so that what is added cannot take it to its power limit: the
meter is less sure of such steps. Inside of modules that are called again it waits after operations that are
targets themselves."""
MOST_TIMES = 101
FILLED, MOST_EXTRA = 0.8, 2.0
"""Where a GPU waits, repetitions may fill so much of that, and be so many times the work of a step."""
REFERENCES = 2
"""Blocks that eased ones refer to, for one of each target: on these every truth depends."""
LONGER = 2
"""And these blocks last so many times as long: each begins after a rest, before the GPU is as warm as it is
in the program and its clocks as low."""
ENOUGH = 3
"""Blocks of a target at least, before it is left alone: two may happen to agree."""
PERIODS = 10
"""A block lasts so many updates of the meter."""
SHORTEST_S, SHARED_S = 1.0, 5.0
"""And so many seconds; longer where other processes use the device too, whose part is known once a second."""
STEPS, LONGEST_S = 20, 2.0
"""And so many steps, unless these take longer: where power goes up and down in steps of about the meter's
period, stretches of a second differ by several times as much as those of two."""
REST = 0.8
"""Plain steps after a block, in its length: each is compared with those on both sides."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the user asks for: half an interval relative to the truth, and seconds to spend on it."""

    precision: float = 0.03
    budget_s: float = 300.0
    times: int | None = None
    seed: int = 0
    least_share: float = 0.01
    modules: int = 6
    stop: bool = False


AS_IT_IS = Target(REFERENCE, "reference", "(as it is)", "", (), frozenset(), 1.0, 0.0)
"""Steps in which nothing is repeated, and the GPU does not wait either."""


def extra(busy: float) -> float:
    """What repetitions are to add to the time in which a device works, for ``busy`` a part of a step. A GPU
    that waits is metered the less surely, and has room."""
    return float(np.clip(FILLED * (1 / max(busy, 1e-9) - 1), EXTRA, MOST_EXTRA))


def times(target: Target, wanted: Wanted, added: float = EXTRA) -> int:
    """How often a target is executed instead of once."""
    if target.number == REFERENCE:
        return 1
    if wanted.times is not None:
        return wanted.times
    return min(1 + max(round(added / target.share), 1), MOST_TIMES)


def steps_of_block(step_s: float, rest_s: float, period_s: float, shared: bool = False) -> tuple[int, int]:
    """How many steps make a block, when each takes ``step_s``, and how many are to follow it in which nothing
    is repeated, of ``rest_s`` each."""
    block_s = max(PERIODS * period_s, SHARED_S if shared else SHORTEST_S, min(STEPS * step_s, LONGEST_S))
    return max(round(block_s / step_s), 1), max(round(REST * block_s / rest_s), 1)


class Turns:
    """All targets in random order, then again, without those that are known well enough by then, and without
    the smallest of those that there is no time for twice: one block of a target tells nothing."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._random = random.Random(wanted.seed)
        self._queue: list[Target] = []
        self._ordered: Counter[int] = Counter()
        self.known = 0

    def next(
        self, open_: Collection[Target], truths: Mapping[int, Truth], affords: float = np.inf
    ) -> Target | None:
        """The next one of those that are open, where there is time for so many; None where all are known.
        ``known`` says how many are."""
        every = [one for one in open_ if one.number != REFERENCE]
        references = [one for one in open_ if one.number == REFERENCE] * REFERENCES
        unknown = [one for one in every if not self.is_known(truths.get(one.number))]
        self.known = len(every) - len(unknown)
        still = self._within(unknown, affords - FEWEST * len(references))
        self._queue = [one for one in self._queue if one in still or (one in references and still)]
        if still and not self._queue:
            self._queue = [*still, *references]
            self._random.shuffle(self._queue)
        if not self._queue:
            return None
        chosen = self._queue.pop()
        self._ordered[chosen.number] += 1
        return chosen

    def _within(self, unknown: Sequence[Target], blocks: float) -> list[Target]:
        """Those that so many blocks are enough for: all that are begun, and the largest of the others."""
        kept: list[Target] = []
        for one in sorted(unknown, key=lambda one: (not self._ordered[one.number], -one.share)):
            blocks -= max(FEWEST - self._ordered[one.number], 0)
            if not kept or self._ordered[one.number] or blocks >= 0:
                kept.append(one)
        return kept

    def is_known(self, truth: Truth | None) -> bool:
        """Whether the interval is as narrow as was asked for."""
        return truth is not None and truth.blocks >= ENOUGH and truth.relative <= self._wanted.precision
