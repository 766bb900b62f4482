"""How sure an energy is: its spread over steps, and what the meter can resolve.

The spread comes from a block bootstrap: steps in a row are alike, so stretches of them are drawn again,
not single steps; and steps of different kinds (training, testing) are drawn each from their own. The
meter's part is the resolution at the edges: a counter that updates every ``T`` seconds measures a span
``w`` to an rms of ``0.41 T/w`` of its energy (two edges, each uniformly off by up to one period). The two
are independent and add as squares.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joulemap.accounting.student import NORMAL_975, student_975
from joulemap.traces import Float64, Steps

CONFIDENCE = 0.95
EDGE_RMS = 6**-0.5
"""Rms of the difference of two uniform errors of one period each: 0.41 periods."""

_DRAWS = 400
_ROWS_AT_ONCE = 4096
_MOST_BLOCKS = 100
_FEW_STEPS = 24


@dataclass(frozen=True, eq=False)
class Blocks:
    """Stretches of traced steps of one kind: the block of each step (-1 for none), and of each block its
    number of steps and its kind.

    A block is about the cube root of the number of steps long, the usual choice where steps are
    correlated over a few neighbours; of a few steps, each is a block.
    """

    of_step: NDArray[np.int32]
    steps: NDArray[np.int64]
    kind: NDArray[np.int32]

    @classmethod
    def of(cls, steps: Steps | None) -> Blocks:
        """The blocks of some steps, those of the first kind first."""
        if steps is None:
            return cls(np.zeros(0, np.int32), np.zeros(0, np.int64), np.zeros(0, np.int32))
        of_step = np.full(len(steps), -1, np.int32)
        kinds: list[int] = []
        for kind in np.unique(steps.label.codes[steps.traced]).tolist():
            alike = np.flatnonzero(steps.traced & (steps.label.codes == kind))
            block = np.arange(len(alike)) // _block_length(len(alike))
            of_step[alike] = len(kinds) + block
            kinds += [kind] * (int(block[-1]) + 1)
        inside = of_step >= 0
        return cls(of_step, np.bincount(of_step[inside], minlength=len(kinds)), np.array(kinds, np.int32))

    def __len__(self) -> int:
        return len(self.steps)


def _block_length(steps: int) -> int:
    return max(round(steps ** (1 / 3)), -(-steps // _MOST_BLOCKS)) if steps > _FEW_STEPS else 1


def intervals(
    energy_j: Float64, block_j: Float64, blocks: Blocks, meter_rms_j: Float64
) -> tuple[Float64, Float64]:
    """The 95 % interval ``(low_j, high_j)`` of each row.

    ``block_j[r, b]`` is what row ``r`` got in block ``b``, be it gross: only its spread is used. What is not
    in any block has none.
    """
    below, above = np.zeros(len(energy_j)), np.zeros(len(energy_j))
    for kind in np.unique(blocks.kind):
        alike = blocks.kind == kind
        less, more = _bootstrap(block_j[:, alike], blocks.steps[alike])
        below, above = np.hypot(below, less), np.hypot(above, more)
    meter = NORMAL_975 * meter_rms_j
    low = energy_j - np.hypot(below, meter)
    # Gross energy is never below zero; net energy may be, and then its interval too.
    return np.where(energy_j < 0, low, np.maximum(low, 0.0)), energy_j + np.hypot(above, meter)


def has_spread(block_j: Float64, blocks: Blocks) -> NDArray[np.bool_]:
    """Whether each row has energy in two blocks of one kind: else its spread is not known."""
    known = np.zeros(len(block_j), bool)
    for kind in np.unique(blocks.kind):
        known |= _occurs_in(block_j[:, blocks.kind == kind]) >= 2
    return known


def _occurs_in(block_j: Float64) -> NDArray[np.int64]:
    return np.asarray((block_j > 0).sum(axis=1), np.int64)


def _bootstrap(block_j: Float64, block_steps: NDArray[np.int64]) -> tuple[Float64, Float64]:
    """How far the row's total lies above the 2.5 % and below the 97.5 % quantile of the drawn totals."""
    rows, blocks = block_j.shape
    below, above = np.zeros(rows), np.zeros(rows)
    if blocks < 2:
        return below, above
    draws = np.random.default_rng(0).multinomial(blocks, np.full(blocks, 1 / blocks), _DRAWS)
    weights = (draws / (draws @ block_steps)[:, None] * block_steps.sum()).T
    known = np.flatnonzero(_occurs_in(block_j) >= 2)
    for begin in range(0, len(known), _ROWS_AT_ONCE):
        some = known[begin : begin + _ROWS_AT_ONCE]
        totals = block_j[some] @ weights
        low, high = np.quantile(totals, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=1)
        total = block_j[some].sum(axis=1)
        below[some], above[some] = np.maximum(total - low, 0), np.maximum(high - total, 0)
    widen = _small_sample(blocks)
    return below * widen, above * widen


def _small_sample(blocks: int) -> float:
    """Few blocks make a bootstrap too sure of itself: widen it as Student's t does the normal."""
    freedom = blocks - 1
    return float(student_975(freedom) / NORMAL_975 * (blocks / freedom) ** 0.5)
