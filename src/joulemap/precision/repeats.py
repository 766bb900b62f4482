"""ASSW and stability: what more runs would change, and how alike runs are.

Both go by experiments: some runs together. ASSW, accounting similarity with sample widening, correlates the
first experiment's footprint with that of the first two, three, … together. Stability correlates every
experiment with every other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from joulemap.comparing.similarity import Matrix, pcc
from joulemap.precision.footprints import Stef, vectors
from joulemap.traces import Float64


@dataclass(frozen=True, slots=True)
class Widened:
    """The similarity of the first experiment to the first ``experiments`` of them."""

    experiments: int
    similarity: float | None


def widening(stefs: Sequence[Stef], together: int) -> list[Widened]:
    """From two experiments on to as many as there are."""
    means = _experiments(stefs, together)
    return [Widened(count, pcc(means[0], means[:count].mean(axis=0))) for count in range(2, len(means) + 1)]


def stability(stefs: Sequence[Stef], together: int) -> Matrix:
    """A row and a column for each experiment."""
    means = _experiments(stefs, together)
    return tuple(tuple(pcc(row, column) for column in means) for row in means)


def _experiments(stefs: Sequence[Stef], together: int) -> Float64:
    """The mean footprint of each experiment; runs that make none are left out."""
    rows = vectors(stefs)
    count = len(rows) // together
    return np.asarray(rows[: count * together].reshape(count, together, -1).mean(axis=1), np.float64)
