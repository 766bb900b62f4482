"""What was drawn in stretches of time, and how sure that is."""

import numpy as np
import pytest

from joulemap.accounting.regions import regions
from joulemap.accounting.student import NORMAL_975
from joulemap.accounting.uncertainty import EDGE_RMS
from joulemap.devices import Domain
from joulemap.traces import PowerTrace

S = 1_000_000_000
POWER = PowerTrace(
    Domain("GPU:0", "GPU:0", update_period_s=0.1), np.arange(101) * S // 10, np.full(100, 10.0)
)
EDGES_J = EDGE_RMS * 0.1 * 100.0
"""Of one stretch at 100 W."""


@pytest.mark.parametrize(
    ("names", "pause_s", "rows"),
    [
        (["a"] * 8, 0.0, [1]),
        (["a"] * 8, 0.05, [1]),  # shorter than an update
        (["a"] * 8, 0.2, [8]),
        (["a", "b"] * 4, 0.0, [4, 4]),
        (["a"] * 4 + ["b"] * 4, 0.0, [1, 1]),
    ],
)
def test_stretches_in_a_row_have_edges_where_another_begins(names, pause_s, rows):
    start = np.arange(8) * S
    found = regions(names, start, start + round((1 - pause_s) * S), [POWER], in_a_row=True)
    assert [one.rms_j for one in found] == pytest.approx([EDGES_J * np.sqrt(count) for count in rows])
    assert sum(one.energy_j for one in found) == pytest.approx(800 * (1 - pause_s))
    assert sum(one.calls for one in found) == 8
    apart = regions(names, start, start + round((1 - pause_s) * S), [POWER])
    assert [one.energy_j for one in apart] == pytest.approx([one.energy_j for one in found])
    assert sum(one.rms_j**2 for one in apart) == pytest.approx(8 * EDGES_J**2)
    assert found[0].high_j - found[0].energy_j == pytest.approx(NORMAL_975 * found[0].rms_j)
