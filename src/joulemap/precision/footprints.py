"""Summarised footprints (STEF) as vectors over the same tensors, so that they can be correlated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from joulemap.accounting.footprint import Footprint
from joulemap.traces import Float64

Stef = Mapping[str, float]
"""Energy in joules by summarised tensor."""


def stef_of(footprint: Footprint) -> Stef:
    """The summarised footprint: layers of a kind as one, phases and devices together."""
    rows = footprint.summarised().rollup(keep=())
    return dict(zip(rows.name, rows.energy_j.tolist(), strict=True))


def stefs_by_stretch(footprint: Footprint) -> list[Stef]:
    """The same of each stretch of steps, in order: what a recording holds of repeats. Empty without steps."""
    rows = footprint.summarised().rollup(keep=())
    names = list(rows.name)
    return [
        dict(zip(names, rows.block_j[:, block].tolist(), strict=True)) for block in range(len(rows.blocks))
    ]


def vectors(stefs: Sequence[Stef]) -> Float64:
    """A row for each footprint and a column for each tensor; what one does not have, got nothing in it."""
    names = dict.fromkeys(name for stef in stefs for name in stef)
    return np.array([[stef.get(name, 0.0) for name in names] for stef in stefs])
