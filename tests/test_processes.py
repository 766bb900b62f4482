"""A program's share of a domain: checked when it is made, known at every time."""

import numpy as np
import pytest

from joulemap.errors import InputError
from joulemap.processes import ProcessShares


@pytest.mark.parametrize(
    ("edges_ns", "share"),
    [
        ([0, 1], [1.5]),
        ([0, 1], [-0.1]),
        ([0, 1], [float("nan")]),
        ([1, 0], [0.5]),
        ([0, 1], [0.5, 0.5]),
        ([], [0.5]),
    ],
)
def test_what_cannot_be_right_is_refused(edges_ns, share):
    with pytest.raises(InputError, match="package-0: "):
        ProcessShares.from_columns("package-0", edges_ns, share)


def test_a_share_out_of_range_says_what_a_share_is():
    with pytest.raises(InputError, match="between 0 and 1") as caught:
        ProcessShares.from_columns("package-0", [0, 1], [1.5])
    assert "busy time" in caught.value.hint


@pytest.mark.parametrize("loading", [[0.6], [-0.1], [float("nan")], [0.1, 0.1]])
def test_what_loads_data_is_a_part_of_the_share(loading):
    with pytest.raises(InputError, match="package-0: what loads data"):
        ProcessShares.from_columns("package-0", [0, 1], [0.5], loading)


def test_the_share_at_a_time():
    shares = ProcessShares.from_columns("package-0", [10, 20, 30], [0.25, 0.75], [0.25, 0.5])
    assert len(shares) == 2
    times = np.array([0, 10, 19, 20, 29, 30, 99])
    assert shares.at(times).tolist() == [0.25] * 3 + [0.75] * 4
    assert shares.loading_at(times).tolist() == [0.25] * 3 + [0.5] * 4
    unknown = ProcessShares.from_columns("package-0", [10, 20, 30], [0.25, 0.75])
    assert unknown.loading_at(times).tolist() == [0] * 7


@pytest.mark.parametrize("edges_ns", [[], [10]])
def test_without_shares_all_of_it_is_the_programs(edges_ns):
    shares = ProcessShares.from_columns("package-0", edges_ns, [])
    assert len(shares) == 0
    assert shares.at(np.array([0, 10])).tolist() == [1, 1]
    assert shares.loading_at(np.array([0, 10])).tolist() == [0, 0]
