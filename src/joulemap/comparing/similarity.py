"""Accounting similarity, as in the paper: how alike two footprints are, tensor by tensor.

PCC is Pearson's correlation: whether the same tensors are the expensive ones. MED is the mean of the
differences: by how much the tensors of one cost more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from joulemap.comparing.variant import Variant
from joulemap.traces import Float64

Matrix = tuple[tuple[float | None, ...], ...]


def pcc(a: ArrayLike, b: ArrayLike) -> float | None:
    """Pearson's correlation; None where it is not defined: fewer than two values, or all of them alike."""
    first, second = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if len(first) < 2 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return None
    return float(np.corrcoef(first, second)[0, 1])


def med(a: ArrayLike, b: ArrayLike) -> float | None:
    """The mean of ``a - b``, in their unit; None where there is nothing."""
    first, second = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return float((first - second).mean()) if len(first) else None


@dataclass(frozen=True, slots=True)
class Similarity:
    """Figure 9: a row and a column for each variant; a row's variant subtracts the column's."""

    labels: tuple[str, ...]
    tensors: tuple[tuple[int, ...], ...]
    stef_pcc: Matrix
    stpf_pcc: Matrix
    stef_med_j: Matrix
    stpf_med_w: Matrix


def similarity(variants: Sequence[Variant]) -> Similarity:
    """Compare every variant with every other, over the summarised tensors that both have."""
    tensors = [variant.tensors() for variant in variants]
    cells = [[_Cell.of(row, column) for column in tensors] for row in tensors]
    return Similarity(
        labels=tuple(variant.label for variant in variants),
        tensors=tuple(tuple(cell.tensors for cell in row) for row in cells),
        stef_pcc=tuple(tuple(cell.stef_pcc for cell in row) for row in cells),
        stpf_pcc=tuple(tuple(cell.stpf_pcc for cell in row) for row in cells),
        stef_med_j=tuple(tuple(cell.stef_med_j for cell in row) for row in cells),
        stpf_med_w=tuple(tuple(cell.stpf_med_w for cell in row) for row in cells),
    )


@dataclass(frozen=True, slots=True)
class _Cell:
    tensors: int
    stef_pcc: float | None
    stpf_pcc: float | None
    stef_med_j: float | None
    stpf_med_w: float | None

    @classmethod
    def of(cls, row: Mapping[str, tuple[float, float]], column: Mapping[str, tuple[float, float]]) -> _Cell:
        both = [name for name in row if name in column]
        energy, power = (_paired(both, row, column, place) for place in (0, 1))
        return cls(len(both), pcc(*energy), pcc(*power), med(*energy), med(*power))


def _paired(
    names: Sequence[str],
    row: Mapping[str, tuple[float, float]],
    column: Mapping[str, tuple[float, float]],
    place: int,
) -> tuple[Float64, Float64]:
    return np.array([row[name][place] for name in names]), np.array([column[name][place] for name in names])
